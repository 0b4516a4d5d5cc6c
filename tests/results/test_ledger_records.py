"""A scan holds the registry against what earlier scans of the same results saw of it, before it names anybody."""

import shutil

import pytest

from scanner.errors import Refused
from scanner.registry import add_users, ledger
from scanner.results.ledger_records import TABLE, lost_head
from scanner.results.tables import read_whole
from tests.support.command_line import call
from tests.support.forged_users import part_files, swap_names
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")


def test_a_registry_that_is_older_than_its_own_results_names_nobody(night, own_registry, marked):
    before = shutil.copytree(own_registry, night.folder / "backup")
    add_users(own_registry, ["green"], ["zoe"])
    night.write("a", [marked(message_of(own_registry, "green", "zoe"), 80, 1)])
    night.scan()
    assert lost_head(str(own_registry), night.results) is None
    assert "older" not in call("status", night.config)[1]
    shutil.rmtree(own_registry)
    shutil.copytree(before, own_registry)
    add_users(own_registry, ["green"], ["mallory"])  # a chain that holds, and another than the scan saw
    night.write("b", [marked(3, 80, 2)])
    rows = len(night.verdicts())
    with pytest.raises(Refused, match=r"is older than its own results .*, or another: scan .* wrote down the head"):
        night.scan()
    assert len(night.verdicts()) == rows
    for arguments in (("scan", night.config), ("scan", night.config, "--check")):
        code, _, err = call(*arguments)
        assert code == 2
        assert "is older than its own results" in err
    assert "is older than its own results" in call("status", night.config)[1]
    shutil.rmtree(own_registry / "users")
    assert call("scan", night.config)[0] == 2  # a users table that is gone is older, too


@pytest.mark.parametrize("scanned_before", [True, False])
def test_two_names_that_were_swapped_in_the_ledger_name_nobody(
    night, own_registry, marked, monkeypatch, scanned_before
):
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", 2)
    add_users(own_registry, ["green"], ["zoe", "bystander"])
    night.write("a", [marked(message_of(own_registry, "green", "zoe"), 80, 1)])
    if scanned_before:
        night.scan()
        first = read_whole(night.results, TABLE).collect()
        assert first["sha256"].drop_nulls().len() > 0
        night.scan()
        assert read_whole(night.results, TABLE).collect().equals(first)  # nothing new, no row
    rows = len(night.verdicts()) if scanned_before else 0
    swapped = [swap_names(*of) for of in part_files(own_registry, "user_id").items()]
    assert any(swapped)
    night.write("b", [marked(message_of(own_registry, "green", "zoe"), 80, 2)])
    with pytest.raises(Refused, match="its users were changed by something else than brickscan"):
        night.scan()
    code, _, err = call("scan", night.config, "--check")
    assert (code, "`brickscan users verify` says more" in err) == (2, True)
    assert not scanned_before or len(night.verdicts()) == rows
    assert call("users", "verify", "--registry", own_registry)[0] == 3

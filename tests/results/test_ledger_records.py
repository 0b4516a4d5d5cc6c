"""A scan holds the registry against what earlier scans of the same results saw of it, before it names anybody."""

import shutil

import pytest

from scanner.errors import Refused
from scanner.registry import add_users
from scanner.results.ledger_records import lost_head
from tests.support.command_line import call
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

"""Documents in files of any name: what the log of a table says of them is what was signed, and none is lost."""

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scanner.results import upkeep
from scanner.results.queries import verdicts
from scanner.results.transactions import open_tables
from scanner.signing import keep_signatures, sign_with
from scanner.storage.locations import table_uri
from tests.support.command_line import call
from tests.support.rows import add_scanned as add
from tests.support.rows import verdict
from tests.support.signed_results import new_registry, reopen, rows

PLANES = ["\U00020bb7野家", "葛\U000e0100", "\U0001f3f4\U000e0067\U000e007f", "\U00030000", "\U00100000", "\U0010ffff"]
"""Characters of planes 2, 3, 14 and 16, which JSON may write as two escapes."""


@pytest.mark.costly
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(PLANES)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=4, unique=True))
def test_the_facts_that_are_read_are_those_that_were_signed(tmp_path_factory, paths):
    """From the log, from a checkpoint, and after files were merged; and each document is found by its path."""
    folder = tmp_path_factory.mktemp("any")
    results, registry = str(folder / "results"), new_registry(folder / "registry")
    sign_with(results, str(registry))
    open_tables(results)
    for number, path in enumerate(paths):
        add(results, f"t{number}", [verdict(number, path, "alice")])
    assert keep_signatures(results) is None

    def look() -> None:
        reopen(results, registry)
        assert sorted(rows(results)["path"]) == sorted(paths)
        assert [verdicts(results, [path]).collect()["path"].to_list() for path in paths] == [[path] for path in paths]

    def checkpoint() -> None:
        for name in ("flags", "verdicts"):
            DeltaTable(table_uri(results, name)).create_checkpoint()

    for change in (lambda: None, checkpoint, lambda: upkeep.compact(results), checkpoint):
        change()
        keep_signatures(results)
        look()


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_night_of_rare_letters_is_scanned_once(night, own_registry, plain):
    first = night.write("a", [plain(40, 1)])
    second = night.write("\U00020bb7野家", [plain(40, 2), plain(40, 3)])
    for command in ("scan", "scan", "flagged", "status", "compact", "scan", "status"):
        code, out, err = call(command, night.config)
        assert code == 0, (command, out, err)
    found = night.verdicts().select("path", "row").rows()
    assert sorted(found) == [(str(first), 0), (str(second), 0), (str(second), 1)]

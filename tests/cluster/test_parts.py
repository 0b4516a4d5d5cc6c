"""Several drivers share a night by parts of its files, and meet in the tables: each row once, whoever dies."""

import contextlib
import itertools
import json

import pytest

from scanner import results
from scanner.cluster import commits
from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.errors import Refused
from scanner.input.files import InputFile
from scanner.input.shards import DriverShare
from scanner.registry import make_canaries
from tests.support.command_line import call
from tests.support.rows import same
from tests.support.signed_tables import delete_results

pytestmark = pytest.mark.usefixtures("without_ray")

THIRDS = [DriverShare(number, 3) for number in (1, 2, 3)]


class Died(BaseException):
    """The driver is gone."""


def names_in(night, part: DriverShare, count: int) -> list[str]:
    """Names of so many files of a part, whatever folder the test has."""
    paths = ((f"f{i}", str(night.input / f"f{i}.parquet")) for i in itertools.count())
    of_part = (name for name, path in paths if part.holds(InputFile(path, path, path, 1, 1)))
    return list(itertools.islice(of_part, count))


@pytest.fixture
def shared(night, plain):
    """A night of three files in each third, four documents a file."""
    for name in (name for part in THIRDS for name in names_in(night, part, 3)):
        night.write(name, [plain(30, 10 * int(name[1:]) + j) for j in range(4)])
    return night


@pytest.mark.costly
def test_three_drivers_at_once_one_of_which_dies(shared, monkeypatch):
    """The second driver runs while the first commits, the third while the second does, and the third dies then."""
    night = shared
    assert night.scan().exit_code == 0
    expected = night.verdicts()
    delete_results(night.results, night.registry)
    monkeypatch.setattr(commits, "SHARDS_A_COMMIT", 1)
    monkeypatch.setattr(commits, "LEAST_SECONDS_BETWEEN_COMMITS", 0.0)
    ended: list[ScanOutcome] = []

    def drive(parts: list[DriverShare]) -> None:
        left = parts[1:]

        def at_a_commit(_work, totals):
            if totals.shards and len(parts) == 1:
                raise Died
            if totals.shards:
                others, left[:] = left[:], []
                with contextlib.suppress(Died):
                    drive(others) if others else None

        ended.append(run_scan(night.plan(), at_a_commit, share=parts[0]))

    drive(THIRDS)
    assert [(one.share, one.exit_code, one.totals.shards) for one in ended] == [(THIRDS[1], 0, 3), (THIRDS[0], 0, 3)]
    again = night.scan(share=THIRDS[2])
    assert (again.exit_code, again.work.shard_count, again.work.skipped, again.totals.shards) == (0, 3, 1, 2)
    assert same(night.verdicts(), expected)

    whole = night.scan()
    assert (whole.exit_code, whole.work.shard_count, whole.work.skipped) == (0, 9, 9)
    assert whole.audit.traffic.texts == expected.height
    rows = results.scans(night.results).sort("started_at").collect()
    assert rows["part"].to_list() == ["1/3", "2/3", "3/3", "3/3", None]
    assert set(rows["scan_id"]) == set(rows["audited_scans"][-1]) | {whole.scan_id}
    assert same(night.verdicts(), expected)


@pytest.mark.costly
def test_a_file_that_lands_between_two_listings_is_found_by_the_scan_without_part(shared, plain):
    night = shared
    assert night.scan(share=THIRDS[0]).exit_code == 0
    (name,) = set(names_in(night, THIRDS[0], 4)) - set(names_in(night, THIRDS[0], 3))
    night.write(name, [plain(30, 10**6)])
    for part in THIRDS[1:]:
        assert night.scan(share=part).work.shard_count == 3
    whole = night.scan()
    assert (whole.work.skipped, whole.totals.shards, night.verdicts()["doc_id"].n_unique()) == (9, 1, 37)
    assert night.verdicts().height == 37


def test_a_part_without_files_is_done_and_the_night_without_any_is_not(night, plain):
    code, out, err = call("scan", night.config, "--part", "1/2")
    assert (code, "Nothing was read" in out) == (0, False), err
    assert "part         1/2 of the input's files; the scan without --part judges all of them" in out
    assert night.scan().exit_code == 4
    code, out, _ = call("scan", night.config, "--part", "1/2", "--summary", "json")
    said = json.loads(out)
    assert (code, said["part"], said["documents"], said["nothing_read"]) == (0, "1/2", 0, None)


def test_a_part_is_refused_where_none_of_its_files_has_the_columns(shared):
    shared.configure(columns='account = "who"')
    with pytest.raises(Refused, match="no file has all of the configured columns"):
        shared.scan(share=THIRDS[0])
    assert not results.exist(shared.results)


@pytest.mark.costly
def test_accounts_and_canaries_that_are_due_wait_for_the_scan_of_all_files(night, own_registry, marked, plain):
    made = make_canaries(own_registry, ["green"], 2, 0.9).made
    night.configure(more="accounts = { nights = 1 }", columns='account = "account"', audit="canaries = 60")
    for i, part in enumerate(THIRDS):
        (name,) = names_in(night, part, 1)
        texts = [marked(made[j % 2].message, 60, 10 * i + j) for j in range(4)]
        night.write(name, [*texts, plain(60, i)], account=[*(made[j % 2].account_id for j in range(4)), "somebody"])
    for part in THIRDS:
        outcome = night.scan(share=part)
        assert (outcome.exit_code, outcome.audit.facts["canaries"]["due"]) == (0, 4)
        assert outcome.looks["accounts"].counts is None
    whole = night.scan()
    assert (whole.work.skipped, whole.looks["accounts"].counts["tested"]) == (3, 1)
    assert [whole.audit.facts["canaries"][name] for name in ("due", "came")] == [60, 12]
    assert whole.exit_code == 5  # most canaries did not come


def test_status_names_the_part_and_check_looks_at_it_alone(shared):
    code, out, err = call("scan", shared.config, "--part", "2/3", "--check")
    assert (code, err) == (0, "")
    assert "input        3 files of 9 (part 2/3), " in out
    assert "0 of 3 shards; 12 documents left" in out
    assert out.endswith(f"Ready to run: brickscan scan {shared.config} --part 2/3\n")
    shared.scan(share=THIRDS[1])
    assert "part 2/3 done" in call("status", shared.config)[1]


@pytest.mark.parametrize(("options", "said"), [(("4/3",), "'4/3' is not a part"), (("1/3", "--follow"), "--follow or")])
def test_a_part_that_cannot_be(night, options, said):
    code, _, err = call("scan", night.config, "--part", *options)
    assert (code, said in err) == (2, True)

"""Results that are moved, copied and put behind links: they are told by their id, wherever they lie."""

import shutil
import time
from pathlib import Path

import pytest

from scanner.errors import TableError
from scanner.results.queries import exist
from scanner.results.sign_anew import faults_of_tables, sign_anew
from scanner.results.transactions import (
    TableEntry,
    commit,
    find_committed,
    has_table,
    open_tables,
    refuse_changed_tables,
)
from scanner.signing import keep_signatures, unchecked
from tests.support.command_line import call
from tests.support.rows import add_scanned as add
from tests.support.rows import verdict
from tests.support.signed_results import consent, reopen, rows, take_as_it_is


@pytest.fixture
def decided(signed) -> str:
    """Signed results with a decision, all on record."""
    open_tables(signed, ["decisions"])
    assert commit(signed, "decisions", [TableEntry("d", ())]) == {"d"}
    assert keep_signatures(signed) is None
    return signed


def add_row(folder: str, row: int) -> None:
    add(folder, f"at-{folder}-{row}", [verdict(row, user="bob", message=2)])
    assert keep_signatures(folder) is None


def test_moved_results_are_checked_and_go_on_at_every_place(decided, own_secret, tmp_path):
    """No consent is asked for: nothing was changed, and nobody else has them."""
    places = [Path(decided), tmp_path / "there"]
    for number in range(4):
        here, there = places[number % 2], places[(number + 1) % 2]
        here.rename(there)
        reopen(str(there), own_secret)
        refuse_changed_tables(str(there))
        assert (len(rows(str(there))), unchecked(str(there))) == (3 + number, None)
        add_row(str(there), 20 + number)
    reopen(str(places[1]), own_secret)
    with pytest.raises(TableError, match=f"was signed, last in {decided} but no longer exists"):
        exist(str(places[1]))


def test_the_place_that_results_left_is_free_once_somebody_says_so(decided, own_secret, tmp_path):
    """The results themselves stay as they are at the other place."""
    moved = str(shutil.move(decided, str(tmp_path / "moved")))
    reopen(moved, own_secret)
    add_row(moved, 20)
    reopen(decided, own_secret)
    with pytest.raises(TableError, match="but no longer exists"):
        open_tables(decided)
    consent(decided)
    assert keep_signatures(decided) is None
    reopen(decided, own_secret)
    open_tables(decided)
    add(decided, "anew", [verdict(0, user="carol", message=3)])
    assert keep_signatures(decided) is None
    for folder, names in ((moved, ["alice"] * 3 + ["bob"]), (decided, ["carol"])):
        reopen(folder, own_secret)
        refuse_changed_tables(folder)
        assert (sorted(rows(folder)["user_id"]), unchecked(folder)) == (names, None)


@pytest.mark.parametrize("how", ["moved", "copied", "by a link"])
@pytest.mark.parametrize("name", ["decisions", "verdicts", "flags"])
def test_a_table_that_did_not_come_along_is_missed(decided, own_secret, tmp_path, how, name):
    other = str(tmp_path / "other")
    if how == "by a link":
        shutil.copytree(decided, tmp_path / "target")
        Path(other).symlink_to(tmp_path / "target")
    else:
        (shutil.move if how == "moved" else shutil.copytree)(decided, other)
    shutil.rmtree(f"{other}/{name}")
    reopen(other, own_secret)
    for ask in (
        lambda: has_table(other, name),
        lambda: open_tables(other, [name]),
        lambda: refuse_changed_tables(other),
    ):
        with pytest.raises(TableError, match=rf"{name}: was signed, last in {decided} but no longer exists"):
            ask()
    assert [each for each, fault in faults_of_tables(other).items() if fault is not None] == [name]
    consent(other)
    assert keep_signatures(other) is None
    reopen(other, own_secret)
    open_tables(other, [name])
    assert {*faults_of_tables(other).values()} == {None}


@pytest.mark.parametrize("goes_on", ["copy", "original"])
def test_of_a_copy_and_its_original_one_goes_on(decided, own_secret, tmp_path, goes_on):
    """The other one is refused wherever it lies, until somebody says that it is the right one: then the first is."""
    copy = str(shutil.copytree(decided, tmp_path / "copy"))
    newer, older = (copy, decided) if goes_on == "copy" else (decided, copy)
    reopen(newer, own_secret)
    add_row(newer, 20)
    for stale, other in ((older, newer), (newer, older)):
        reopen(stale, own_secret)
        for ask in (rows, refuse_changed_tables, lambda folder: add_row(folder, 30)):
            with pytest.raises(TableError, match=f"or is a copy: brickscan made its last commit at {other}"):
                ask(stale)
        faults = {name: fault.why for name, fault in faults_of_tables(stale).items() if fault is not None}
        assert faults.keys() == {"flags", "shards", "verdicts"}
        assert f"last commit at {other}" in faults["flags"]
        take_as_it_is(stale, own_secret)
        add_row(stale, 40)
    third = str(shutil.move(older, str(tmp_path / "third")))
    reopen(third, own_secret)
    with pytest.raises(TableError, match="or is a copy"):
        rows(third)


@pytest.fixture
def up_from_a_link(decided, tmp_path) -> str:
    """The results as a configuration names them in `../results`, whose folder somebody reaches by a link."""
    (Path(decided).parent / "configurations").mkdir()
    (tmp_path / "link").symlink_to(Path(decided).parent / "configurations")
    return f"{tmp_path}/link//..//results"


def test_a_path_that_leads_up_from_a_link_is_the_place_that_it_leads_to(decided, own_secret, up_from_a_link):
    """Read as text, it names another folder, of which the registry knows nothing."""
    for number, place in enumerate((up_from_a_link, decided, up_from_a_link)):
        reopen(place, own_secret)
        refuse_changed_tables(place)
        assert ({*faults_of_tables(place).values()}, unchecked(place)) == ({None}, None)
        assert len(rows(place)) == 3 + number
        add_row(place, 20 + number)


@pytest.mark.parametrize("name", ["decisions", "verdicts", "flags"])
def test_a_table_is_missed_where_the_path_leads_up_from_a_link(decided, own_secret, up_from_a_link, name):
    shutil.rmtree(f"{decided}/{name}")
    reopen(up_from_a_link, own_secret)
    for ask in (lambda: has_table(up_from_a_link, name), lambda: refuse_changed_tables(up_from_a_link)):
        with pytest.raises(TableError, match=f"{name}: was signed but no longer exists"):
            ask()
    assert [each for each, fault in faults_of_tables(up_from_a_link).items() if fault is not None] == [name]


def test_a_table_of_other_results_is_told_where_the_path_leads_up_from_a_link(
    decided, own_secret, up_from_a_link, tmp_path
):
    other = str(tmp_path / "other")
    begin(other, own_secret, "carol")
    shutil.rmtree(f"{decided}/flags")
    shutil.copytree(f"{other}/flags", f"{decided}/flags")
    reopen(up_from_a_link, own_secret)
    with pytest.raises(TableError, match=f"signed as part of other results, last at {other}"):
        rows(up_from_a_link)


def test_a_table_that_was_given_up_comes_back_nowhere(decided, own_secret, tmp_path):
    """The decisions made since would be gone, and the old ones shown as checked."""
    moved = str(shutil.move(decided, str(tmp_path / "moved")))
    shutil.move(f"{moved}/decisions", tmp_path / "old")
    reopen(moved, own_secret)
    consent(moved)
    open_tables(moved, ["decisions"])
    assert keep_signatures(moved) is None
    for place in (moved, str(tmp_path / "third")):
        if place != moved:
            shutil.move(moved, place)
        shutil.rmtree(f"{place}/decisions")
        shutil.copytree(tmp_path / "old", f"{place}/decisions")
        reopen(place, own_secret)
        with pytest.raises(TableError, match="decisions: it is a table that was given up"):
            refuse_changed_tables(place)
        assert "given up" in faults_of_tables(place)["decisions"].why


def test_results_of_which_the_registry_knows_nothing_take_no_commit_beside_others(decided, own_secret, tmp_path):
    """As where it was restored from a copy that is older than they are: they may not be the newest."""
    before = shutil.copytree(own_secret, tmp_path / "registry-before", ignore=shutil.ignore_patterns("signed_tables"))
    other = str(tmp_path / "other")
    reopen(other, before)
    open_tables(other)
    assert keep_signatures(other) is None
    reopen(decided, before)
    assert len(rows(decided)) == 3
    assert "has no record of these results, so flags may not be the newest" in str(unchecked(decided))
    with pytest.raises(TableError, match=r"has no record of those in .*, so they may not be the newest"):
        add(decided, "later", [verdict(9)])
    take_as_it_is(decided, before)
    add(decided, "later", [verdict(9)])
    assert unchecked(decided) is None


def begin(folder: str, registry: Path, name: str) -> None:
    """Other results, with one flag of a user."""
    reopen(folder, registry)
    open_tables(folder)
    add(folder, name, [verdict(0, user=name, message=3)])
    assert keep_signatures(folder) is None


def users(folder: str, registry: Path) -> tuple[list[str], str | None]:
    """The users of flags, as the next process reads them, and why they were not checked."""
    reopen(folder, registry)
    refuse_changed_tables(folder)
    return sorted(rows(folder)["user_id"]), unchecked(folder)


def test_results_that_exchanged_places_are_taken_as_what_they_are(decided, own_secret, tmp_path):
    """None of them is given up, whichever was signed there before, nor a table that only one of them has."""
    other, away = str(tmp_path / "other"), str(tmp_path / "away")
    begin(other, own_secret, "carol")
    for place, to in ((decided, away), (other, decided), (away, other)):
        shutil.move(place, to)
    for place in (decided, other):
        reopen(place, own_secret)
        with pytest.raises(TableError, match=r"it was signed as part of other results, last at .*, and was put here"):
            refuse_changed_tables(place)
        take_as_it_is(place, own_secret)
    for entry in ("e", "f"):
        assert users(decided, own_secret) == (["carol"], None)
        assert users(other, own_secret) == (["alice"] * 3, None)
        assert find_committed(other, "decisions", ["d"]) == {"d"}
        for place in (decided, other):
            assert {*faults_of_tables(place).values()} == {None}
            open_tables(place, ["decisions"])
            assert commit(place, "decisions", [TableEntry(entry, ())]) == {entry}
            assert keep_signatures(place) is None


def test_results_whose_clock_was_ahead_may_be_moved_to_and_fro(decided, own_secret, tmp_path, monkeypatch):
    """Which place they left last is told by numbers, and one table has them from the future."""
    real, moved = time.time_ns, str(tmp_path / "moved")
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: real() + 3600 * 10**9)
        assert commit(decided, "decisions", [TableEntry("later", ())]) == {"later"}
    assert keep_signatures(decided) is None
    shutil.move(decided, moved)
    reopen(moved, own_secret)
    add_row(moved, 20)
    reopen(decided, own_secret)
    consent(decided)
    assert keep_signatures(decided) is None
    assert users(moved, own_secret) == (["alice"] * 3 + ["bob"], None)
    shutil.move(moved, decided)
    reopen(decided, own_secret)
    add_row(decided, 30)
    other = str(tmp_path / "other")
    begin(other, own_secret, "carol")
    shutil.rmtree(decided)
    shutil.move(other, decided)
    reopen(decided, own_secret)
    with pytest.raises(TableError, match="was signed as part of other results"):  # they did not leave it since
        refuse_changed_tables(decided)


def test_no_consent_to_one_table_takes_others_that_come_meanwhile(decided, own_secret, tmp_path):
    """It would say that other results lie here, of which the prompt showed one table."""
    other = str(tmp_path / "other")
    begin(other, own_secret, "carol")
    shutil.move(f"{decided}/flags", tmp_path / "flags")
    shutil.copytree(f"{other}/flags", f"{decided}/flags")
    reopen(decided, own_secret)
    shown = {name: fault for name, fault in faults_of_tables(decided).items() if fault is not None}
    assert shown.keys() == {"flags"}
    shutil.move(decided, tmp_path / "away")
    shutil.copytree(other, decided)
    with pytest.raises(TableError, match="was changed since it was checked"):
        sign_anew(decided, "flags", shown["flags"].state)

    shutil.rmtree(decided)
    shutil.move(tmp_path / "away", decided)
    take_as_it_is(decided, own_secret)
    assert users(decided, own_secret) == (["carol"], None)
    assert users(other, own_secret) == (["carol"], None)


def test_archived_results_and_those_begun_anew_at_their_place_are_both_checked(decided, own_secret, tmp_path):
    """Consent where they lie now says that they were moved, so that consent at the place that they left is no end."""
    archive = str(shutil.move(decided, str(tmp_path / "archive")))
    reopen(decided, own_secret)
    gone = {fault.why for fault in faults_of_tables(decided).values() if fault is not None}
    assert all("first run `brickscan sign` at their new place" in why for why in gone)
    reopen(archive, own_secret)
    (moved,) = (fault.why for fault in faults_of_tables(archive).values() if fault is not None)
    assert moved == f"these results were last signed at {decided}; from now on their place is here"
    take_as_it_is(archive, own_secret)
    reopen(decided, own_secret)
    assert {fault.why for fault in faults_of_tables(decided).values() if fault is not None} == {
        "was signed but no longer exists"
    }
    consent(decided)
    assert keep_signatures(decided) is None
    begin(decided, own_secret, "carol")
    assert users(decided, own_secret) == (["carol"], None)
    assert users(archive, own_secret) == (["alice"] * 3, None)


def test_another_audit_secret_asks_for_each_results_and_not_for_each_place(decided, own_secret, tmp_path):
    """Results lie where others were signed last: theirs are signed under it, and those that went are missed."""
    rotate = "keys", "audit-secret", "--registry", own_secret, "--secret"
    other, moved = str(tmp_path / "other"), str(tmp_path / "moved")
    begin(other, own_secret, "carol")
    shutil.move(decided, moved)
    shutil.move(other, decided)
    take_as_it_is(decided, own_secret)
    code, _, err = call(*rotate, "file:secrets/new.secret")
    assert (code, f"are missing: {decided}. Nothing was changed" in err) == (2, True), err
    take_as_it_is(moved, own_secret)
    code, out, err = call(*rotate, "file:secrets/new.secret")
    assert (code, out.count("signed under file:secrets/new.secret")) == (0, 2), err
    assert users(decided, own_secret) == (["carol"], None)
    assert users(moved, own_secret) == (["alice"] * 3, None)

    shutil.rmtree(moved)
    code, out, err = call(*rotate, "file:secrets/newer.secret", "--yes")
    assert (code, f"{moved}: there are no results there any more" in out) == (0, True), err
    assert users(decided, own_secret) == (["carol"], None)


def test_who_reads_results_at_a_place_that_is_new_is_told_where_they_were(decided, own_secret, tmp_path, caplog):
    """Somebody else may have put other results there, which are signed as well, until a commit is made there."""
    other, moved = str(tmp_path / "other"), str(tmp_path / "moved")
    begin(other, own_secret, "carol")
    shutil.move(other, moved)  # where `decided` was to go
    caplog.clear()
    assert users(moved, own_secret) == (["carol"], None)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert f"those in {moved} were last signed at {other}" in told[0]
    caplog.clear()
    add_row(moved, 20)
    assert users(moved, own_secret) == (["bob", "carol"], None)
    assert not caplog.records

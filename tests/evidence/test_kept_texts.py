"""`[evidence] keep_text`: texts of flags are kept once, with their flags, and serve when the input is gone."""

import json
import re
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import polars as pl
import pytest
from deltalake import DeltaTable

from scanner.cluster import commits
from scanner.cluster.commits import Committer
from scanner.cluster.pieces import FinishedPack, FinishedShard, Piece
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.errors import Refused
from scanner.evidence.case import find_case
from scanner.evidence.explainer import Explainer
from scanner.evidence.stored_texts import StoredTexts
from scanner.input.columns import Columns
from scanner.input.files import list_files
from scanner.results.retention import FREEZE_AFTER, erase_user, freeze, retain
from scanner.results.transactions import open_tables
from scanner.results.upkeep import compact
from scanner.scan_plan import Plan
from scanner.service.review_session import FlagRequest, ReviewSession
from scanner.storage.locations import table_uri
from tests.support.command_line import call
from tests.support.hostile_files import FATAL
from tests.support.night import Night
from tests.support.rows import same
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")

KEEP = "evidence = { keep_text = true }"


@pytest.fixture
def texts(registry, marked, plain) -> list[bytes | None]:
    """Two texts marked for alice, one of them not UTF-8; one of nobody; and a row without text."""
    alice = message_of(registry, "green", "alice")
    return [marked(alice, 80, 1).encode(), b"\xff\r\n" + marked(alice, 80, 2).encode(), plain(80, 1).encode(), None]


def kept(night: Night) -> pl.DataFrame:
    return pl.read_delta(table_uri(night.results, "flag_texts")).sort("path", "row")


def said(*arguments: object) -> tuple[int, str]:
    code, out, err = call(*arguments)
    return code, re.sub(r"\s+", " ", out + err)


@pytest.mark.costly
def test_texts_are_kept_once_and_nothing_else_changes(night, texts):
    """Rows and shards are the same with and without kept texts; a rerun adds none; files are for owner and group."""
    night.write("a", texts)
    night.scan()
    without = night.verdicts()
    assert not DeltaTable.is_deltatable(table_uri(night.results, "flag_texts"))
    night.results = night.results.replace("results", "other")
    night.configure(more=KEEP)
    night.config.write_text(night.config.read_text().replace('results = "results"', 'results = "other"'))
    night.scan()
    assert same(night.verdicts(), without)
    rows = kept(night)
    assert rows["text"].to_list() == texts[:2]
    assert rows["user_ids"].to_list() == [["alice"], ["alice"]]
    flags = pl.read_delta(table_uri(night.results, "flags")).sort("row")
    whose = ["scan_id", "shard_id", "path", "row", "text_sha256", "scanned_at"]
    assert rows.select(whose).equals(flags.select(whose))
    night.scan()
    compact(night.results)
    assert kept(night).equals(rows)
    assert (night.folder / "other" / "flag_texts").stat().st_mode & 0o007 == 0


@pytest.mark.costly
@pytest.mark.parametrize("gone", [True, False])
def test_a_flag_is_explained_when_its_file_is_gone(night, texts, tmp_path, gone):
    night.configure(more=KEEP)
    path = night.write("a", texts)
    night.scan()
    if gone:
        path.unlink()
    else:
        night.write("a", texts[::-1])
    why = "the text can no longer be read " if gone else "the text there now"
    code, out = said("explain", night.config, "a:0")
    assert (
        code,
        f"Text kept by the scan: you see the copy that the scan kept. Its file: {path}:0: {why}" in out,
    ) == (0, True), out
    assert texts[0].decode()[:30] in out
    code, out = said("replay", night.config, "a:1", "--proof", tmp_path / "case")
    assert (code, "the copy that the scan kept" in out, why in out) == (0, True, True)
    assert (tmp_path / "case" / "text.txt").read_bytes() == texts[1]
    record = json.loads(call("replay", night.config, "a:1", "--json")[1])
    assert (record["equal"], why in record["text_not_from_file"]) == (True, True)
    assert not {"doc_id", "account_id"} & {field["field"] for field in record["fields"]}  # no file to compare with
    assert said("report", night.config, "--out", tmp_path / "report")[0] == 0
    pages = [page.read_text() for page in (tmp_path / "report" / "flags").glob("*.html")]
    assert [("Text kept by the scan" in page, "The text is not shown" in page) for page in pages] == [(True, False)] * 2


def test_a_kept_text_is_shown_only_if_it_is_the_one_that_was_scanned(night, texts, monkeypatch):
    """Sabotage: the table holds another text under the digest of the first."""
    from scanner.evidence.stored_texts import KeptTexts

    night.configure(more=KEEP)
    path = night.write("a", texts)
    night.scan()
    path.unlink()
    monkeypatch.setattr(KeptTexts, "of", lambda self, row: b"another text")
    assert "The text is not shown" in said("explain", night.config, "a:0")[1]


@pytest.mark.costly
def test_a_file_whose_footer_ends_its_reader_costs_its_own_flags_their_texts(night, texts, tmp_path):
    """Changed after the scan: explain, report, replay, export and the review app go on, and say so on that flag."""
    night.write("a", texts[:1])
    night.write("b", texts[1:2])
    night.scan()
    fatal = [make(tmp_path / f"{i}.parquet").read_bytes() for i, make in enumerate(FATAL.values())]
    for content in fatal:
        (night.input / "a.parquet").write_bytes(content)
        with pytest.raises(Refused, match=r"a.parquet:0: (the text can no longer be read |the text there)"):
            StoredTexts(Columns("text", None, None, None), [], night.results).of(find_case(night.results, 1.0, "a:0"))
    (night.input / "a.parquet").write_bytes(fatal[0])
    why = "a.parquet:0: the text can no longer be read (the process that read the footer was killed by SIGABRT)"
    code, out = said("explain", night.config, "a:0")
    assert (code, why in out) == (0, True), out
    code, out = said("replay", night.config, "a:0")
    assert (code, why in out) == (2, True), out
    assert said("report", night.config, "--out", tmp_path / "report")[0] == 0
    pages = [page.read_text() for page in (tmp_path / "report" / "flags").glob("*.html")]
    assert sorted("can no longer be read" in page for page in pages) == [False, True]
    assert len(call("export", night.config)[1].splitlines()) == 2
    code, out, err = call("export", night.config, "--format", "label-studio")
    assert (code, len(json.loads(out)), err.count("can no longer be read")) == (1, 1, 1)
    listed = ReviewSession(Explainer(night.config), "ruth").list(FlagRequest(), 0)
    assert sorted(entry.glance is None for entry in listed.entries) == [False, True]


@pytest.mark.costly
def test_an_erased_name_takes_its_texts_along(night, own_registry, texts, marked):
    bobs = marked(message_of(own_registry, "green", "bob"), 80, 3)
    night.configure(more=KEEP)
    path = night.write("a", [*texts, bobs])
    night.scan()
    path.unlink()
    assert erase_user(night.results, ["alice"]) == 2
    assert kept(night)["text"].to_list() == [bobs.encode()]
    left = [path.read_bytes() for path in (night.folder / "results" / "flag_texts").glob("*.parquet")]
    assert not any(b"alice" in raw for raw in left)
    assert len(left) == 1
    assert "The text is not shown" in said("explain", night.config, "a:0")[1]
    assert "Text kept by the scan" in said("explain", night.config, "a:4")[1]


def finished(plan: Plan, scan_id: str, *, in_a_pack: bool = False) -> Committer:
    """A committer that holds all shards, ready to be flushed."""
    ours, shards = Committer(plan, scan_id), inspect_input(plan, list_files(plan.locations)).shards
    worker = Worker(plan, scan_id)
    if in_a_pack:
        report = [*worker.scan_pack(shards)][-1]
        ours.add(FinishedPack(dict(zip(shards, report.counts, strict=True)), report))
    else:
        for shard in shards:
            ours.add(FinishedShard(shard, [[*worker.scan(Piece(shard, shard.rows.start, shard.rows.stop))][-1]]))
    return ours


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("again_keeps", [True, False])
def test_texts_of_a_run_that_died_leave_with_its_flags(night, texts, monkeypatch, packed, again_keeps):
    """The run died between its commits of texts and of verdicts; the next scan keeps texts, or none."""
    night.configure(more=KEEP)
    night.write("a", texts)
    night.write("b", texts)
    plan = night.plan()
    open_tables(plan.results)
    open_tables(plan.results, ["flag_texts"])
    first = finished(plan, "first", in_a_pack=packed)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            first.flush()
    assert kept(night)["scan_id"].to_list() == ["first"] * 4
    night.configure(more=KEEP if again_keeps else "")
    finished(night.plan(), "second", in_a_pack=packed).flush()
    assert kept(night)["scan_id"].to_list() == ["second"] * 4 * again_keeps
    later = datetime.now(UTC) + FREEZE_AFTER + timedelta(days=2)
    assert len(freeze(night.results, later)) == 1
    assert kept(night)["scan_id"].to_list() == ["second"] * 4 * again_keeps


@pytest.mark.costly
@pytest.mark.parametrize("keep_flags", [True, False])
def test_flags_of_a_night_that_was_dropped(night, texts, tmp_path, keep_flags):
    """Kept flags are explained and replayed as before, by their kept texts; dropped ones are said to be gone."""
    night.configure(more=KEEP)
    path = night.write("a", texts)
    night.scan()
    path.unlink()
    retain(night.results, [night.last_scan()["scan_id"]], keep_flags=keep_flags)
    code, out = said("explain", night.config, "a:0")
    again = said("replay", night.config, "a:0")
    assert said("report", night.config, "--out", tmp_path / "report")[0] == 0
    assert len([*(tmp_path / "report" / "flags").glob("*.html")]) == 2 * keep_flags
    if keep_flags:
        assert (code, "Text kept by the scan" in out) == (0, True)
        assert (again[0], "comes out the same" in again[1]) == (0, True)
    else:
        assert (code, again[0], kept(night).height) == (2, 2, 0)
        assert "no scan read a document of that name, or its night was dropped" in out

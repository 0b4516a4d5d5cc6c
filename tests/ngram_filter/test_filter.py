"""Filters of common n-grams through whole scans: learnt on earlier nights, fixed, replayed, refused, resumed."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.scan import outcome_record
from jobs.summary import summary
from scanner import results
from scanner.cluster.scan import run_scan
from scanner.cluster.scan_check import check_scan
from scanner.detection.one_text import TextCheck, check_text
from scanner.errors import Refused, TableError
from scanner.evidence import check_claim
from scanner.evidence.explainer import Explainer
from scanner.evidence.replay import replay
from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard
from scanner.ngram_filter import common_ngrams, follow_up, night_filter, sketches
from scanner.ngram_filter.follow_up import SHARDS_LEARNT, sample_of
from scanner.registry import admit_key, load_registry
from scanner.results.transactions import read_whole
from scanner.scan_plan import make_plan
from scanner.signing import opened_signers
from scanner.storage.locations import table_uri
from schemas.registry import Admission, AuditedFilter
from tests.support.command_line import call
from tests.support.signed_tables import drop_table
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")

FIRST, SECOND, THIRD = date(2026, 11, 20), date(2026, 11, 21), date(2026, 11, 22)
ON = "filter = {}"
TEXTS = 40
SAME = ("key_id", "scored", "score", "log10_p", "log10_p_global", "message", "user_id", "flagged", "proof")
"""Columns that `check` and a scan have in common."""


@pytest.fixture
def nightly(night, monkeypatch):
    """A folder of nights whose texts end with the same signature; sketches are small, since texts are few."""
    monkeypatch.setattr(common_ngrams, "CELLS_OF_A_ROW", 1 << 15)
    night.configure(more=ON, paths=["in/{date}"])
    return night


def write(night, day, name, texts) -> None:
    (night.input / day.isoformat()).mkdir(exist_ok=True)
    night.write(f"{day}/{name}", texts)


def scan(night, day):
    return run_scan(make_plan(night.config, day), lambda work, totals: None)


def signed(plain, first) -> list[str]:
    """Texts of 40 words and a signature of 30."""
    return [plain(40, first + i) + plain(30, 1) for i in range(TEXTS)]


def viral(marked, plain, registry, first) -> list[str]:
    """Texts that hold the same passage of 100 words, which is marked for alice."""
    passage = marked(message_of(registry, "green", "alice"), 100, 7)
    return [plain(20, first + i) + passage for i in range(TEXTS)]


def scored(night) -> pl.Series:
    return night.verdicts()["scored"]


@pytest.mark.costly
def test_what_many_texts_of_earlier_nights_hold_is_left_out(nightly, plain, marked, registry):
    write(nightly, FIRST, "a", signed(plain, 1000))
    assert scan(nightly, FIRST).exit_code == 0
    assert scored(nightly).to_list() == [68] * TEXTS  # nothing was learnt before
    alice = message_of(registry, "green", "alice")
    write(nightly, SECOND, "a", [*signed(plain, 2000), marked(alice, 80, 3) + plain(30, 1)])
    checked = [looked.facts for looked in check_scan(nightly.config, SECOND)]
    assert checked
    assert night_filter.fixed_filter(nightly.results, SECOND) is None  # --check writes nothing
    assert scan(nightly, SECOND).exit_code == 0
    rows = nightly.verdicts().filter(pl.col("path").str.contains(str(SECOND)))
    assert rows["scored"].to_list() == [40] * TEXTS + [80]
    (flag,) = rows.filter("flagged").to_dicts()
    assert (flag["user_id"], flag["proof"]) == ("alice", "proved")
    post = nightly.folder / "post.txt"
    post.write_text(marked(alice, 80, 3) + plain(30, 1))
    found = night_filter.filter_of_config(nightly.config, SECOND)
    check = TextCheck.of_config(nightly.config)
    one = check_text(replace(check, rules=replace(check.rules, ngram_filter=found.open())), post.read_bytes())[0]
    assert {name: one[name] for name in SAME} == {name: flag[name] for name in SAME}
    out = call("check", nightly.config, "--text", post, "--date", SECOND)[1]
    assert out.endswith(f" are left out, by the filter {found.sha256[:12]} of {SECOND}\n")
    assert "the filter" not in call("check", "--registry", nightly.registry, "--text", post)[1]
    assert f"of {FIRST} has no earlier night" in call("check", nightly.config, "--text", post, "--date", FIRST)[1]
    of_scans = results.scans(nightly.results).collect()["filter_sha256"].to_list()
    assert of_scans == [night_filter.fixed_filter(nightly.results, day) for day in (FIRST, SECOND)]
    again = replay(nightly.config, flag["doc_id"])
    assert again.equal, [field for field in again.fields if not field.equal]
    explained = Explainer(nightly.config).explain(flag["doc_id"])
    assert (explained.text_evidence.scored, explained.text_evidence.common) == (80, 28)
    assert explained.text_evidence.score == flag["score"]
    case = nightly.folder / "case"
    assert call("replay", nightly.config, flag["doc_id"], "--proof", case)[0] == 0
    command = [sys.executable, "-I", check_claim.__file__, case, registry / "secrets" / "green.key"]
    said = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=False)
    assert (said.returncode, "NOT CHECKED 28 tokens are left out as common n-grams" in said.stdout) == (3, True), said
    assert "FAILS" not in said.stdout
    with pytest.raises(Refused, match="different audit secret"):
        night_filter.open_filter(nightly.results, of_scans[1], bytes(32))
    drop_table(nightly.results, nightly.registry, night_filter.FILTERS_TABLE)
    with pytest.raises(Refused, match="lacks the filter"):
        replay(nightly.config, flag["doc_id"])
    assert "lacks the filter" in Explainer(nightly.config).explain(flag["doc_id"]).no_evidence
    nightly.configure(paths=["in/{date}"])
    with pytest.raises(Refused, match="another look"):  # without a filter, though the filter is lost
        scan(nightly, SECOND)


@pytest.mark.costly
def test_texts_that_the_filter_made_too_short_have_a_status_of_their_own(nightly, plain, tmp_path):
    """A text with enough n-grams before the filter and too few after it is `filtered`, and counted with its scan."""
    write(nightly, FIRST, "a", signed(plain, 1000))
    write(nightly, SECOND, "a", [*signed(plain, 2000)[:5], *("." * i + plain(30, 1) for i in range(4)), "short", ""])
    scan(nightly, FIRST)
    outcome = scan(nightly, SECOND)
    rows = nightly.verdicts().filter(pl.col("path").str.contains(str(SECOND)))
    assert rows["status"].to_list() == ["scored"] * 5 + ["filtered"] * 4 + ["too_short"] * 2
    assert (rows["scored"][5:9] < 16).all()
    whole = outcome.unread.whole
    assert (whole.documents, whole.filtered, whole.too_short, whole.quarantined) == (11, 4, 2, 0)
    sums = rows["status"].value_counts()["count"].sum()
    assert sums + whole.quarantined == whole.documents == results.nights(nightly.results).collect()["documents"][0]
    assert results.nights(nightly.results).collect()["filtered"].to_list() == [4, 0]
    assert results.scans(nightly.results).collect()["filtered"].to_list() == [0, 4]
    assert "filtered     4 documents: the filter of common n-grams" in summary(outcome, nightly.results, 1e-6)
    assert "too short    2 documents" in summary(outcome, nightly.results, 1e-6)
    assert outcome_record(outcome, make_plan(nightly.config, SECOND))["filtered"] == 4
    assert "11 (4 filtered)" in call("status", nightly.config)[1]
    assert call("report", nightly.config, "--out", tmp_path / "report")[0] == 0
    assert "too few n-grams after the filter: 4." in (tmp_path / "report" / "index.html").read_text()
    again = scan(nightly, SECOND)  # nothing is left to do: the counts come from the tables
    assert again.unread.whole == whole
    (tmp_path / "post.txt").write_text("." + plain(30, 1))
    said = call("check", nightly.config, "--date", SECOND, "--text", tmp_path / "post.txt")[1]
    assert "too short to be scored without its common n-grams" in said


@pytest.mark.costly
def test_a_night_whose_filter_is_lost_is_given_no_other(nightly, plain):
    write(nightly, FIRST, "a", signed(plain, 1000))
    scan(nightly, FIRST)
    write(nightly, SECOND, "a", signed(plain, 2000))
    scan(nightly, SECOND)
    assert results.scans(nightly.results).collect()["night"].to_list() == [str(FIRST), str(SECOND)]
    (lost,) = night_filter.filters_used(nightly.results, SECOND)
    drop_table(nightly.results, nightly.registry, night_filter.FILTERS_TABLE)
    assert sketches.drop_sketches(nightly.results, SECOND)
    write(nightly, SECOND, "b", signed(plain, 3000))
    with pytest.raises(Refused, match=rf"scans of {SECOND} left n-grams out by the filter {lost}, which .* restore"):
        scan(nightly, SECOND)
    assert night_filter.fixed_filter(nightly.results, SECOND) is None


@pytest.mark.costly
def test_no_filter_knows_texts_of_its_own_night(nightly, plain, marked, registry):
    """A marked passage that goes round is left out on the night after, and never on its own night."""
    write(nightly, FIRST, "a", [plain(40, 9)])
    scan(nightly, FIRST)
    write(nightly, SECOND, "a", viral(marked, plain, registry, 3000))
    assert scan(nightly, SECOND).totals.counts.flagged == TEXTS
    fixed = night_filter.fixed_filter(nightly.results, SECOND)
    write(nightly, SECOND, "b", viral(marked, plain, registry, 4000))  # the night's texts have been learnt by now
    assert scan(nightly, SECOND).totals.counts.flagged == TEXTS
    drop_table(nightly.results, nightly.registry, night_filter.FILTERS_TABLE)
    write(nightly, SECOND, "c", viral(marked, plain, registry, 5000))
    assert scan(nightly, SECOND).totals.counts.flagged == TEXTS
    assert night_filter.fixed_filter(nightly.results, SECOND) == fixed
    write(nightly, THIRD, "a", viral(marked, plain, registry, 6000))
    assert scan(nightly, THIRD).totals.counts.flagged == 0
    learnt = read_whole(nightly.results, sketches.SKETCHES_TABLE).select("sample", "night").unique().collect()
    assert sorted(learnt["night"].to_list()) == sorted(map(str, [FIRST, SECOND, SECOND, SECOND, THIRD]))


@pytest.mark.costly
def test_a_filter_learnt_from_tonight_would_lose_what_goes_round(nightly, plain, marked, registry, monkeypatch):
    """The sabotage that the test above catches: a filter is made as if its night were over."""
    write(nightly, SECOND, "a", viral(marked, plain, registry, 3000))
    assert scan(nightly, SECOND).totals.counts.flagged == TEXTS
    before, over = night_filter.sketches_before, THIRD
    monkeypatch.setattr(night_filter, "sketches_before", lambda place, how, _night, key: before(place, how, over, key))
    drop_table(nightly.results, nightly.registry, night_filter.FILTERS_TABLE)
    write(nightly, SECOND, "b", viral(marked, plain, registry, 4000))
    with pytest.raises(Refused, match="gives a different filter"):
        scan(nightly, SECOND)
    # as if `scans` did not say which filter the night had
    monkeypatch.setattr(night_filter, "filters_used", lambda _results, _night: set())
    assert scan(nightly, SECOND).totals.counts.flagged == 0


@pytest.mark.costly
def test_a_second_rule_for_the_same_texts_is_refused(nightly, plain):
    write(nightly, FIRST, "a", signed(plain, 1000))
    scan(nightly, FIRST)
    nightly.configure(paths=["in/{date}"])
    with pytest.raises(Refused, match=r"\[filter\]"):
        scan(nightly, FIRST)
    write(nightly, SECOND, "a", signed(plain, 2000))
    scan(nightly, SECOND)
    nightly.configure(more=ON, paths=["in/{date}"])
    with pytest.raises(Refused, match="another look"):
        scan(nightly, SECOND)


def test_another_rule_after_a_scan_that_was_killed_is_refused(nightly, plain, monkeypatch):
    """A killed scan leaves shards and a filter, and no row of `scans` that says by which rule."""
    write(nightly, FIRST, "a", signed(plain, 1000))
    with monkeypatch.context() as patch:
        patch.setattr("scanner.cluster.scan.append_scan", lambda results, row: None)
        assert scan(nightly, FIRST).totals.counts.documents == TEXTS  # else nothing was read, which nothing refuses
    nightly.configure(paths=["in/{date}"])
    with pytest.raises(Refused, match="another look"):
        scan(nightly, FIRST)


@pytest.mark.costly
def test_several_scans_of_a_night_fill_no_sketch_and_count_no_text_twice(nightly, plain):
    for number in range(3):
        write(nightly, FIRST, f"a{number}", signed(plain, 1000 * number))
        scan(nightly, FIRST)
    rows = read_whole(nightly.results, sketches.SKETCHES_TABLE).collect()
    assert rows["sample"].n_unique() == 3
    found = with_filter_rows(nightly, SECOND)
    assert found.scan_filter.learnt
    assert set(found.scan_filter.learnt.values()) == {3 * TEXTS}
    most = rows.sort("ngrams").group_by("tokenizer_sha256").last()
    for row in most.iter_rows(named=True):
        (common,) = (one["common"] for one in found.rows if one["tokenizer_sha256"] == row["tokenizer_sha256"])
        alone = sketches.read_sketch(nightly.results, row["sample"], row["tokenizer_sha256"], row["reach"])
        assert alone.common(16).tobytes() == common


@pytest.mark.costly
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [("filters", "common", bytes(2 * (1 << 12))), ("filter_sketches", "cells", b"\xff" * (1 << 18))],
)
def test_edited_filters_and_sketches_are_refused(nightly, plain, table, column, value):
    said = f"{table}: its files are not those that brickscan committed"
    write(nightly, FIRST, "a", signed(plain, 1000))
    scan(nightly, FIRST)
    if table == "filters":
        write(nightly, SECOND, "a", signed(plain, 2000))
        scan(nightly, SECOND)
    uri = table_uri(nightly.results, table)
    rows = DeltaTable(uri).to_pyarrow_table()
    at = rows.schema.get_field_index(column)
    write_deltalake(
        uri,
        rows.set_column(at, rows.schema.field(at), pa.array([value] * len(rows), rows.schema.field(at).type)),
        mode="overwrite",
    )
    post = nightly.folder / "post.txt"
    post.write_text(plain(60, 1))
    code, _, err = call("check", nightly.config, "--text", post, "--date", SECOND)
    assert (code, said in err) == (2, True), err
    write(nightly, SECOND, "b", signed(plain, 3000))
    with pytest.raises(TableError, match=said):
        scan(nightly, SECOND)


def test_a_scan_of_a_date_to_come_drops_nothing_that_the_next_nights_need(nightly, plain):
    today = datetime.now(UTC).date()
    for day in (today, today + timedelta(days=1000)):
        write(nightly, day, "a", signed(plain, day.toordinal()))
        scan(nightly, day)
    assert with_filter_rows(nightly, today + timedelta(days=1)).scan_filter.learnt


def with_filter_rows(night, day) -> night_filter.NightFilter:
    found = night_filter.filter_of_config(night.config, day)
    assert found is not None
    return found


def test_a_pass_that_dies_is_made_anew_and_learns_nothing_twice(nightly, plain, monkeypatch):
    write(nightly, FIRST, "a", signed(plain, 1000))
    real = follow_up.commit

    def dies(*_given):
        raise OSError("the disk is gone")

    monkeypatch.setattr(follow_up, "commit", dies)
    with pytest.raises(OSError, match="the disk is gone"):
        scan(nightly, FIRST)
    monkeypatch.setattr(follow_up, "commit", real)
    again = scan(nightly, FIRST)
    assert again.work.skipped == again.work.shard_count
    rows = read_whole(nightly.results, sketches.SKETCHES_TABLE).collect()
    assert rows["texts"].unique().to_list() == [TEXTS]
    scan(nightly, FIRST)
    assert read_whole(nightly.results, sketches.SKETCHES_TABLE).collect().equals(rows)
    assert sketches.drop_sketches(nightly.results, FIRST) == 0
    assert sketches.drop_sketches(nightly.results, SECOND) == len(rows)


@pytest.mark.parametrize(("texts", "learnt", "lacking"), [(16, TEXTS, None), (16, TEXTS + 1, "learnt from 40 texts"),
                                                          (8, TEXTS, "n-grams of 16 texts")])  # fmt: skip
def test_a_key_that_was_admitted_with_a_filter_needs_one_that_leaves_out_as_much(
    nightly, own_registry, plain, texts, learnt, lacking
):
    with_filter = AuditedFilter(texts=texts, learnt=learnt, sha256="0" * 64)
    for key in load_registry(own_registry).keys:
        about = {"holds_down_to": 1e-9, "candidates": 1, "messages": key.messages, "filter": with_filter}
        admit_key(own_registry, key.key_id, Admission(audit_id="a", audited_at=datetime.now(UTC), **about))
    required = {"audit": "require_admission = true", "paths": ["in/{date}"]}
    nightly.configure(**required)
    with pytest.raises(Refused, match=r"key 'green' passed an audit that left out .* it has no filter; set `filter`"):
        make_plan(nightly.config, FIRST)
    write(nightly, FIRST, "a", signed(plain, 1000))
    nightly.configure(more=ON, **required)
    if texts == 16:
        with pytest.raises(Refused, match=r"its filter was learnt from 0 texts, the audit's filter from"):
            scan(nightly, FIRST)
        assert night_filter.fixed_filter(nightly.results, FIRST) is None
    nightly.configure(more=ON, paths=["in/{date}"])
    assert scan(nightly, FIRST).exit_code == 0
    nightly.configure(more=ON, **required)
    if lacking is None:
        make_plan(nightly.config, SECOND)
        assert with_filter_of(nightly, SECOND)
        return
    with pytest.raises(Refused, match=lacking):
        with_filter_of(nightly, SECOND)


def test_a_key_whose_admission_the_filter_of_another_driver_does_not_support_is_refused(
    nightly, own_registry, plain, monkeypatch
):
    """Two drivers make a night's filter at once; the other, which knew no earlier night yet, is first."""
    write(nightly, FIRST, "a", signed(plain, 1000))
    scan(nightly, FIRST)
    with_filter = AuditedFilter(texts=16, learnt=TEXTS, sha256="0" * 64)
    for key in load_registry(own_registry).keys:
        about = {"holds_down_to": 1e-9, "candidates": 1, "messages": key.messages, "filter": with_filter}
        admit_key(own_registry, key.key_id, Admission(audit_id="a", audited_at=datetime.now(UTC), **about))
    write(nightly, SECOND, "a", signed(plain, 2000))
    ours, plan = night_filter.commit, make_plan(nightly.config, SECOND)

    def another_is_first(*given):
        with monkeypatch.context() as earlier:
            earlier.setattr(night_filter, "commit", ours)
            earlier.setattr(night_filter, "sketches_before", lambda *_: iter(()))
            night_filter.with_filter(plan, "another")
        ours(*given)

    monkeypatch.setattr(night_filter, "commit", another_is_first)
    nightly.configure(more=ON, audit="require_admission = true", paths=["in/{date}"])
    with pytest.raises(Refused, match="learnt from 0 texts, the audit's filter from"):
        scan(nightly, SECOND)


def with_filter_of(night, day) -> str | None:
    return night_filter.with_filter(make_plan(night.config, day), None).filter_sha256


@pytest.mark.parametrize(("first", "then"), [("", 'account = "who"'), ('account = "who"', "")])
def test_texts_that_were_counted_are_never_taken_for_accounts(nightly, plain, first, then):
    """One account's texts would be common for a week after [input] names the accounts, or admissions ask for less."""
    (nightly.input / str(FIRST)).mkdir()
    nightly.write(f"{FIRST}/a", signed(plain, 1000), who=["bob"] * TEXTS)
    nightly.configure(more=ON, columns=first, paths=["in/{date}"])
    scan(nightly, FIRST)
    assert set(with_filter_rows(nightly, SECOND).scan_filter.learnt.values()) == {TEXTS}
    nightly.configure(more=ON, columns=then, paths=["in/{date}"])
    assert with_filter_rows(nightly, SECOND).is_empty


@pytest.mark.parametrize("columns", ["", 'account = "who"'])
def test_copies_of_a_text_are_one_text_that_a_filter_was_learnt_from(nightly, plain, columns):
    """Admissions ask from how many texts: a night of one template, sent again and again, teaches no more than one."""
    nightly.configure(more=ON, columns=columns, paths=["in/{date}"])
    (nightly.input / str(FIRST)).mkdir()
    texts = [*signed(plain, 1000)[:5], *[plain(60, 1)] * TEXTS]
    nightly.write(f"{FIRST}/a", texts, who=[f"account {i}" for i in range(len(texts))])
    nightly.write(f"{FIRST}/b", texts, who=["another"] * len(texts))
    scan(nightly, FIRST)
    assert set(with_filter_rows(nightly, SECOND).scan_filter.learnt.values()) == {6}


@pytest.mark.costly
@pytest.mark.parametrize(
    ("table", "damage"),
    [("filters", Path.unlink), ("filter_sketches", lambda file: file.write_bytes(file.read_bytes()[:-99]))],
)
def test_damaged_filters_and_sketches_end_commands_in_a_sentence(nightly, plain, marked, registry, table, damage):
    write(nightly, FIRST, "a", signed(plain, 1000))
    scan(nightly, FIRST)
    commands = [("scan", nightly.config, "--date", SECOND, "--check"), ("scan", nightly.config, "--date", SECOND)]
    if table == "filters":
        write(nightly, SECOND, "a", [marked(message_of(registry, "green", "alice"), 80, 3)])
        scan(nightly, SECOND)
        (flag,) = nightly.verdicts().filter("flagged")["doc_id"]
        commands += [("replay", nightly.config, flag), ("explain", nightly.config, flag)]
        commands += [("report", nightly.config, "--out", nightly.folder / "report")]
    for file in Path(nightly.results, table).glob("*.parquet"):
        damage(file)
    write(nightly, SECOND, "b", signed(plain, 2000))
    for command in commands:
        code, out, err = call(*command)
        assert "Traceback" not in err
        assert code in (1, 2) or command[0] in ("explain", "report"), command
        pages = "".join(page.read_text() for page in (nightly.folder / "report").rglob("*.html"))
        said = " ".join((out + err + pages).split())
        assert "cannot be read" in said or "its content is not what brickscan wrote" in said, (command, out, err)


def test_a_lesson_is_a_sample_of_bounded_size(nightly):
    plan = make_plan(nightly.config, FIRST)
    file = InputFile("/in/a.parquet", "/in", "/in/a.parquet", 10**12, 1)
    shards = [Shard(str(i), file, Range(i, i + 1, 10**8)) for i in range(1000)]
    sample = sample_of(plan, shards)
    assert (len(sample.shards), sample.most) == (SHARDS_LEARNT, (1 << 25) // 7)
    assert sample.share == pytest.approx(sample.most * 4 / (SHARDS_LEARNT * 10**8))
    twice = [Shard(f"other {i}", file, shard.rows, keys=("k",)) for i, shard in enumerate(shards)]
    assert sample_of(plan, [*twice, *shards]).name == sample.name  # keys that came later bring no new texts
    assert sample_of(make_plan(nightly.config, SECOND), shards).name != sample.name
    assert sample_of(plan, []) is None


def test_nights_must_be_told_by_their_date(night):
    night.configure(more=ON, paths=["in"])
    with pytest.raises(Refused, match=r"filter needs \{date\} in each of input.paths"):
        make_plan(night.config, FIRST)


@pytest.mark.costly
def test_filters_outlive_the_audit_secret_that_they_were_made_under(nightly, own_registry, plain, marked):
    """The registry goes on to name it: the same night is scanned again, and a flag of it replayed."""
    nightly.configure(more=ON, paths=["in/{date}"])
    write(nightly, FIRST, "a", signed(plain, 1000))
    assert scan(nightly, FIRST).exit_code == 0
    alice = message_of(own_registry, "green", "alice")
    write(nightly, SECOND, "a", [*signed(plain, 2000), marked(alice, 80, 3) + plain(30, 1)])
    assert scan(nightly, SECOND).exit_code == 0
    (flag,) = nightly.verdicts().filter("flagged").to_dicts()
    first = load_registry(own_registry).audit_secret
    for number in range(2):
        opened_signers._signers.clear()
        secret = f"file:secrets/new-{number}.secret"
        assert call("keys", "audit-secret", "--registry", own_registry, "--secret", secret)[0] == 0
        registry = load_registry(own_registry)
        assert (registry.audit_secret, registry.lasting_secret) == (secret, first)
    opened_signers._signers.clear()
    code, _, err = call("replay", nightly.config, flag["doc_id"])
    assert code == 0, err
    write(nightly, SECOND, "b", signed(plain, 3000))
    assert scan(nightly, SECOND).exit_code == 0
    assert call("keys", "audit-secret", "--registry", own_registry, "--secret", first)[0] == 0
    assert load_registry(own_registry).lasting_secret is None

"""The audit of whole scans: exit code, sentence, tables and flags, over a killed and a resumed night."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cli import brickscan, run
from jobs.summary import ALARMS_SHOWN, summary
from scanner import results
from scanner.cluster.pieces import Busy, Piece, Report
from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.cluster.worker import Worker
from scanner.errors import Refused
from scanner.registry import admit_key, load_registry, new_key, read_secret, set_audit_secret
from scanner.scan_plan import make_plan
from scanner.watermark import rule
from scanner.watermark.laws import Normal
from schemas.registry import Admission
from tests.fixed import fix_secrets
from tests.support.command_line import call
from tests.support.demo_texts import DEMO
from tests.support.signed_tables import drop_table

CONFIG = """\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 0.3
[input]
paths = ["in"]
id = "doc_id"
[audit]
share = 1.0
family_error = 1e-6
"""


class WithZTest(Worker):
    """A worker whose p-values are those of the Z-test."""

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rule, "log10_p_of", lambda law, score, scored: Normal(law).log10_p(score, scored))
            yield from super().scan(piece)


class Stopped(Exception):
    """Raised where the driver is to die."""


pytestmark = pytest.mark.usefixtures("without_ray", "opened_once")


@pytest.fixture
def config(tmp_path) -> Path:
    fix_secrets(tmp_path / "registry", "k1")
    new_key(
        tmp_path / "registry", "k1", format="greenlist", window=4, gamma="1/4", messages=100,
        tokenizer=DEMO / "tokenizer.json",
    )  # fmt: skip
    (tmp_path / "in").mkdir()
    path = tmp_path / "scan.toml"
    path.write_text(CONFIG)
    return path


def write(config: Path, name: str, texts: list[str] | list[bytes]) -> None:
    table = pa.table({"text": texts, "doc_id": [f"{name}:{i}" for i in range(len(texts))]})
    pq.write_table(table, config.parent / "in" / f"{name}.parquet")


def short(texts: list[str], most: int) -> list[str]:
    words = " ".join(texts).split()
    return [" ".join(words[i : i + 25]) for i in range(0, len(words) - 25, 8)][:most]


def told(outcome: ScanOutcome, config: Path) -> str:
    return summary(outcome, str(config.parent / "results"), 0.3)


@pytest.mark.costly
def test_a_broken_law_ends_with_code_3_a_sentence_and_a_state_beside_every_flag(config, human_texts):
    write(config, "a", short(human_texts, 9000))
    plan = make_plan(config)
    outcome = run_scan(plan, lambda work, totals: None, worker=WithZTest)
    assert outcome.exit_code == 3
    summed_up = told(outcome, config)
    assert summed_up.startswith("USE NO FLAG OF THIS SCAN. A slower method computed ")
    assert "false flags" not in summed_up
    assert summed_up.count("AUDIT ALARM") <= ALARMS_SHOWN + 1
    last = results.scans(plan.results).collect().row(-1, named=True)
    assert (last["exit_code"], last["audit"], last["audited_scans"]) == (3, "alarm", [outcome.scan_id])
    rows = results.audits(plan.results).filter(pl.col("audit_id") == outcome.scan_id).collect()
    assert "too small" in rows.filter(pl.col("kind") == "decoy_best")["verdict"].to_list()
    assert results.verdicts(plan.results).collect().height == 9000  # an alarm removes no verdicts
    assert set(results.flagged(plan.results).collect()["audit"]) == {"alarm"}
    out = call("flagged", config, "--limit", 2)[1]
    first, second, _, *lines = out.splitlines()
    assert first.startswith("AUDIT ALARM")
    assert "Use no flag of this scan. A slower method computed" in second
    assert [line.count(" alarm ") for line in lines[:2]] == [1, 1]
    assert "false flags:" not in out
    assert "Use no flag of this scan. A slower method computed" in call("status", config)[1]
    assert call("report", config, "--out", config.parent / "pages")[0] == 0
    page = (config.parent / "pages" / "index.html").read_text()
    assert page.index("Use no flag of this scan. A slower method computed") < page.index("documents read")
    assert "false flags:" not in page
    assert "too few decoys" not in page
    pages = list((config.parent / "pages").glob("flags*/*.html")) + list((config.parent / "pages").glob("flags-*.html"))
    assert len(pages) > 2
    assert all("Use no flag of this scan. A slower method computed" in path.read_text() for path in pages)
    assert not any("Chance in a night of this size" in path.read_text() for path in pages)

    # a later file, scanned rightly, is of the same input, so that it is judged together with the broken one
    write(config, "b", short(human_texts, 100))
    again = run_scan(make_plan(config), lambda work, totals: None)
    assert again.exit_code == 3


@pytest.mark.costly
def test_a_resumed_night_is_judged_as_a_whole_and_counts_each_shard_once(config, human_texts):
    for name in "abcd":
        write(config, name, [f"{name} {text}" for text in short(human_texts, 40)])
    plan = make_plan(config)

    def stop_after_a_commit(work, totals) -> None:
        if totals.shards:
            raise Stopped

    with pytest.raises(Stopped):
        run_scan(plan, stop_after_a_commit)
    first = results.scans(plan.results).collect().row(-1, named=True)
    assert (first["audit"], first["exit_code"]) == ("not judged", 1)
    before = results.audit_counts(plan.results).collect()
    assert 0 < before["shard_id"].n_unique() < 4

    outcome = run_scan(plan, lambda work, totals: None)
    assert outcome.exit_code == 0
    counts = results.audit_counts(plan.results).collect()
    assert counts["shard_id"].n_unique() == 4
    assert counts.select("shard_id", "kind", "threshold", "stratum", "text").is_duplicated().sum() == 0
    last = results.scans(plan.results).collect().row(-1, named=True)
    assert set(last["audited_scans"]) == {first["scan_id"], outcome.scan_id}
    tests = {row["kind"]: row["tests"] for row in outcome.audit.rows}
    assert tests["decoy_best"] == outcome.audit.traffic.texts == 160
    assert set(results.flagged(plan.results).collect()["audit"]) == {"no alarm"}

    nothing_new = run_scan(plan, lambda work, totals: None)
    assert nothing_new.audit.state == "no alarm"
    assert {row["kind"]: row["tests"] for row in nothing_new.audit.rows} == tests


@pytest.mark.costly
def test_who_scans_a_part_of_what_an_interrupted_scan_committed_judges_all_of_that(config, human_texts):
    for name in "abc":
        write(config, name, [f"{name} {text}" for text in short(human_texts, 40)])

    def stop_before_the_audit(work, totals) -> None:
        if totals.shards == work.shard_count:
            raise Stopped

    with pytest.raises(Stopped):
        run_scan(make_plan(config), stop_before_the_audit)
    config.write_text(CONFIG.replace('"in"', '"in/a.parquet"'))
    part = make_plan(config)
    outcome = run_scan(part, lambda work, totals: None)
    assert outcome.work.skipped == outcome.work.shard_count == 1
    assert outcome.audit.traffic.texts == 120
    assert {row["tests"] for row in outcome.audit.rows if row["kind"] == "decoy_best"} == {120}
    assert set(results.flagged(part.results).collect()["audit"]) == {"no alarm"}
    write(config, "d", short(human_texts, 40))
    config.write_text(CONFIG.replace('"in"', '"in/d.parquet"'))
    assert run_scan(make_plan(config), lambda work, totals: None).audit.traffic.texts == 40  # of one file alone


@pytest.mark.costly
def test_counts_that_a_dead_driver_left_are_replaced(config, human_texts):
    write(config, "a", short(human_texts, 40))
    plan = make_plan(config)
    run_scan(plan, lambda work, totals: None)
    whole = results.audit_counts(plan.results).collect()
    drop_table(plan.results, plan.registry, "verdicts")  # as if the driver had died before it committed verdicts
    again = run_scan(plan, lambda work, totals: None)
    counts = results.audit_counts(plan.results).collect()
    assert set(counts["scan_id"]) == {again.scan_id}
    columns = ["kind", "stratum", "threshold", "tests", "hits"]
    assert counts.select(columns).sort(columns).equals(whole.select(columns).sort(columns))


def test_texts_that_are_scored_in_part_count_as_any_others(config, human_texts):
    texts = [text.encode() for text in short(human_texts, 20)]
    write(config, "a", [b"\xff" + texts[0], *texts[1:]])
    plan = make_plan(config)
    outcome = run_scan(plan, lambda work, totals: None)
    assert outcome.totals.counts.scored_in_part == results.scans(plan.results).collect()["scored_in_part"].item() == 1
    assert outcome.audit.traffic.texts == 20
    assert re.search(r"^in part +1 document: invalid bytes were replaced", told(outcome, config), re.MULTILINE)


def test_the_audit_secret_is_rotated_between_two_scans(config, human_texts, capsys):
    """Counts under the old secret stay valid, though the old secret is gone; nothing is scanned again.

    The first one is kept, which a second change tells of.
    """
    registry = config.parent / "registry"
    set_audit_secret(registry, "file:secrets/second.secret")
    write(config, "a", short(human_texts, 40))
    first = run_scan(make_plan(config), lambda work, totals: None)
    old = read_secret(load_registry(registry).audit_secret, registry)
    code = run(brickscan, ["keys", "audit-secret", "--registry", str(registry), "--secret", "file:secrets/next.secret"])
    assert code == 0
    assert "keep file:secrets/decoys.secret" in capsys.readouterr().out
    (registry / "secrets" / "second.secret").unlink()
    assert read_secret(load_registry(registry).audit_secret, registry) != old
    write(config, "b", short(human_texts[40:], 40))
    second = run_scan(make_plan(config), lambda work, totals: None)
    assert (first.audit.state, second.audit.state) == ("no alarm", "no alarm")
    assert (second.work.shard_count, second.work.skipped) == (2, 1)

    def decoys(outcome: ScanOutcome) -> int:
        return max(row["tests"] for row in outcome.audit.rows if row["kind"] == "decoy_best")

    assert decoys(first) == 40
    assert decoys(second) == 80


def test_a_scan_records_which_keys_were_never_admitted(config, human_texts):
    write(config, "a", short(human_texts, 20))
    plan = make_plan(config)
    outcome = run_scan(plan, lambda work, totals: None)
    (key,) = results.scans(plan.results).collect()["keys"][0]
    assert key["admitted_by"] is None
    assert outcome.audit.unadmitted == ("k1",)
    assert "nothing needs your attention" in told(outcome, config)  # its law is exact
    config.write_text(CONFIG + "require_admission = true\n")
    with pytest.raises(
        Refused, match=r"audit\.require_admission: key 'k1' has never passed an audit with its 100 messages"
    ):
        make_plan(config)
    config.write_text(config.read_text().replace("false_positive_rate = 0.3", "false_positive_rate = 1e-3"))
    for held, admitted in ((0.1, False), (0.0011, False), (1e-3, True), (1e-6, True)):
        passed = Admission(audit_id="a", audited_at=datetime.now(UTC), holds_down_to=held, candidates=1, messages=100)
        admit_key(config.parent / "registry", "k1", passed)
        if admitted:
            assert make_plan(config).keys[0].admitted_by == "a"
            continue
        with pytest.raises(Refused, match=rf"known to hold down to {held:g}, not to false_positive_rate = 0\.001"):
            make_plan(config)

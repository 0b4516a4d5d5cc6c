"""The audit of a scan, by the worker's own code without Ray: it holds on real text, and every sabotage is caught."""

import dataclasses
import hashlib
import re
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from jobs import summary
from scanner import results
from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, critical_scores
from scanner.cluster.pieces import Piece
from scanner.cluster.worker import Worker
from scanner.controls.canaries.canary_counts import CANARY_WORDS
from scanner.controls.controls import CONTROLS
from scanner.controls.decoys.draws import entropy_of, kind_of, open_decoys, share_of
from scanner.controls.reserved.expectation import single_p
from scanner.controls.scan_audit import ScanAudit
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.errors import Refused
from scanner.registry import load_registry, set_audit_secret
from scanner.results.transactions import TableEntry, commit
from scanner.scan_plan import make_plan
from scanner.storage.data_files import SCHEMAS
from scanner.watermark import GreenList, Tokens, log10_any_of, log10_greenlist, log10_gumbel, rule, scored_positions
from scanner.watermark.laws import Normal
from scanner.watermark.native.format import GreenListFormat
from scanner.watermark.positions import WholeWindows
from schemas.audit import AUDIT_COUNTS
from schemas.registry import reserved_count
from schemas.tables import DOCUMENTS
from tests.support.audited_scan import Key, make, pieces, scan, shards_of
from tests.support.demo_texts import DEMO, sample_texts
from tests.watermark.pairs import law_of


def alarming(audit: ScanAudit) -> set[str]:
    return {row["kind"] for row in audit.rows if row["verdict"] == "too small"}


@pytest.mark.costly
def test_real_text_raises_no_alarm(tmp_path, human_texts):
    """Decoys are drawn anew in every run, so that the test fails by chance once in a million runs at most."""
    plan = make(tmp_path, [*human_texts, *human_texts], Key(1000), Key(50, 1, "gumbel"))
    audit = scan(plan)
    assert audit.state == "no alarm"
    assert audit.traffic.texts <= len(human_texts)  # copies count as one text; the shortest texts are not scored
    assert audit.traffic.texts > 0.9 * len(human_texts)
    kinds = {row["kind"]: row for row in audit.rows}
    assert kinds.keys() == {kind for control in CONTROLS for kind in control.kinds} - {
        *CANARY_WORDS,
        "decision_whole",  # only where parts are tested or texts normalised
        "decision_normalised",  # only where texts are normalised
        "decoy_own",  # only for keys with groups
        *("decoy", "decoy_length", "decoy_host"),  # only for keys of one message
        "decoy_spans",  # only where parts of texts are tested
        *("decoy_accounts", "decision_accounts", "reserved_accounts"),  # only where accounts are tested
        "decoy_levels",  # only where a model reads texts
    }
    tests = {(row["kind"], row["method"]): row["tests"] for row in audit.rows}
    # copies in one shard meet the same decoy
    assert tests["decoy_best", "greenlist"] == tests["decoy_best", "gumbel"] == audit.traffic.texts
    assert tests["decoy_all", "greenlist"] == 1000 * audit.traffic.texts
    assert "too few to measure" in "".join(summary.table(audit))
    rows = pa.Table.from_pylist(list(audit.rows), SCHEMAS["audits"])
    assert not any(rows[field.name].null_count for field in rows.schema if not field.nullable)


def test_counts_are_those_of_scoring_each_text_alone(tmp_path, human_texts):
    """Against a loop over documents, which uses the code under test for the seeds alone."""
    texts = human_texts[:40]
    plan = make(tmp_path, texts, Key(100, 2), Key(1, 2))
    audit = scan(plan)
    decoys, (key, single), (shard,) = open_decoys(plan), load_registry(tmp_path / "registry").keys, shards_of(plan)
    seen: list[KeyPositions] = []

    class Keep:
        def observe(self, digests, batch, _text_of) -> None:
            seen.extend(batch)
            self.digests = digests

    worker, keep = Worker(plan, "again"), Keep()
    batch = pa.RecordBatch.from_pylist([{"row": i, "text": text.encode()} for i, text in enumerate(texts)], DOCUMENTS)
    worker.scoring.detector.score_batch(batch, BatchOrigin("scan", shard.shard_id, "path"), keep)
    hits, expected = ([np.zeros(len(alpha)) for alpha in (THRESHOLDS, THRESHOLDS, DEEP_THRESHOLDS)] for _ in range(2))
    for place, document in enumerate(seen[0].documents):
        piece = f"{shard.shard_id};0;".encode()
        assert [*decoys.drawn(piece, [keep.digests[document]])] == [(0, 0, True)]
        seed = decoys.seed(piece, keep.digests[document])
        mark, mark_of_one = (
            GreenListFormat(window=2, gamma="1/4").open(entropy_of(kind_of(of), of.messages, seed))
            for of in (key, single)
        )
        scored = int(seen[0].positions.scored[place])
        ids = seen[0].tokens.ids[seen[0].tokens.offsets[document] : seen[0].tokens.offsets[document + 1]]
        alone = Tokens(ids, np.array([0, len(ids)]))
        positions = scored_positions(alone, 2, "ngram")
        scores = [int(mark.score(alone, positions, m)[0]) for m in range(100)]
        p = float(log10_greenlist(int(mark_of_one.score(alone, positions, 0)[0]), scored, QUARTER))
        best = 1 - (1 - 10 ** float(log10_greenlist(max(scores), scored, QUARTER))) ** 100
        each = 10 ** log10_greenlist(scores, scored, QUARTER)
        hits[2] += (each[:, None] <= np.array(DEEP_THRESHOLDS)).sum(axis=0)
        expected[2] += 100 * critical_scores(law_of(QUARTER), [scored], DEEP_THRESHOLDS, 1).chance[0]
        for kind, value, messages in ((0, 10**p, 1), (1, best, 100)):
            hits[kind] += value <= np.array(THRESHOLDS)
            expected[kind] += critical_scores(law_of(QUARTER), [scored], THRESHOLDS, messages).chance[0]
    for kind, name in enumerate(("decoy", "decoy_best", "decoy_all")):
        rows = [row for row in audit.rows if row["kind"] == name]
        assert [row["hits"] for row in rows] == hits[kind].tolist()
        assert [row["expected"] for row in rows] == pytest.approx(expected[kind])


def test_the_same_shard_draws_the_same_decoys_and_another_shard_others(tmp_path, human_texts):
    plan = make(tmp_path, human_texts[:200], Key(1))
    scan(plan, "first")
    counts = results.audit_counts(plan.results).collect()
    assert set(counts["scan_id"]) == {"first"}
    again = Worker(plan, "second")
    (shard,) = shards_of(plan)
    *_, report = again.scan(Piece(shard, 0, 200))
    files = report.files["audit_counts"]
    assert commit(plan.results, "audit_counts", [TableEntry(shard.shard_id, files)]) == set()
    same = pl.read_parquet(f"{plan.results}/audit_counts/{files[0].name}")
    columns = ["kind", "stratum", "threshold", "tests", "hits", "expected"]
    assert counts.select(columns).sort(columns).equals(same.select(columns).sort(columns))
    decoys = open_decoys(plan)
    seeds = {decoys.seed(piece, bytes(32)) for piece in (b"a;0;", b"b;0;", b"a;100;")}
    assert len(seeds) == 3
    assert same.columns == AUDIT_COUNTS.names


def test_keys_that_differ_in_their_messages_alone_draw_decoys_of_their_own(tmp_path, human_texts):
    """With the same decoy, every hit of the smaller key would be one of the larger key's, counted twice."""
    texts = human_texts[:30]
    plan = make(tmp_path, texts, Key(1000), Key(2000))
    audit = scan(plan)
    decoys = open_decoys(plan)
    first, second = plan.keys
    seed = decoys.seed(b"piece", bytes(32))
    of_both = [entropy_of(kind_of(key), key.messages, seed) for key in (first, second)]
    assert of_both[0] != of_both[1]
    each = [row for row in audit.rows if row["kind"] == "decoy_all" and row["threshold"] == THRESHOLDS[0]]
    assert [(row["clusters"], row["tests"]) for row in each] == [(2 * audit.traffic.texts, 3000 * audit.traffic.texts)]
    said = "\n".join(summary.table(audit))
    assert "decoys, best message, greenlist;h=4;gamma=1/4, 1,000 messages: " in said
    assert "decoys, best message, greenlist;h=4;gamma=1/4, 2,000 messages: " in said


def test_a_share_of_the_texts_is_drawn(tmp_path, human_texts):
    plan = make(tmp_path, ["some text"], Key(1), Key(2), Key(1, 2), share=0.125)
    decoys = open_decoys(plan)
    digests = [hashlib.sha256(str(i).encode()).digest() for i in range(20_000)]
    drawn = {piece: [*decoys.drawn(piece, digests)] for piece in (b"a;0;", b"b;0;")}
    for piece in drawn:
        assert {kind for _, kind, _ in drawn[piece]} == {0, 1}  # the first two keys are of one kind
        for kind in (0, 1):
            assert abs(sum(other == kind for _, other, _ in drawn[piece]) - 1250) < 5 * 35  # five standard deviations
        assert abs(sum(every for *_, every in drawn[piece]) - 2500) < 5 * 47
    both = {d for d, *_ in drawn[b"a;0;"]} & {d for d, *_ in drawn[b"b;0;"]}
    assert abs(len(both) - 20_000 / 64) < 5 * 18  # pieces draw independently of each other


def test_of_a_small_night_enough_are_drawn_where_there_are_so_many(tmp_path):
    """The configured share is drawn where it is more, and nothing where it is 0."""
    for documents, share in ((None, 0.02), (1, 1.0), (50_000, 1.0), (200_000, 0.25), (2_500_000, 0.02), (10**9, 0.02)):
        assert share_of(0.02, 50_000, documents) == share
        assert share_of(0.0, 50_000, documents) == 0
    digests = [hashlib.sha256(str(i).encode()).digest() for i in range(20_000)]
    made = make(tmp_path, ["some text"], Key(1), share=0.02)
    for documents, one, of_all in ((200_000, 5000, 400), (5000, 20_000, 2000)):
        drawn = [*open_decoys(dataclasses.replace(made, documents=documents)).drawn(b"a;0;", digests)]
        assert abs(sum(kind >= 0 for _, kind, _ in drawn) - one) < 5 * 61  # five standard deviations
        assert abs(sum(every for *_, every in drawn) - of_all) < 5 * 43  # 500 of 5,000 at least under all messages


def test_without_a_share_there_are_no_decoys_and_without_a_secret_no_scan(tmp_path, human_texts):
    plan = make(tmp_path, human_texts[:50], Key(100), share=0.0)
    audit = scan(plan)
    assert audit.state == "no decoys"
    assert "no document was scored under decoy keys" in summary.verdict_in_words(audit)
    file = tmp_path / "registry" / "keys.toml"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "audit_secret" not in line))
    config = tmp_path / "scan.toml"
    config.write_text(config.read_text().replace("share = 0.0", "share = 1.0"))
    with pytest.raises(
        Refused, match=r"no audit secret.*make it with `brickscan keys audit-secret --registry "
    ) as told:
        make_plan(config)
    assert str(tmp_path / "registry") in str(told.value)
    set_audit_secret(tmp_path / "registry")
    assert open_decoys(make_plan(config)) is not None


def test_reserved_messages_are_expected_as_often_as_brute_force_finds_them(tmp_path, human):
    """P(best message reserved and p ≤ α) is at most the expectation, and close to it where scores are continuous."""
    count, texts = 40, 4000
    scores = np.random.default_rng(3).gamma(64, size=(texts, count))  # Gumbel's law at T = 64
    best = scores.argmax(axis=1)
    p = 10 ** log10_any_of(log10_gumbel(scores.max(axis=1), np.full(texts, 64)), count)
    reserved = best % 20 == 19
    for alpha in (0.5, 0.1, 0.01):
        expected = texts * reserved_count(count) * single_p([alpha], count, 1)[0]
        found = (reserved & (p <= alpha)).sum()
        assert abs(found - texts * alpha / 20) < 4 * np.sqrt(texts * alpha / 20)
        assert texts * alpha / 20 < expected < texts * alpha / 20 * 1.4


@pytest.mark.costly
def test_marked_text_is_told_from_a_broken_law(tmp_path, human_texts):
    """One text in 100 is marked: its key flags it, decoys and reserved messages stay where they should."""
    secret = tmp_path / "seen.key"
    secret.touch(mode=0o600)
    secret.write_bytes((DEMO / "secrets" / "demo-paper.key").read_bytes())
    texts = pieces(human_texts, 60, 990)
    plan = make(
        tmp_path, [*texts, *sample_texts("marked", "demo-paper")[:40]], Key(100_000, secret=f"file:{secret}"), share=0.2
    )
    audit = scan(plan)
    assert audit.traffic.flagged >= 10
    assert audit.state == "no alarm"
    assert audit.traffic.reserved == 0
    by_chance = audit.traffic.texts * plan.config.false_positive_rate
    assert audit.expected_false == (by_chance, audit.traffic.flagged, 0, by_chance)


SHORT, QUARTER = 25, Fraction(1, 4)


def sabotaged(tmp_path, human_texts, key, words=SHORT, most=9000, more=""):
    """The audit of a sabotaged scan, with decoys and without."""
    texts = pieces(human_texts, words, most, 8) if words else human_texts
    with_audit = scan(make(tmp_path / "on", texts, key, more=more))
    assert with_audit.alarms()
    without = scan(make(tmp_path / "off", texts, key, share=0.0, more=more))
    assert not {kind for kind in alarming(without) if kind.startswith("decoy")}
    return with_audit, without


def test_dedup_switched_off_is_caught(tmp_path, human_texts, monkeypatch):
    every = lambda rule, tokens, _: scored_positions(tokens, rule.window, "none")  # noqa: E731
    monkeypatch.setattr(WholeWindows, "positions", every)
    audit, without = sabotaged(tmp_path, human_texts, Key(1, 0), words=0)
    assert (audit.state, without.state) == ("alarm", "no decoys")
    assert "decoy" in alarming(audit)
    said = audit.alarms()
    assert re.match(r"p-values are too small for decoys: \d+ of [\d,]+ tests reached p = 0\.\d+, ", said[0])
    assert said[0].endswith("Test: decoy greenlist;h=0;gamma=1/4 ngram")
    assert audit.advice.startswith("Use no flag of this scan. Decoy keys, which never marked anything, hit too often")


@pytest.mark.costly
def test_a_z_test_is_caught(tmp_path, human_texts, monkeypatch):
    monkeypatch.setattr(rule, "log10_p_of", lambda law, s, t: Normal(law).log10_p(s, t))
    audit, without = sabotaged(tmp_path, human_texts, Key(1))
    assert (audit.state, without.state) == ("alarm", "no decoys")
    assert "decoy" in alarming(audit)


def test_the_correction_for_messages_left_out_is_caught(tmp_path, human_texts, monkeypatch):
    monkeypatch.setattr(rule, "log10_any_of", lambda p, *_: p)
    audit, without = sabotaged(tmp_path, human_texts, Key(500), most=1000)
    assert alarming(audit) == {"decision", "decoy_best", "reserved"}
    assert alarming(without) == {"reserved"}  # reserved messages need no decoys
    assert "too few decoys to tell whether the p-values or the key are at fault" in without.advice


def test_a_key_that_meets_this_traffic_too_often_is_told_from_a_broken_law(tmp_path, human_texts, monkeypatch):
    """The production key alone is wrong: reserved messages hit, decoys do not."""
    plan = make(tmp_path, pieces(human_texts, SHORT, 1000), Key(500))
    plain, production = GreenList.best_two, bytes.fromhex(plan.keys[0].commitment)

    def tuned(self, tokens, positions, count):
        best = plain(self, tokens, positions, count)
        return best._replace(score=best.score + 5 * (self.commitment == production))

    monkeypatch.setattr(GreenList, "best_two", tuned)
    audit = scan(plan)
    assert alarming(audit) == {"reserved"}
    assert "Decoys are as expected" in audit.advice
    assert audit.alarms()[0].startswith("p-values are too small for reserved messages of key k0: ")

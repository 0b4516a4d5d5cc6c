"""Canaries: counts against plain loops, how surely a loss is seen, and sabotage by each cause of a loss."""

import hashlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from scanner import results
from scanner.audit.statistics.audit_rows import Audit
from scanner.cluster.scan import ExitCode, exit_code_of, worse_of
from scanner.controls.canaries.canary_counts import (
    CANARY_WORDS,
    CanaryCounts,
    CanaryTargets,
    canaries_lost,
    count_canaries,
    judge_canaries,
    planned_of,
)
from scanner.controls.controls import FAMILIES
from scanner.controls.scan_audit import ScanAudit
from scanner.detection import attribution
from scanner.detection.one_text import canary_strength
from scanner.errors import Refused
from scanner.registry import (
    add_users,
    list_users,
    load_registry,
    make_canaries,
    new_key,
    remove_users,
    restore_users,
    set_canaries,
)
from scanner.scan_plan import make_plan
from schemas.registry import Canaries, Canary
from schemas.tables import USER_EVENTS
from schemas.words import AuditState
from tests.fixed import fix_secrets
from tests.support.audited_scan import scan
from tests.support.command_line import call
from tests.support.two_keys import TOKENIZER, marked_text

TEXTS = 30
CONFIG = """\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6
[input]
paths = ["in.parquet"]
account = "account_id"
[audit]
share = 0.0
all_messages_share = 0.0
decisions_share = 0.0
canaries = 30
"""


def make_registry(folder: Path, window: int = 2, secret: str | None = None) -> Path:
    """A registry of one key, `green`; secret None: a fixed secret, the same in all registries."""
    fix_secrets(folder, *(() if secret else ("green",)))
    new_key(
        folder, "green", format="greenlist", window=window, gamma="1/4", messages=2000, tokenizer=TOKENIZER,
        secret=secret,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Path:
    """The registry of the serving side, with users and ten canaries; no test changes it."""
    folder = make_registry(tmp_path_factory.mktemp("serving") / "registry")
    add_users(folder, None, ["alice", "bob"])
    make_canaries(folder, None, 10, 0.9)
    return folder


def counted(audit: ScanAudit) -> CanaryCounts:
    """What the audit counted of canaries."""
    return CanaryCounts(**audit.facts["canaries"])


@pytest.fixture
def night(tmp_path, serving, words, plain) -> Callable[..., "object"]:
    """Scans a night: `come` texts of canaries, marked under the registry `marks`, beside unmarked texts."""

    def make(marks: Path = serving, come: int = TEXTS):
        made = load_registry(serving).canaries.made
        mark = marked_text(marks, words)
        texts = [(made[i % 10].account_id, mark(made[i % 10].message, 60, i)) for i in range(TEXTS)][:come]
        texts += [(f"account-{i}", plain(60, i)) for i in range(20)]
        accounts, texts = zip(*texts, strict=True)
        pq.write_table(pa.table({"text": texts, "account_id": accounts}), tmp_path / "in.parquet")
        if not (tmp_path / "registry").exists():
            shutil.copytree(serving, tmp_path / "registry")
        (tmp_path / "scan.toml").write_text(CONFIG)
        return scan(make_plan(tmp_path / "scan.toml"))

    return make


@pytest.mark.costly
def test_canaries_that_are_marked_as_they_should_be_are_found_and_named(night, tmp_path):
    audit = night()
    assert results.flagged(tmp_path / "results").collect().height == 0
    assert results.flagged(tmp_path / "results", canaries=True).collect()["canary"].to_list() == [True] * TEXTS
    assert audit.state == "no decoys"
    assert counted(audit) == CanaryCounts(TEXTS, TEXTS, TEXTS, TEXTS, 0)
    ((label, line),) = audit.lines()
    assert label == "canaries"
    assert line.startswith("30 of 30 texts arrived: found 30 (")
    assert "planned 27), named right 30" in line
    assert audit.alarms() == []
    assert {row["family_error"] for row in audit.rows if row["kind"] in CANARY_WORDS} == {0.001 / FAMILIES}
    assert (audit.traffic.texts, audit.traffic.flagged) == (20, 0)  # canaries do not count as traffic


def another_tokenizer(registry: Path, serving: Path, byte_tokenizer: Path, tmp_path: Path) -> Path:
    text = (registry / "keys.toml").read_text()
    key = load_registry(registry).keys[0]
    text = text.replace(key.tokenizer.file, str(byte_tokenizer))
    text = text.replace(key.tokenizer.sha256, hashlib.sha256(byte_tokenizer.read_bytes()).hexdigest())
    (registry / "keys.toml").write_text(text)
    return serving


def another_key(registry: Path, serving: Path, byte_tokenizer: Path, tmp_path: Path) -> Path:
    return make_registry(tmp_path / "other", secret="file:secrets/another.key")


def another_window(registry: Path, serving: Path, byte_tokenizer: Path, tmp_path: Path) -> Path:
    return make_registry(tmp_path / "other", window=3)


def another_users_table(registry: Path, serving: Path, byte_tokenizer: Path, tmp_path: Path) -> Path:
    """Each user gets the message of the user in the next row."""
    users = list_users(serving)
    swapped = users.select(
        "key_id", "message", user_id=pl.col("user_id").shift(1).fill_null(users["user_id"][-1]),
        event=pl.lit("allocated"), at=pl.col("allocated_at"),
    )  # fmt: skip
    shutil.rmtree(registry / "users")
    restore_users(registry, swapped.to_arrow().cast(USER_EVENTS))
    return serving


@pytest.mark.costly
@pytest.mark.parametrize(
    ("sabotage", "found", "words_said"),
    [
        (another_tokenizer, False, "They arrived and were not found"),
        (another_key, False, "They arrived and were not found"),
        (another_window, False, "They arrived and were not found"),
        (another_users_table, True, "the users of this registry are not those of the serving side"),
    ],
)
def test_what_made_a_quiet_night_is_an_alarm(night, tmp_path, serving, byte_tokenizer, sabotage, found, words_said):
    shutil.copytree(serving, tmp_path / "registry")
    audit = night(sabotage(tmp_path / "registry", serving, byte_tokenizer, tmp_path))
    assert audit.state == "canaries lost"
    assert exit_code_of(audit.state, too_little_read=False) == 5
    assert counted(audit)._replace(wrong=0) == CanaryCounts(TEXTS, TEXTS, TEXTS if found else 0, 0, 0)
    assert counted(audit).wrong == (TEXTS if found else 0)
    assert words_said.lower() in audit.alarms()[-1].lower()


@pytest.mark.costly
def test_canaries_whose_proof_differs_are_an_alarm_and_named_for_nobody(night, monkeypatch):
    """A fault that only canaries show, since nothing else is flagged."""
    plain = attribution.decide

    def differs(*arguments):
        decided = plain(*arguments)
        decided.naming[decided.flagged] = "unproved"
        return decided

    monkeypatch.setattr(attribution, "decide", differs)
    audit = night()
    assert counted(audit) == CanaryCounts(TEXTS, TEXTS, TEXTS, 0, 0)
    assert (audit.state, audit.traffic.unproved) == ("alarm", TEXTS)
    assert audit.alarms()[-1].startswith("They were found, and too few were named. ")


@pytest.mark.costly
def test_canaries_that_do_not_come_are_an_alarm(night):
    audit = night(come=10)
    assert counted(audit) == CanaryCounts(TEXTS, 10, 10, 10, 0)
    assert audit.state == "canaries lost"
    assert "Most did not arrive" in audit.alarms()[-1]


def test_counts_are_those_of_a_plain_loop():
    generator = np.random.default_rng(3)
    made = [Canary(account_id=f"c{i}", key_id=key, message=i, names=key == "k") for i in range(4) for key in ("k", "v")]
    rows = [
        {
            "path": "a",
            "row": i,
            "text_id": bytes([i % 180]),
            "text_sha256": None,
            "account_id": [None, "c0", "c1", "c2", "c3", "people"][generator.integers(6)],
            "key_id": ["k", "v"][generator.integers(2)],
            "message": [None, 0, 1, 2, 3][generator.integers(5)],
            "user_id": [None, "c0", "c1", "c2", "c3", "people"][generator.integers(6)],
            "naming": ["named", "none", "ambiguous"][generator.integers(3)],
            "flagged": bool(generator.integers(2)),
        }
        for i in range(180)
    ]
    for row in rows:
        row["user_id"] = row["user_id"] if row["naming"] == "named" else None
    copies = [*rows, *rows[:60]]
    came = found = right = wrong = 0
    for row in rows:
        mine = [c for c in made if c.account_id == row["account_id"]]
        if not mine:
            continue
        came += 1
        hit = row["flagged"] and any((c.key_id, c.message) == (row["key_id"], row["message"]) for c in mine)
        own = row["naming"] == "named" and row["user_id"] == row["account_id"]
        found += hit
        right += hit and (own or row["key_id"] == "v")
        wrong += row["naming"] == "named" and row["user_id"] is not None and not own
    assert min(came, found, right, wrong) > 0
    assert count_canaries(pl.LazyFrame(copies), made, 0) == CanaryCounts(came, came, found, right, wrong)
    assert count_canaries(pl.LazyFrame(copies), made, 500).due == 500


def probability_of_alarm(due: int, share: float, power: float, error: float) -> float:
    """The exact probability: hits are binomial, and every canary that is found is named right."""
    audit = Audit.begin("", "", "", error)
    hits = np.arange(due + 1)
    alarms = [
        canaries_lost(judge_canaries(audit, CanaryCounts(due, due, h, h, 0), CanaryTargets(power, power), 1e-6))
        for h in hits.tolist()
    ]
    return float(stats.binom.pmf(hits, due, share)[alarms].sum())


@pytest.mark.costly
@pytest.mark.parametrize("power", [0.5, 0.7, 0.9, 0.95])
def test_of_200_half_lost_is_seen_and_a_night_as_planned_is_quiet(power):
    assert probability_of_alarm(200, power / 2, power, 1e-3) >= 0.99
    assert probability_of_alarm(200, power, power, 1e-3) <= 1e-3


def test_one_named_for_another_is_an_alarm_and_no_canaries_are_none():
    audit = Audit.begin("", "", "", 1e-3)
    assert canaries_lost(judge_canaries(audit, CanaryCounts(200, 200, 180, 180, 1), CanaryTargets(0.9, 0.9), 1e-6))
    assert not canaries_lost(judge_canaries(audit, CanaryCounts(200, 200, 180, 180, 0), CanaryTargets(0.9, 0.9), 1e-6))
    assert judge_canaries(audit, CanaryCounts(0, 0, 0, 0, 0), CanaryTargets(0.9, 0.9), 1e-6) == []


def test_rows_are_whole():
    rows = judge_canaries(
        Audit.begin("", "", "", 1e-3), CanaryCounts(200, 150, 90, 80, 3), CanaryTargets(0.9, 0.9), 1e-6
    )
    found, right, wrong = rows
    assert (found["tests"], found["hits"], found["expected"], found["verdict"]) == (200, 90, 180.0, "too few")
    assert found["low"] < 90 < found["high"] < 180
    assert found["p_value"] == pytest.approx(stats.binom.cdf(90, 200, 0.9), rel=1e-6, abs=1e-15)
    assert right["verdict"] == "too few"
    assert (wrong["hits"], wrong["verdict"]) == (3, "too many")
    assert wrong["p_value"] == pytest.approx(stats.binom.sf(2, 200, 1e-6), rel=1e-6)


def test_the_worst_ending_is_told():
    assert exit_code_of(AuditState.CANARIES_LOST, too_little_read=True) == ExitCode.CANARIES_LOST
    assert exit_code_of(AuditState.NO_ALARM, too_little_read=True) == ExitCode.TOO_LITTLE_READ
    assert exit_code_of(None, too_little_read=False) == ExitCode.DONE
    assert worse_of(ExitCode.CANARIES_LOST, ExitCode.ALARM) == ExitCode.ALARM
    assert worse_of(ExitCode.CANARIES_LOST, ExitCode.DONE) == ExitCode.CANARIES_LOST


def test_the_command_makes_prompts_for_the_same_canaries_each_time(tmp_path):
    registry, prompts = make_registry(tmp_path / "registry"), tmp_path / "prompts.txt"
    prompts.write_text("".join(f"prompt {i}\n" for i in range(12)))
    how = ("canaries", "--registry", registry, "--prompts", prompts, "--texts", 30, "--users", 7)
    code, out, _ = call(*how, "--out", tmp_path / "one.parquet")
    assert code == 0
    assert "[audit] canaries = 30" in out
    first = pl.read_parquet(tmp_path / "one.parquet")
    assert first["prompt"].value_counts()["count"].max() <= 3
    assert set(first["prompt"]) == {f"prompt {i}" for i in range(12)}
    made = load_registry(registry).canaries
    assert set(first["user_id"]) == {canary.account_id for canary in made.made}
    held = {(row["user_id"], row["key_id"], row["message"]) for row in list_users(registry).to_dicts()}
    assert held == {(canary.account_id, canary.key_id, canary.message) for canary in made.made}
    assert made.power == 0.9

    new_key(registry, "all", format="vllm-gumbel", messages=1, tokenizer=TOKENIZER)
    assert load_registry(registry).canaries == made  # a new key removes no canary
    remove_users(registry, [made.made[0].account_id])
    assert call(*how, "--power", 0.5, "--out", tmp_path / "two.parquet")[0] == 0
    again = load_registry(registry).canaries
    assert again.power == 0.5
    assert set(again.made) > set(made.made)  # earlier canaries stay; the removed one has a new message
    assert {canary.message for canary in again.made if canary.key_id == "all"} == {0}
    assert not any(canary.names for canary in again.made if canary.key_id == "all")
    assert set(pl.read_parquet(tmp_path / "two.parquet")["user_id"]) == set(first["user_id"])
    code, _, err = call(*how, "--out", tmp_path / "two.parquet")
    assert (code, "exists already" in err) == (2, True)


MEASURED = 120
"""Texts that are measured, and as many others that come in a night."""


def short_texts(serving, words, seed: int) -> tuple[list[str], list[Canary]]:
    """Marked texts of 14 to 25 words, some of which pass whatever is tested, and the canary of each."""
    made, mark = load_registry(serving).canaries.made, marked_text(serving, words)
    lengths = np.random.default_rng(seed).integers(14, 26, MEASURED).tolist()
    whose = [made[i % 10] for i in range(MEASURED)]
    return [
        mark(one.message, length, seed + i) for i, (one, length) in enumerate(zip(whose, lengths, strict=True))
    ], whose


@pytest.mark.costly
@pytest.mark.seconds
def test_what_is_planned_follows_keys_and_looks_and_agrees_with_scans(tmp_path, serving, words):
    """120 measured texts plan for 120 others, under K = 1, 1 and 500: nights find what is planned, and are quiet."""
    registry, (key,) = tmp_path / "registry", load_registry(serving).keys
    shutil.copytree(serving, registry)
    texts, whose = short_texts(serving, words, 1000)
    measured = canary_strength(registry, key, texts, np.array([one.message for one in whose]))
    canaries = set_canaries(registry, Canaries(power=0.9, measured=(measured,)))
    texts, whose = short_texts(serving, words, 2000)
    accounts = [one.account_id for one in whose]
    pq.write_table(pa.table({"text": texts, "account_id": accounts}), tmp_path / "in.parquet")
    both = "[variants]\nnormalised = true\n"
    looks = ["", both, both + "[weights]\nas_written = 0.001\nnormalised = 0.001\n"]
    shares = []
    for number, look in enumerate(looks):
        text = CONFIG.replace("canaries = 30", f"canaries = {MEASURED}").replace('"results"', f'"results-{number}"')
        (tmp_path / "scan.toml").write_text(text + look)
        plan = make_plan(tmp_path / "scan.toml")
        audit = scan(plan)
        planned, counts = planned_of(plan, canaries, 0.5), counted(audit)  # risk one half: the share itself, about
        assert counts.came == MEASURED
        assert counts.right == counts.found
        hits = round(planned.found * MEASURED)
        alike = stats.fisher_exact([[hits, MEASURED - hits], [counts.found, MEASURED - counts.found]])
        assert alike.pvalue > 1e-3, (look, hits, counts.found)
        assert audit.state == "no decoys"
        assert audit.alarms() == []
        (row,) = (row for row in audit.rows if row["kind"] == "canary_found")
        assert row["expected"] < counts.found
        shares.append(planned.found)
        stated = judge_canaries(Audit.begin("", "", "", 1e-3), counts, CanaryTargets(0.9, 0.9), 1e-6)
    assert canaries_lost(stated)  # one share for every scan is too much to ask under K = 500
    assert shares[0] >= shares[1] > shares[2] + 0.2
    for name in ("second", "third"):
        new_key(registry, name, format="greenlist", window=2, gamma="1/4", messages=2000, tokenizer=TOKENIZER)
    more = planned_of(make_plan(tmp_path / "scan.toml"), canaries, 0.5)
    assert more.found <= shares[2]
    one_by_one = zip(measured.log10_p, measured.scored, strict=True)
    tests = 2000 * 3 * 500  # messages, keys, and 1 over both weights of a text that is its own normal form
    passing = sum(-math.expm1(tests * math.log1p(-(10.0**p))) <= 1e-6 for p, scored in one_by_one if scored >= 16)
    assert round(more.found * MEASURED) == pytest.approx(passing, abs=1)


def test_the_command_measures_texts_like_the_canaries(tmp_path, serving, words):
    registry, prompts = tmp_path / "registry", tmp_path / "prompts.txt"
    shutil.copytree(serving, registry)
    prompts.write_text("a prompt\n")
    texts, whose = short_texts(serving, words, 3000)
    rows = {"key_id": ["green"] * MEASURED, "message": [one.message for one in whose], "text": texts}
    pl.DataFrame(rows).write_parquet(tmp_path / "marked.parquet")
    how = ("canaries", "--registry", registry, "--prompts", prompts, "--out", tmp_path / "out.parquet")
    assert call(*how, "--from", tmp_path / "marked.parquet", "--power", 0.5)[0] == 2
    code, out, _ = call(*how, "--from", tmp_path / "marked.parquet")
    assert code == 0
    canaries = load_registry(registry).canaries
    (measured,) = canaries.measured
    assert len(measured.scored) == MEASURED
    assert f"green: {canaries.power:.0%} of 120 texts pass at 1e-06 among 1 keys, with one look" in out
    assert set(canaries.made) >= set(load_registry(serving).canaries.made)


def test_what_cannot_be_told_is_refused(tmp_path, serving):
    (tmp_path / "scan.toml").write_text(CONFIG.replace('"registry"', f'"{serving}"').replace("account =", "id ="))
    with pytest.raises(Refused, match=r"audit\.canaries = 30: canaries are recognised by their accounts"):
        make_plan(tmp_path / "scan.toml")
    none = make_registry(tmp_path / "registry")
    (tmp_path / "scan.toml").write_text(CONFIG)
    with pytest.raises(Refused, match=r"audit\.canaries = 30: registry .* has no canaries; make them with"):
        make_plan(tmp_path / "scan.toml")
    set_canaries(none, Canaries(power=0.8))
    assert make_plan(tmp_path / "scan.toml").canaries.power == 0.8

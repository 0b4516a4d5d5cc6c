"""Keys that pass an audit are put on record, and no others."""

import re
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from scipy import stats

from jobs.cli import brickscan, run
from scanner.audit.calibration.admission import admission_of, admissions, signable
from scanner.audit.statistics.audit_rows import Audit, Question, rate_rows
from scanner.audit.statistics.hits import cluster_sums
from scanner.audit.statistics.judgement import Count, judge
from scanner.errors import Refused
from scanner.registry import load_registry, new_key
from scanner.results import transactions
from scanner.signing import sign_with
from scanner.watermark.formats import format_of
from tests.support.counted import THRESHOLDS, sums


@pytest.fixture
def no_tokens(tmp_path):
    """A tokenizer file without tokens: nothing is read with it."""
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    return tmp_path / "tokenizer.json"


@pytest.fixture
def registry(tmp_path, no_tokens):
    for name in ("k1", "k2"):
        new_key(
            tmp_path / "registry", name, format="greenlist", window=4, gamma="1/4", messages=100, tokenizer=no_tokens
        )
    return tmp_path / "registry"


def audit(registry, factors: dict[str, float], days: int = 0) -> list[dict]:
    """Rows of one audit; factors: how many times as often as it should each key hits."""
    begun = Audit.begin("c" * 64, "corpus.parquet", "1", 0.01)
    begun = Audit(**{**vars(begun), "at": datetime.now(UTC) + timedelta(days=days)})
    answers = []
    for key in load_registry(registry).keys:
        if key.key_id in factors:
            for kind in ("key", "key_messages"):
                label = format_of(key).label()
                of_key = key.format, "account", key.messages, key.key_id, key.commitment
                question = Question(kind, "exact", *of_key, label=label, dedup="context")
                answers.append((question, sums(factors[key.key_id])))
    return rate_rows(begun, answers, THRESHOLDS, bound=2.0)


def frame(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


def test_what_an_audit_counted_once_is_on_record(registry):
    (key, _) = load_registry(registry).keys
    assert admission_of(key, frame(audit(registry, {"k1": 1.0}))).dedup == "context"


def test_a_key_that_passed_is_on_record(registry, tmp_path, capsys):
    folder = str(tmp_path / "audit")
    sign_with(folder, str(registry))
    transactions.append_audits(folder, audit(registry, {"k1": 1.0, "k2": 3.0}))
    arguments = ["--registry", str(registry), "--results", folder]
    assert run(brickscan, ["keys", "admit", "k1", *arguments]) == 0
    out = capsys.readouterr().out
    assert "holds down to p = 0.01; 2 keys were tried" in out
    k1, k2 = load_registry(registry).keys
    assert (k1.admission.candidates, k1.admission.holds_down_to) == (2, 0.01)
    assert k1.admission.audit_id in out
    assert run(brickscan, ["keys", "admit", "k2", *arguments]) == 2
    assert "'k2' failed audit" in capsys.readouterr().err
    assert k2.admission is None
    assert run(brickscan, ["keys", "admit", "k1", *arguments, "--candidates", "1"]) == 2
    assert "2 keys were tried" in capsys.readouterr().err
    assert run(brickscan, ["keys", "admit", "k1", *arguments, "--candidates", "50"]) == 0
    assert load_registry(registry).keys[0].admission.candidates == 50
    assert run(brickscan, ["keys", "list", "--registry", str(registry)]) == 0
    assert "0.01" in capsys.readouterr().out


def test_a_floor_can_be_asked_for(registry, tmp_path, capsys):
    folder = str(tmp_path / "audit")
    sign_with(folder, str(registry))
    transactions.append_audits(folder, audit(registry, {"k1": 1.0}))
    admit = ["keys", "admit", "k1", "--registry", str(registry), "--results", folder]
    assert run(brickscan, [*admit, "--down-to", "1e-3"]) == 2
    said = capsys.readouterr().err
    assert "'k1' can be admitted down to 0.01\nhint: for 0.001 about" in said
    assert "documents are needed; it is not admitted" in said
    assert load_registry(registry).keys[0].admission is None
    assert run(brickscan, [*admit, "--down-to", "1e-2"]) == 0
    assert load_registry(registry).keys[0].admission.holds_down_to == 0.01


@pytest.mark.parametrize("down_to", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("effect", [1.0, 4.0])
def test_as_many_documents_as_are_said_to_be_needed_suffice(down_to, effect):
    """With as many hits as expected, audits of the stated number of documents say `holds`, of a third `undecided`."""
    thresholds = [10.0**-k for k in range(1, 5)]

    def verdict(documents: int) -> str:
        counts = [Count(documents, documents * t, documents * t, documents, effect) for t in thresholds]
        return judge(counts, 0.01, bound=2.0)[thresholds.index(down_to)].verdict

    row = {"kind": "key", "key_id": "k", "verdict": "undecided", "family": 4, "family_error": 0.01}
    row |= {"filter_sha256": None}
    row |= {"tests": 900, "clusters": 900_000, "design_effect": effect}
    rows = [row | {"threshold": t, "expected": 900 * t} for t in thresholds]
    (sentence,) = admissions(rows, down_to)
    needed = int(re.search(r"about ([0-9,]+) documents", sentence)[1].replace(",", ""))
    assert verdict(needed) == "holds"
    assert verdict(needed // 3) == "undecided"


def test_what_each_key_can_be_admitted_to_is_one_sentence(registry):
    rows = audit(registry, {"k1": 1.0, "k2": 3.0})
    assert list(admissions(rows, 1e-2)) == [
        "k1 can be admitted down to 0.01",
        "k2 cannot be admitted: its p-values are too small, or many texts share n-grams that happen to score well, as "
        "texts filled in from one template do (a section [keys.filter] leaves these out), or texts of the corpus "
        "carry its mark. Before you make another key, audit this one on texts that are older than it and so cannot "
        "carry its mark; do not drop texts because of their score, which would hide the cause",
    ]
    nearer, far = (next(admissions(rows, down_to)) for down_to in (1e-3, 1e-5))
    numbers = [int(re.search(r"about ([0-9,]+) documents", said)[1].replace(",", "")) for said in (nearer, far)]
    assert numbers[1] == pytest.approx(100 * numbers[0], rel=0.1)  # beyond all rows: by proportion
    first, _ = admissions(rows, 1e-6)
    assert first.startswith("k1 can be admitted down to 0.01; for 1e-06 about ")


@pytest.mark.parametrize(("effect", "low", "high"), [(1.0, "0.0014", "0.0056"), (4.0, "0.00047", "0.0097")])
def test_the_sentence_that_an_auditor_signs_has_exact_limits(effect, low, high):
    """Limits are held against the binomial law itself; an effect of 4 is worth a quarter of the texts."""
    row = {"kind": "key", "measure": "rate", "key_id": "k", "method": "greenlist", "design_effect": effect}
    row |= {"clusters": 5_000_000}  # as good as infinitely many
    rows = [row | {"threshold": t, "tests": 5000, "hits": h, "verdict": "holds"} for t, h in ((0.1, 300), (0.01, 15))]
    (said,) = signable(rows, 1e-6)
    assert said == (
        f"k: of 5,000 unmarked texts 15 were flagged at 0.01; the rate is between {low} and {high} with 99 % "
        "confidence; 1e-06 follows from theory and was not measured"
    )
    assert not next(signable(rows, 0.01)).endswith("measured")
    (doubted,) = signable([*rows, rows[1] | {"threshold": 1e-3, "verdict": "too small"}], 1e-6)
    assert doubted.startswith("k: of 5,000 texts that were given as unmarked 15 were flagged at 0.01")
    if effect == 1.0:
        assert stats.binom.sf(14, 5000, 0.00135) < 0.005 < stats.binom.sf(14, 5000, 0.00145)
        assert stats.binom.cdf(15, 5000, 0.00565) < 0.005 < stats.binom.cdf(15, 5000, 0.00555)


@pytest.mark.parametrize("clusters", [1, 2, 5000])
def test_texts_of_few_pieces_tell_no_rate(clusters):
    """What is signed and what is admitted say how many independent pieces a corpus is worth, if these are few."""
    row = {"kind": "key", "measure": "rate", "key_id": "k", "method": "greenlist", "design_effect": 1.0, "hits": 0}
    row |= {"tests": 5000, "clusters": clusters, "threshold": 0.01, "expected": 50.0, "verdict": "undecided"}
    row |= {"family": 8, "family_error": 0.01, "filter_sha256": None}
    (signed,), (admitted,) = signable([row], 1e-6), admissions([row], 0.01)
    told = {1: "1 independent piece", 2: "2 independent pieces", 5000: None}[clusters]
    if told is None:
        assert "k: of 5,000 unmarked texts 0 were flagged at 0.01; the rate is between 0 and 0.0011 with" in signed
        assert "independent" not in admitted
    else:
        assert (
            f"k: of 5,000 unmarked texts, {told}, 0 were flagged at 0.01; too few independent texts to tell" in signed
        )
        assert f"its 5,000 texts are worth {told}: texts of one template or account count as one" in admitted
        assert "[keys.filter]" in admitted


def test_the_newest_audit_decides(registry):
    rows = [*audit(registry, {"k1": 1.0}), *audit(registry, {"k1": 3.0}, days=1)]
    key = load_registry(registry).keys[0]
    with pytest.raises(Refused, match="failed audit"):
        admission_of(key, frame(rows))
    assert admission_of(key, frame([*rows, *audit(registry, {"k1": 1.0}, days=2)])).candidates == 1


def test_too_little_data_admits_nobody(registry):
    key = load_registry(registry).keys[0]
    question = Question("key", "exact", "greenlist", "account", 100, key.key_id, key.commitment)
    few = cluster_sums(*(sums_of(3)))
    rows = rate_rows(Audit.begin("c" * 64, "x", "1", 0.01), [(question, few)], THRESHOLDS, bound=2.0)
    with pytest.raises(Refused, match="undecided at every threshold"):
        admission_of(key, frame(rows))


def test_an_audit_of_fewer_messages_admits_nobody(registry):
    """The key's commitment does not change with its messages: it covers method, window and gamma alone."""
    key = load_registry(registry).keys[0]
    rows = frame(audit(registry, {"k1": 1.0}))
    passed = key.model_copy(update={"admission": admission_of(key, rows)})
    assert passed.admitted_by == rows["audit_id"][0]
    assert passed.model_copy(update={"messages": 1000}).admitted_by is None  # as if somebody edited keys.toml
    with pytest.raises(Refused, match=r"has 1000 messages; audit .* covered 100;"):
        admission_of(key.model_copy(update={"messages": 1000}), rows)


def sums_of(count):
    return np.zeros((count, 2)), np.ones(count), np.tile(THRESHOLDS, (count, 1))


def test_another_key_of_that_name_has_no_audit(registry, no_tokens):
    rows = audit(registry, {"k1": 1.0})
    shutil.rmtree(registry)
    other = new_key(registry, "k1", format="greenlist", window=4, gamma="1/4", messages=100, tokenizer=no_tokens)
    with pytest.raises(Refused, match="'k1' has not been audited there"):
        admission_of(other, frame(rows))


def test_a_key_without_a_commitment_is_known_by_name_parameters_and_time(tmp_path, no_tokens):
    folder, fresh = tmp_path / "registry", {"messages": 1, "tokenizer": no_tokens}
    for name in ("stack", "other"):
        new_key(folder, name, format="vllm-gumbel", **fresh)
    stack, other = load_registry(folder).keys
    assert stack.commitment is None
    rows = frame(audit(folder, {"stack": 1.0, "other": 3.0}))
    passed = admission_of(stack, rows)
    assert (passed.holds_down_to, passed.candidates) == (0.01, 2)
    with pytest.raises(Refused, match="failed audit"):
        admission_of(other, rows)
    with pytest.raises(Refused, match="has not been audited there"):
        admission_of(stack, frame(audit(folder, {"stack": 1.0}, days=-1)))  # an audit of an earlier key of this name
    wider = stack.model_copy(update={"parameters": {"context_width": 5}})
    with pytest.raises(Refused, match="has not been audited there"):
        admission_of(wider, rows)

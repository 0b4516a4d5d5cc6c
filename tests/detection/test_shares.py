"""Units and variants of texts have shares of the false-positive rate; equal shares give the same results as before."""

import json
import re
from datetime import UTC, datetime
from fractions import Fraction
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_prover
from scanner.detection.rules import Rules
from scanner.error_shares import AS_WRITTEN, ErrorShares
from scanner.errors import Refused
from scanner.evidence.replay import replay
from scanner.looks.normalising import normalise
from scanner.registry import Holders
from scanner.scan_plan import make_plan
from scanner.watermark.rule import corrected, passes
from schemas.registry import MasterKey, TokenizerFile
from schemas.tables import DOCUMENTS
from tests import reference
from tests.support.command_line import call
from tests.support.opened import opened
from tests.support.two_keys import message_of

RATE = 1e-6
UNEQUAL = "variants = { normalised = true }\nweights = { document = 0.8, as_written = 0.9, normalised = 0.1 }\n"


@pytest.fixture
def said(registry):
    """Gives verdicts on texts under both keys, proved, by the weights that a test states."""
    under_test = opened(registry)

    def scan(texts: list[str], weights: ErrorShares) -> list[dict]:
        detector = Detector(
            under_test,
            Holders.load(registry, [test.key.key_id for test in under_test]),
            rules := Rules(RATE, 2, weights=weights),
            open_prover(registry, under_test, rules),
        )
        rows = [{"row": i, "text": text.encode()} for i, text in enumerate(texts)]
        return detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("s", "s", "p"))[
            0
        ].to_pylist()

    return scan


def test_p_is_corrected_by_the_weights_of_key_unit_and_variant(said, registry, marked, plain):
    alice = message_of(registry, "green", "alice")
    weights = ErrorShares(document=0.8, as_written=0.9, normalised=0.1)
    texts = [marked(alice, 60, 1), marked(alice, 60, 2).upper(), *(plain(60, seed).title() for seed in range(20))]
    rows = said(texts, weights)
    of_variant = {None: 2 / (0.8 * 0.9), "normalised": 2 / (0.8 * 0.1), "only": 2 / 0.8}
    assert {row["variant"] for row in rows[1:]} == {None, "normalised"}
    assert [normalise(text) == text for text in texts] == [True, *[False] * 21]
    assert [(row["user_id"], row["proof"], row["variant"]) for row in rows[:2]] == [
        ("alice", "proved", None), ("alice", "proved", "normalised"),
    ]  # fmt: skip
    for place, row in enumerate(rows):
        tests = of_variant[row["variant"] if place else "only"]
        assert row["correction"] == pytest.approx(tests, rel=1e-15)
        whole = reference.log10_any_of(row["log10_p"], row["messages_tested"] * tests)
        assert row["log10_p_global"] == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_the_variant_of_smallest_corrected_p_is_told(said, plain):
    """Not the variant of smallest p: weights would then be chosen after the texts were read."""
    texts = ["  ".join(plain(30, seed).split(" ")) + plain(30, seed + 1) for seed in range(60)]
    assert all(normalise(text) != text for text in texts)
    alone = [said([normalise(text) for text in texts], ErrorShares()), said(texts, ErrorShares())]
    weights = ErrorShares(as_written=0.99, normalised=0.01)
    switched = 0
    for row, normalised, raw in zip(said(texts, weights), *alone, strict=True):
        better = normalised["log10_p_global"] < raw["log10_p_global"]
        p = {name: corrected(one["log10_p_global"], 1, 1 / weight) for name, one, weight in
             (("normalised", normalised, 0.01), (None, raw, 0.99))}  # fmt: skip
        assert row["variant"] == min((None, "normalised"), key=lambda name: p[name])
        switched += better and row["variant"] is None
    assert switched > 0


KEY = MasterKey(
    key_id="k",
    format="greenlist",
    parameters={"window": 4, "gamma": "1/4"},
    messages=100,
    tokenizer=TokenizerFile(file="t.json", sha256="a" * 64),
    secret="env:SECRET",
    commitment="b" * 64,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)
STATED = st.lists(st.integers(1, 50), min_size=5, max_size=5)


@given(STATED, st.booleans(), st.booleans())
def test_the_looks_that_a_text_has_share_no_more_than_the_key_has(hundredths, normalised, spans):
    """Whatever the text lacks: by exact fractions, from the rule in words, without the code's table."""
    document, span, as_written, other, keys = (Fraction(n, 100) for n in hundredths)
    weights = ErrorShares(
        float(document), float(as_written), float(other) if normalised else None, float(span) if spans else None
    )
    tests = weights.corrections(KEY, int(keys * 100))
    of_spans = weights.correction_of_spans(KEY, int(keys * 100))
    for has_normal_form, has_parts in product((False, True), repeat=2):
        look = document + (span if spans and not has_parts else 0)
        looked_at = normalised and has_normal_form
        shares = [as_written, other] if looked_at else [as_written + (other if normalised else 0)]
        expected = [float(keys * 100 / (look * share)) for share in shares]
        assert tests[: len(shares), int(has_normal_form), int(has_parts)].tolist() == expected
        total = sum(1 / one for one in expected) + (1 / of_spans if of_spans and has_parts else 0)
        most = (document + (span if spans else 0)) * max(as_written + (other if normalised else 0), 1)
        assert total * float(keys * 100) <= float(most) * (1 + 1e-12)


def test_a_look_that_no_key_takes_has_no_share():
    """Keys whose law is assumed test no normalised text, and marks of other stacks score no parts."""
    weights = ErrorShares(0.5, 0.4, 0.6, 0.5)
    foreign = KEY.model_copy(update={"format": "sbw", "parameters": {}})
    assert (weights.corrections(foreign, 1)[AS_WRITTEN] == 1.0).all()
    assert weights.corrections(KEY, 1)[AS_WRITTEN, 1, 1] == 1 / (0.5 * 0.4)


def test_the_example_of_corrections():
    """The table in the docstring of ErrorShares.corrections, line by line."""
    tests = ErrorShares(document=0.6, span=0.4, as_written=0.75, normalised=0.25).corrections(KEY, 2)
    lines = re.findall(
        r"(AS_WRITTEN|NORMALISED) +([01]) +([01]) .* = ([0-9.]+)\n", ErrorShares.corrections.__doc__ or ""
    )
    assert len(lines) == 6
    for variant, has_normal_form, has_parts, correction in lines:
        place = ("AS_WRITTEN", "NORMALISED").index(variant), int(has_normal_form), int(has_parts)
        assert round(tests[place], 2) == float(correction)


@pytest.mark.costly
def test_a_text_that_nobody_marked_is_flagged_at_the_rate_whatever_the_weights():
    """10^6 texts, 2 keys, both variants, independent p-values; at 0.1 the count has a standard deviation of 300."""
    draws = np.random.default_rng(17).random((10**6, 2, 2))
    for shares in ([0.9, 0.1], [0.5, 0.5], [0.3, 0.2]):
        tests = [2 / share for share in shares]
        flagged = passes(corrected(np.log10(draws), 1, np.array(tests)), 0.1).any(axis=(1, 2)).sum()
        expected = 10**6 * (1 - 0.9 ** sum(shares))
        assert abs(flagged - expected) < 5 * 300


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("weights = { as_written = 0.9, normalised = 0.2 }", "as_written and normalised sum to more than 1"),
        ("weights = { document = 1.5 }", r"weights\.document"),
        ("weights = { document = 0 }", r"weights\.document"),
        ("weights = { normalised = 0.1 }", r"weights\.as_written is missing"),
        ("variants = { normalised = true }\nweights = { as_written = 0.9 }", r"weights\.normalised is missing"),
        ("weights = { spam = 0.1 }", r"weights\.spam"),
    ],
)
def test_weights_that_cannot_be_are_refused(night, more, wrong):
    night.configure(more=more)
    with pytest.raises(Refused, match=wrong):
        make_plan(night.config)


def test_shares_that_sum_to_one_as_they_are_written_are_taken(night):
    for ninth in range(1, 10):
        one, other = (str(float(Fraction(n, 10))) for n in (ninth, 10 - ninth))
        night.configure(
            more=f"variants = {{ normalised = true }}\nweights = {{ as_written = {one}, normalised = {other} }}"
        )
        assert night.plan().weights == ErrorShares(1.0, float(one), float(other))


def test_equal_shares_are_what_shard_ids_were_made_of(night):
    """Equal shares keep the shard ids from before weights existed; other weights are another look, with other ids."""
    plain, normalised = "", "variants = { normalised = true }\n"
    made = {}
    for more in (
        plain,
        "weights = { document = 1.0 }\n",
        "weights = { as_written = 1.0 }\n",
        normalised,
        normalised + "weights = { as_written = 0.5, normalised = 0.5 }\n",
        UNEQUAL,
        "weights = { as_written = 0.9, normalised = 0.1 }\n",
    ):
        night.configure(more=more)
        made[more] = night.plan().verdict_settings
    before = [*made.values()]
    assert before[0] == before[1] == before[2]
    assert before[3] == before[4]
    assert len(set(before)) == 4
    assert (json.loads(before[0])["keys_tested"], json.loads(before[3])["keys_tested"]) == (2, 4)
    assert json.loads(before[3]).keys() - json.loads(before[0]).keys() == {"variants"}
    # turning on a look whose share was kept free changes nothing for the others
    assert json.loads(before[5])["weights"] == {"document": 0.8, "as_written": 0.9, "normalised": 0.1}
    assert json.loads(before[6])["weights"] == {"document": 1.0, "as_written": 0.9}


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_flags_of_unequal_weights_are_replayed_and_can_be_claimed(night, registry, marked, tmp_path):
    alice = message_of(registry, "green", "alice")
    night.configure(more=UNEQUAL)
    night.write("a", [marked(alice, 80, 1), marked(alice, 80, 2).upper()])
    night.scan()
    rows = night.verdicts()
    assert rows["correction"][0] == 5 / 2  # the first is its own normal form: 1 / (1/2 · 0.8 · (0.9 + 0.1))
    assert rows["correction"][1] == pytest.approx(1 / (0.5 * 0.8 * 0.1))
    assert rows["variant"].to_list() == [None, "normalised"]
    for row in ("a:0", "a:1"):
        found = replay(night.config, row)
        assert found.equal, [field for field in found.fields if not field.equal]
    case = tmp_path / "case"
    assert call("replay", night.config, "a:0", "--proof", case)[0] == 0
    claim = json.loads((case / "claim.json").read_text())
    assert claim["correction"] == 5 / 2
    whole = reference.log10_any_of(claim["log10_p"], claim["messages"] * claim["correction"])
    assert claim["log10_p_global"] == pytest.approx(whole, rel=1e-9)
    assert "after a correction for 2.5 tests" in " ".join(call("explain", night.config, "a:0")[1].split())

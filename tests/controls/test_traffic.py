"""Counts of a night's verdicts over distinct texts."""

import numpy as np
import polars as pl
import pytest

from scanner.audit.statistics.audit_rows import Audit, Question, rate_rows
from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, ClusterSums
from scanner.audit.statistics.judgement import KEY_BOUND
from scanner.controls.reserved.expectation import reserved_moments, single_p, unmarked
from scanner.controls.traffic import Traffic
from scanner.error_shares import ErrorShares
from scanner.watermark.formats import format_of
from schemas.registry import reserved_count
from schemas.words import Naming
from tests.support.rows import GUMBEL_KEY as KEY
from tests.support.rows import measured, verdict


def rows(*namings: str) -> pl.DataFrame:
    """Copies of a flagged text, one for each naming."""
    copies = enumerate(namings)
    return pl.DataFrame([verdict(i, naming=how, flagged=how != "none", log10_p_global=-9.0) for i, how in copies])


@pytest.mark.parametrize("naming", Naming)
def test_a_flag_is_known_to_be_false_where_nobody_held_the_message(naming):
    held_by_nobody = naming in ("reserved", "unallocated", "held_later")
    assert measured(rows(naming), -6.0).unheld == held_by_nobody
    assert measured(rows(naming, "named"), -6.0).unheld == 0  # as where the copy existed later
    not_flagged = naming == "none"  # a row that is not flagged was scored under other keys
    assert measured(rows(naming, "unallocated"), -6.0).unheld == (held_by_nobody or not_flagged)


def reserved_verdict(texts: int, flagged: int, excess: float) -> str:
    """The audit's verdict on a key whose reserved messages hit `excess` times too often in unflagged texts."""
    left = texts - flagged
    traffic = Traffic(texts, flagged, 0, 0, ("s",))
    expected = left * single_p(THRESHOLDS, KEY.messages, 1)
    hits = np.random.default_rng(5).poisson(excess * expected, (reserved_count(KEY.messages), len(THRESHOLDS)))
    sums = reserved_moments(traffic, unmarked(traffic, 1e-6), KEY, np.ones((1, 2, 2)), hits)
    about = Question("reserved", "exact", "message", cluster="message")
    rows = rate_rows(Audit.begin("", "", "", 1e-3), [(about, sums)], THRESHOLDS, KEY_BOUND)
    return "too small" if "too small" in {row["verdict"] for row in rows} else "quiet"


@pytest.mark.parametrize(("factor", "verdict"), [(0.25, "too small"), (0.6, "quiet"), (1.0, "quiet")])
@pytest.mark.parametrize("length", [60, 250, 1500])
def test_p_values_of_verdicts_that_are_a_quarter_are_seen_where_a_search_misses_half_the_messages(
    length, factor, verdict
):
    """200,000 texts under a key with groups, whose reserved messages are found as often as its search finds them."""
    parameters = {"window": 4, "gamma": "1/4", "groups": 325}
    key = KEY.model_copy(update={"format": "greenlist-v3", "parameters": parameters, "messages": 325**2})
    traffic = Traffic(200_000, 0, 0, 0, ("s",), lengths={length: 200_000})
    stated = single_p(np.array(THRESHOLDS), key.messages, 1) / factor
    found = 200_000 * reserved_count(key.messages) * format_of(key).found_chance(np.array([length]), stated)[0]
    of_messages = np.zeros((reserved_count(key.messages), len(THRESHOLDS)), np.int64)
    random = np.random.default_rng(7)
    for j, mean in enumerate(found):
        np.add.at(of_messages[:, j], random.integers(len(of_messages), size=random.poisson(mean)), 1)
    sums = reserved_moments(traffic, unmarked(traffic, 1e-6), key, np.ones((1, 2, 2)), of_messages)
    about = Question("reserved", "exact", "message", cluster="message")
    rows = rate_rows(Audit.begin("", "", "", 1e-3), [(about, sums)], THRESHOLDS, KEY_BOUND)
    assert verdict == ("too small" if "too small" in {row["verdict"] for row in rows} else "quiet")


def test_marked_texts_hide_no_key_that_hits_too_often():
    """Three times too often in the unmarked half of the texts, which is 1.5 times over all texts."""
    assert reserved_verdict(2_000_000, 0, 3.0) == "too small"
    assert reserved_verdict(2_000_000, 1_000_000, 3.0) == "too small"
    assert reserved_verdict(2_000_000, 1_000_000, 1.0) == "quiet"
    assert reserved_verdict(2_000_000, 0, 1.5) == "quiet"  # the excess that an average over all texts would show


def test_flags_that_chance_explains_stay_in_the_expectation():
    at_a_loose_rate = Traffic(1000, 300, 20, 0, ("s",))
    assert unmarked(at_a_loose_rate, 0.3) == 1000
    assert unmarked(at_a_loose_rate, 0.1) == 1000 - (280 - 100)
    assert unmarked(Traffic(50, 50, 0, 0, ("s",)), 1e-6) > 0


def test_what_has_no_p_value_was_not_tested():
    scored = [verdict(i, text_sha256=bytes([i] * 32), log10_p_global=p) for i, p in enumerate([-1.0, None, None, -2.0])]
    assert measured(pl.DataFrame(scored), -6.0).texts == 2


def of_decoys(tests: float, excess: np.ndarray) -> set[str]:
    """Verdicts on independent decoys of all messages that hit `excess` times too often at each threshold."""
    alpha = np.array(DEEP_THRESHOLDS[: len(excess)])
    hits = np.round(tests * alpha * excess)
    clusters = np.full(len(alpha), tests)
    sums = ClusterSums(clusters, hits, tests * alpha, hits, hits * alpha, tests * alpha**2, clusters)
    about = Question("decoy_all", "exact", "greenlist", cluster="document")
    return {row["verdict"] for row in rate_rows(Audit.begin("", "", "", 5e-4), [(about, sums)], DEEP_THRESHOLDS)}


def test_a_law_that_is_right_at_1e_8_and_a_thousand_times_too_small_at_1e_12_is_seen():
    """Decoys see it on 1 % of 50 million documents, of 100,000 messages each; thresholds that end at 1e-8 do not."""
    tests = 0.01 * 50e6 * 1e5
    excess = 10.0 ** np.maximum(0.0, 3.0 * (np.arange(1, len(DEEP_THRESHOLDS) + 1) - 8) / 4)
    assert excess[[7, -1]].tolist() == [1.0, 1000.0]
    assert "too small" in of_decoys(tests, excess)
    assert "too small" not in of_decoys(tests, excess[: len(THRESHOLDS)])
    assert "too small" not in of_decoys(tests, np.ones(len(DEEP_THRESHOLDS)))


def test_reserved_messages_are_expected_as_often_as_in_the_kind_of_text_that_expects_most():
    """Texts that differ from their normal form have two looks; texts without parts have none by spans."""
    traffic = Traffic(1000, 0, 0, 0, ("s",))
    tests = ErrorShares(0.5, 0.5, 0.5, 0.5).corrections(KEY, 1)
    assert tests[:, 1, 1].tolist() == [4, 4]
    assert tests[0].tolist() == [[1, 2], [2, 4]]
    of_spans = single_p(THRESHOLDS, KEY.messages, 2)
    kinds = [
        single_p(THRESHOLDS, KEY.messages, 1),  # one look at all of the rate
        single_p(THRESHOLDS, KEY.messages, 2) + of_spans,
        2 * single_p(THRESHOLDS, KEY.messages, 2),
        2 * single_p(THRESHOLDS, KEY.messages, 4) + of_spans,
    ]
    sums = reserved_moments(traffic, 1000, KEY, tests, np.zeros((0, len(THRESHOLDS)), np.int64), of_spans)
    assert sums.expected == pytest.approx(1000 * reserved_count(KEY.messages) * np.max(kinds, axis=0), rel=1e-12)

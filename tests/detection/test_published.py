"""Rows of `verdicts` give nothing of a key away, while exact rows let anybody learn it."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection.rows import TextIds, flagged_rows, for_everybody, p_class, with_ids
from scanner.watermark import Tokens
from scanner.watermark.native.format import GreenListFormat, GumbelFormat
from scanner.watermark.rule import search
from schemas.tables import DECADES, VERDICTS
from tests.support.rows import filled, verdict

IDS = TextIds(bytes(range(16)))
ROWS = 24_000
VOCABULARY, LENGTH = 3000, 150


def published(rows: list[dict], tokens: int = 7, scored: int = 5) -> list[dict]:
    """Rows of `verdicts` made from exact rows, whose texts all have the same length under the first key."""
    exact = with_ids(pa.RecordBatch.from_pylist(rows, VERDICTS), IDS)
    lengths = {"row": exact["row"], "tokens": [tokens] * len(rows), "scored": [scored] * len(rows)}
    lengths["shown"] = [3] * len(rows)
    made = for_everybody(exact, pa.RecordBatch.from_pydict(lengths))
    made.validate(full=True)
    return made.to_pylist()


def tokens_of(ids: np.ndarray) -> Tokens:
    """Texts of equal length."""
    ends = np.arange(0, ids.size + 1, ids.shape[1], dtype=np.int64)
    return Tokens(np.ascontiguousarray(ids, np.uint32).ravel(), ends)


def test_the_difference_of_two_gumbel_rows_is_a_draw_and_their_verdicts_have_none():
    mark = GumbelFormat(window=4).open(bytes(range(32)))
    ids = np.random.default_rng(1).integers(0, 5000, 61)
    rows = []
    for row, end in enumerate((60, 61)):
        tokens = tokens_of(ids[None, :end])
        found = search(mark, tokens, mark.rule.positions(tokens, "ngram"), 1, 1)
        p, score = float(found.log10_p_global[0, 0]), float(found.score[0, 0])
        columns = {"log10_p": p, "log10_p_global": p, "score": score, "text_sha256": bytes([row] * 32)}
        rows.append(verdict(row, message=0, messages_tested=1, **columns))
    last = tokens_of(ids[None, 56:])
    alone = mark.score(last, mark.rule.positions(last, "ngram"), 0)[0]
    assert rows[1]["score"] - rows[0]["score"] == pytest.approx(alone, abs=1e-9)
    first, second = published(rows)
    assert {name for name in first if first[name] != second[name]} == {"row", "text_id"}
    assert [name for name, value in first.items() if isinstance(value, float)] == []


def guessed(texts: np.ndarray, said: np.ndarray, green: np.ndarray) -> float:
    """Share of a green list that least squares learn from one number for each text."""
    counts = np.zeros((len(texts), VOCABULARY), np.float32)
    counts[np.arange(len(texts))[:, None], texts] = 1
    counts -= counts.mean(0)
    squares = counts.T @ counts + np.eye(VOCABULARY, dtype=np.float32) * 1e-3
    slope = np.linalg.solve(squares, counts.T @ (said - said.mean()))
    return float(np.mean((slope > np.median(slope)) == green))


@pytest.mark.costly
@pytest.mark.seconds
def test_rows_without_a_window_tell_the_green_list_and_their_verdicts_tell_none_of_it():
    mark = GreenListFormat(window=0, gamma="1/2").open(bytes(range(32)))
    random, often = np.random.default_rng(7), 1 / np.sqrt(np.arange(1, VOCABULARY + 1))
    texts = random.choice(VOCABULARY, size=(ROWS, LENGTH), p=often / often.sum())
    tokens = tokens_of(texts)
    p = search(mark, tokens, mark.rule.positions(tokens, "ngram"), 1, 1).log10_p_global[:, 0]
    single = tokens_of(np.arange(VOCABULARY)[:, None])
    green = mark.score(single, mark.rule.positions(single, "ngram"), 0) > 0
    assert guessed(texts, -p, green) > 0.99
    assert guessed(texts, np.floor(-p / 3), green) > 0.6, "coarser than a decade is not enough"
    told = p_class(pa.array(p)).to_numpy().astype(np.float64)
    assert abs(guessed(texts, told, green) - 0.5) < 0.05  # 5 standard deviations of guessing


def test_rows_plainly():
    """Each column of each row holds no more than it may tell."""
    named = [{"key_id": "k", "message": 3, "user_id": "alice", "naming": "named", "log10_p_global": -9.0}]
    flagged = filled(VERDICTS, flagged=True, log10_p_global=-13.0, named=named, further_messages=named, canary=False)
    flagged |= {"text_id": None, "p_class": None}
    other = flagged | {
        "flagged": False,
        "log10_p_global": -2.0,
        "naming": "none",
        "named": None,
        "further_messages": None,
    }
    unscored = other | {"log10_p_global": None}
    exact = ("text_sha256", "score", "log10_p", "log10_p_global", "runner_up_log10_p", "runner_up_log10_p_global")
    exact = (*exact, "sketch")
    secret = dict.fromkeys((*exact, "p_rank"))
    best = dict.fromkeys(("key_id", "message", "messages_tested", "correction", "basis", "variant", "look"))
    (text_id,) = IDS.of(pa.array([bytes(32)])).to_pylist()
    plain = secret | best | {"tokens": 7, "scored": 5, "shown": 3, "text_id": text_id}
    without_p = [named[0] | {"log10_p_global": None}]
    assert published([flagged, other, unscored]) == [
        flagged
        | secret
        | {"named": without_p, "further_messages": without_p, "text_id": text_id, "p_class": 13 // DECADES},
        other | plain | {"p_class": 0},
        unscored | plain | {"p_class": None},
    ]
    (canary,) = published([flagged | {"canary": True}])
    assert (canary["flagged"], canary["key_id"]) == (False, flagged["key_id"])  # no flag that anybody counts
    batch = with_ids(pa.RecordBatch.from_pylist([other, flagged], VERDICTS), IDS)
    (kept,) = flagged_rows(batch, "set").to_pylist()
    assert kept == {"keys": "set"} | flagged | {"text_id": text_id, "p_class": 13 // DECADES}


def test_classes_hold_p_from_their_upper_end_down():
    told = p_class(pa.array([0.0, -0.1, 0.1 - DECADES, -float(DECADES), -0.1 - DECADES, -2.0 * DECADES, None]))
    assert told.to_pylist() == [0, 0, 0, 1, 1, 2, None]


def test_text_ids_tell_texts_apart_and_belong_to_a_secret():
    digests = pa.array([bytes([i] * 32) for i in (1, 2, 1)])
    ids = IDS.of(digests).to_pylist()
    assert [len(one) for one in ids] == [16] * 3
    assert ids[0] == ids[2] != ids[1]
    assert TextIds(bytes(16)).of(digests).to_pylist()[0] != ids[0]
    assert not {*ids} & {*IDS.for_audit(digests)}
    rotated, accounts = TextIds(bytes(16), bytes(range(16))), pa.array(["ann", "ben"])
    assert rotated.of(digests) == TextIds(bytes(16)).of(digests)
    assert rotated.of_accounts(accounts) == IDS.of_accounts(accounts)  # held against those of earlier nights
    assert rotated.for_filter(b"text") == IDS.for_filter(b"text")
    assert bytes(range(16)).hex() not in repr(IDS)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(IDS)

"""Every vector of known_answers.json through the fast path: integers exactly, reals to 1e-9 relative."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import scanner.watermark
from scanner.watermark import minus_ln_r
from scanner.watermark.native import secret as primitives
from scanner.watermark.native import streams
from tests.watermark.pairs import Pair, batch_tokens, greenlist, gumbel, log_gumbel

KNOWN = json.loads(
    (Path(scanner.watermark.__file__).parent / "native" / "known_answers.json").read_text(encoding="utf-8")
)
DOCUMENTS = KNOWN["documents"]


def close(actual: float, wanted: float | None) -> bool:
    wanted = -math.inf if wanted is None else wanted
    return actual == wanted or math.isclose(actual, wanted, rel_tol=1e-9)


def test_all_of_the_file_is_used():
    assert set(KNOWN) == {"chacha8", "streams", "draws", "documents"}
    assert {case["method"] for case in DOCUMENTS} == {"greenlist", "gumbel", "gumbel-log"}
    assert len(DOCUMENTS) == 60


@pytest.mark.parametrize("case", KNOWN["chacha8"])
def test_chacha8(case):
    block = streams.chacha8_block(np.array(case["key"], np.uint32), case["counter"], case["nonce"])
    assert block.tolist() == case["block"]


@pytest.mark.parametrize("case", KNOWN["streams"], ids=lambda case: case["label"])
def test_streams(case):
    secret, label, window = bytes.fromhex(case["secret"]), case["label"], case["window"]
    assert primitives.commitment(secret, label).hex() == case["commitment"]
    keys = primitives.derive(secret, label)
    assert keys.chacha.tolist() == case["chacha_key"]
    assert keys.sip.astype("<u8").tobytes().hex() == case["sip_key"]
    nonces = streams.window_nonces(keys, np.array(window, np.uint32), np.array([len(window)]), len(window))
    assert nonces.tolist() == [case["nonce"]]
    for word in case["words"]:
        got = streams.stream_word(keys, case["nonce"], word["planes"], word["plane"], word["i"])
        assert got == word["word"], word


@pytest.mark.parametrize("case", KNOWN["draws"], ids=lambda case: str(case["word"]))
def test_draws(case):
    (value,) = minus_ln_r(np.array([case["word"]], np.uint32)).tolist()
    assert close(value, case["sampling_minus_ln_r"])


def pair_of(case) -> Pair:
    secret, window = bytes.fromhex(case["secret"]), case["window"]
    if case["method"] == "greenlist":
        return greenlist(window, Fraction(case["gamma"]), secret)
    return (gumbel if case["method"] == "gumbel" else log_gumbel)(window, secret)


@pytest.mark.seconds
@pytest.mark.parametrize("case", DOCUMENTS, ids=lambda case: f"{case['method']}-{case['dedup']}-h{case['window']}")
def test_documents(case):
    pair, tokens = pair_of(case), batch_tokens([case["tokens"]])
    positions = pair.positions(tokens, case["dedup"])
    assert np.diff(positions.offsets).tolist() == [case["scored"]]
    score = pair.fast.score(tokens, positions, case["message"])
    if case["method"] == "greenlist":
        assert (score.dtype, score.tolist()) == (np.int64, [case["score"]])
    else:
        assert score.dtype == np.float64
        assert close(score[0], case["score"])
    log10_p = pair.fast.law.log10_p(score, np.diff(positions.offsets))
    assert close(log10_p[0], case["log10_p"])


@pytest.mark.parametrize("case", [case for case in DOCUMENTS if case["method"] != "gumbel-log"])
def test_the_search_over_messages_publishes_the_same_score(case):
    """A search up to the vector's message finds its score among the best two, or a second that is no lower."""
    pair, tokens = pair_of(case), batch_tokens([case["tokens"]])
    positions = pair.positions(tokens, case["dedup"])
    best = pair.fast.best_two(tokens, positions, case["message"] + 1)
    found = {int(best.message[0]): best.score[0], int(best.second_message[0]): best.second_score[0]}
    if case["message"] in found:
        assert close(found[case["message"]], case["score"])
    else:
        assert case["score"] <= best.second_score[0]

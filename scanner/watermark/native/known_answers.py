"""What the known answers of the native watermark compare: primitives, streams, draws and whole documents (SPEC §5)."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from scanner.watermark.format import Case, Pairs, Watermark
from scanner.watermark.native import choice, gumbel, secret
from scanner.watermark.native.greenlist import GreenList
from scanner.watermark.positions import ragged, scored_positions
from scanner.watermark.search import log10_p_of


def _chacha8(case: Case) -> Pairs:
    block = secret.chacha8_block(np.array(case["key"], np.uint32), case["counter"], case["nonce"])
    yield "block", case["block"], block.tolist()


def _streams(case: Case) -> Pairs:
    key, label, window = bytes.fromhex(case["secret"]), case["label"], np.array(case["window"], np.uint32)
    sub_keys = secret.derive(key, label)
    nonce = int(secret.nonces_of_windows(sub_keys, window[None, :])[0])
    yield "commitment", case["commitment"], secret.commitment(key, label).hex()
    yield "chacha_key", case["chacha_key"], sub_keys.chacha.tolist()
    yield "sip_key", case["sip_key"], sub_keys.sip.astype("<u8").tobytes().hex()
    yield "nonce", case["nonce"], nonce
    for word in case["words"]:
        where = {name: word[name] for name in ("planes", "plane", "i")}
        yield f"word {where}", word["word"], secret.stream_word(sub_keys, nonce, **where)


def _draws(case: Case) -> Pairs:
    draw, one = np.array([case["word"]], np.uint32), np.array([0, 1], np.int64)
    yield "gumbel", case["gumbel"], float(gumbel.sum_scores(draw, one)[0])
    yield "log", case["log"], float(gumbel.sum_log_scores(draw, one)[0])
    yield "sampling_minus_ln_r", case["sampling_minus_ln_r"], float(choice.minus_ln_r(draw)[0])


def _documents(case: Case) -> Pairs:
    key, window = bytes.fromhex(case["secret"]), case["window"]
    mark = _method(case["method"], key, window, case.get("gamma"))
    tokens = ragged([case["tokens"]])
    positions = scored_positions(tokens, window, case["dedup"])
    score = mark.score(tokens, positions, case["message"])
    yield "scored", case["scored"], int(positions.scored[0])
    # a count may be written as a real number, 5.0, but is compared exactly
    expected = case["score"]
    whole = case["method"] == "greenlist" and isinstance(expected, float) and expected.is_integer()
    yield "score", int(expected) if whole else expected, score[0].item()
    yield "log10_p", case["log10_p"], float(log10_p_of(mark.law, score, positions.scored)[0])


def _method(name: str, key: bytes, window: int, gamma: str | None) -> Watermark:
    if name == "greenlist":
        return GreenList(key, window, Fraction(gamma or ""))
    return {"gumbel": gumbel.Gumbel, "gumbel-log": gumbel.LogGumbel}[name](key, window)


GROUPS: dict[str, Callable[[Case], Pairs]] = {
    "chacha8": _chacha8,
    "streams": _streams,
    "draws": _draws,
    "documents": _documents,
}
"""By the group of known_answers.json."""

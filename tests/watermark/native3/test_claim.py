"""Scores of claims from shown seeds against a plain reading of the specification."""

import hashlib
import json
import math
import random
from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pytest

from scanner.watermark.native.claim import ClaimScore, claimed_positions, score_claim
from tests import reference3

KNOWN = json.loads((resources.files("scanner.watermark.native") / "known_answers_3.json").read_text(encoding="utf-8"))
SECRET, BEACON = bytes(range(7, 39)), bytes(range(90, 122))
QUARTER = Fraction(1, 4)


def method_of(method: str, window: int = 4, groups: int | None = None, **others: Any) -> reference3.Method:
    gamma = others.pop("gamma", QUARTER) if method == "greenlist" else None
    settings: dict[str, Any] = {"secret": SECRET, "beacon": BEACON, "seeds": 8} | others
    return reference3.Method(method, settings.pop("secret"), window, gamma, groups, **settings)


def plain_steps(mark: reference3.Method, tokens: Sequence[int], most: int) -> list[reference3.Step]:
    """The positions of a claim, in order."""
    steps = mark.steps(tokens)

    def rank(step: reference3.Step) -> bytes:
        return hashlib.sha256(
            step.nonce.to_bytes(8, "little") + step.second.to_bytes(8, "little") + step.token.to_bytes(4, "little")
        ).digest()

    return sorted(sorted(steps, key=rank)[:most], key=lambda step: step.place)


def seed_of(mark: reference3.Method, bucket: int) -> bytes:
    return reference3.seed_of(mark.seed_key, bucket)


@cache
def plain_leaf(mark: reference3.Method, bucket: int) -> bytes:
    return hashlib.sha256(b"\0" + seed_of(mark, bucket)).digest()


def plain_score(
    mark: reference3.Method, tokens: Sequence[int], message: int, before: Collection[bytes] = (), most: int = 1000
) -> ClaimScore:
    steps = plain_steps(mark, tokens, most)

    def score(some: list[reference3.Step]) -> int | float:
        new = [step for step in some if plain_leaf(mark, step.bucket) not in before]
        old = [step for step in some if step not in new]
        terms = {step.place: mark.term(step, mark.number(message, step.of_group)) for step in some}
        if mark.gamma is not None:
            return sum(terms[step.place] for step in new) + math.floor(
                mark.gamma * sum(terms[step.place] for step in old)
            )
        return sum(min(terms[step.place], 1.0) if step in old else terms[step.place] for step in some)

    user = [step for step in steps if not step.of_group]
    shows = {plain_leaf(mark, step.bucket) for step in steps} - {*before}
    total, own = score(steps), score(user)
    return ClaimScore(
        len(steps),
        total,
        len(user),
        own,
        tuple(sorted(shows)),
        mark.log10_p(total, len(steps)),
        mark.log10_p(own, len(user)),
    )


def fast_score(
    mark: reference3.Method, tokens: Sequence[int], message: int, before: Collection[bytes] = (), most: int = 1000
) -> ClaimScore:
    buckets = claimed_positions(tokens, mark.label, most).buckets.tolist()
    seeds = {bucket: seed_of(mark, bucket) for bucket in buckets}
    return score_claim(tokens, message, mark.label, mark.beacon, seeds, before, most)


def assert_alike(fast: ClaimScore, plain: ClaimScore) -> None:
    assert (fast.scored, fast.scored_user, fast.shows) == (plain.scored, plain.scored_user, plain.shows)
    for name in ("score", "score_user", "log10_p", "log10_p_user"):
        found, expected = getattr(fast, name), getattr(plain, name)
        assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12), (name, found, expected)


def text(seed: int, length: int, vocabulary: int = 50_000) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(length)]


@pytest.mark.parametrize("number", range(len(KNOWN["claims"])))
def test_known_answers(number):
    case = KNOWN["claims"][number]
    others = {"gamma": Fraction(case["gamma"])} if "gamma" in case else {}
    mark = method_of(
        case["method"],
        case["window"],
        case["groups"],
        secret=bytes.fromhex(case["secret"]),
        beacon=bytes.fromhex(case["beacon"]),
        seeds=case["seeds"],
        **others,
    )
    before = {bytes.fromhex(leaf) for leaf in case["shown_before"]}
    found = fast_score(mark, case["tokens"], case["message"], before, case["most"])
    expected = ClaimScore(
        case["scored"],
        case["score"],
        case["scored_user"],
        case["score_user"],
        tuple(bytes.fromhex(leaf) for leaf in case["shows"]),
        case["log10_p"],
        case["log10_p_user"],
    )
    assert_alike(found, expected)


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
@pytest.mark.parametrize(("groups", "message"), [(None, 0), (None, 65_535), (2, 3), (31, 700), (65_536, 2**32 - 1)])
@pytest.mark.parametrize("window", [1, 4, 5])
def test_scores_are_those_of_a_plain_reading(method, groups, message, window):
    mark, tokens = method_of(method, window, groups), text(window, 90, vocabulary=6)
    leaves = [plain_leaf(mark, bucket) for bucket in range(0, 2**8, 3)]
    for before, most in (((), 1000), (leaves, 1000), (leaves, 30)):
        plain = plain_score(mark, tokens, message, before, most)
        assert_alike(fast_score(mark, tokens, message, before, most), plain)
        assert plain.scored == min(most, len({tuple(tokens[i - window : i + 1]) for i in range(window, 90)}))


@pytest.mark.parametrize("gamma", ["1/2", "3/8", "5/16", "255/256", "1/256", "97/128"])
def test_every_share_of_green_tokens(gamma):
    mark = method_of("greenlist", 3, 7, gamma=Fraction(gamma))
    before = [plain_leaf(mark, bucket) for bucket in range(100)]
    assert_alike(fast_score(mark, text(5, 60), 40, before), plain_score(mark, text(5, 60), 40, before))


def test_a_window_of_no_tokens():
    mark = method_of("greenlist", 0, seeds=4)
    assert_alike(fast_score(mark, text(1, 40, 10), 5), plain_score(mark, text(1, 40, 10), 5))


@pytest.mark.parametrize("length", [0, 1, 3, 4])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_a_unit_without_a_whole_window_scores_nothing(method, length):
    assert fast_score(method_of(method, 4, 3), text(0, length), 8) == (0, 0, 0, 0, (), 0.0, 0.0)


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_whatever_was_shown_before_the_score_is_no_larger(method):
    """However an innocent text's seeds are shown first, each choice of them lowers S and S_U or leaves them."""
    mark, draw = method_of(method, 4, 5), random.Random(3)
    for seed in range(4):
        tokens, message = text(seed, 40), draw.randrange(25)
        whole = fast_score(mark, tokens, message)
        steps = plain_steps(mark, tokens, 1000)
        terms = [mark.term(step, mark.number(message, step.of_group)) for step in steps]
        low = [step.bucket for step, term in zip(steps, terms, strict=True) if term < 1]
        for buckets in (low, draw.sample(range(2**8), 80), range(2**8)):
            claimed = fast_score(mark, tokens, message, {plain_leaf(mark, bucket) for bucket in buckets})
            assert (claimed.scored, claimed.scored_user) == (whole.scored, whole.scored_user)
            assert claimed.score <= whole.score + 1e-9
            assert claimed.score_user <= whole.score_user + 1e-9
            assert claimed.log10_p >= whole.log10_p - 1e-9


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_text_that_is_written_from_shown_seeds_scores_no_more_than_chance(method):
    mark = method_of(method, 2, seeds=6)
    before = {plain_leaf(mark, bucket) for bucket in range(2**6)}
    tokens = text(0, 2)
    for _ in range(50):  # the best of some tokens each time, with all seeds known
        tokens.append(max(text(len(tokens), 8), key=lambda token: mark.term(mark.step(tokens[-2:], token), 9)))
    assert fast_score(mark, tokens, 9).log10_p < -5
    assert fast_score(mark, tokens, 9, before).log10_p > -1


def test_a_token_at_the_end_redraws_nothing():
    """Of the positions that are chosen, at most one goes when a token is added."""
    mark, tokens = method_of("gumbel"), text(11, 400)
    chosen = []
    for length in (399, 400):
        kept = claimed_positions(tokens[:length], mark.label, 50)
        chosen.append({*zip(kept.nonces.tolist(), kept.tokens.tolist(), strict=True)})
        assert len(chosen[-1]) == 50
    assert len(chosen[0] & chosen[1]) >= 49


def test_repeats_are_told_by_both_nonces():
    """Two windows of one N and other N' are two positions: such a pair is in the known answers."""
    pairs = 0
    for case in KNOWN["claims"]:
        gamma = f";gamma={case['gamma']}" if "gamma" in case else ""
        groups = f";groups={case['groups']}" if case["groups"] else ""
        label = f"{case['method']}-v3;h={case['window']}{gamma}{groups};seeds={case['seeds']}"
        kept = claimed_positions(case["tokens"], label)
        pairs += len(np.unique(kept.nonces)) < len(np.unique(kept.seconds))
    assert pairs > 0


def test_what_a_claimant_gets_wrong_is_refused():
    mark, tokens = method_of("gumbel", 4, 3), text(2, 30)
    buckets = claimed_positions(tokens, mark.label).buckets.tolist()
    seeds = {bucket: seed_of(mark, bucket) for bucket in buckets}

    def claim(**changes: Any) -> ClaimScore:
        values = {"tokens": tokens, "message": 8, "label": mark.label, "beacon": BEACON, "seeds": seeds} | changes
        return score_claim(**values)

    assert claim().scored == 26
    without = {bucket: seed for bucket, seed in seeds.items() if bucket != buckets[3]}
    with pytest.raises(ValueError, match=f"shows no seed of bucket {buckets[3]}, which"):
        claim(seeds=without)
    with pytest.raises(ValueError, match="two buckets have one seed"):
        claim(seeds=seeds | {buckets[3]: seeds[buckets[4]]})
    for seed in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="a seed has 32 bytes"):
            claim(seeds=seeds | {buckets[3]: seed})
    for message in (-1, 9):
        with pytest.raises(ValueError, match="does not exist under a key of 9"):
            claim(message=message)
    for beacon in (b"", bytes(31), bytes(64)):
        with pytest.raises(ValueError, match="R has 32 bytes"):
            claim(beacon=beacon)
    for leaf in (b"", bytes(31), ("00" * 32).encode()):
        with pytest.raises(ValueError, match="shown before has 32 bytes"):
            claim(shown_before=[bytes(32), leaf])
    for token in (-1, 2**32):
        with pytest.raises(ValueError, match="32-bit"):
            claim(tokens=[*tokens, token])
    for label in ("gumbel-v2;h=4;groups=3", mark.label + " ", mark.label.replace("h=4", "h=04"), ""):
        with pytest.raises(ValueError, match="is not a label of version 3"):
            claim(label=label)

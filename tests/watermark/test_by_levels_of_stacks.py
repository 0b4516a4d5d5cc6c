"""Marks of vLLM and SGLang by levels: scores, searches, ranks, floors and slow paths, against plain references."""

import hashlib
import time
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from scanner.watermark import Positions, Tokens, Watermark, batch_tokens, select_positions
from scanner.watermark.by_levels import ByLevels, ByLevelsProof, lacks_for_levels
from scanner.watermark.format import Format
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.level_laws import LEVELS
from scanner.watermark.native.version3_marks import Version3Gumbel
from scanner.watermark.rule import LEAST_RANK, decide, ranked, search
from scanner.watermark.stacks.sglang.user_keys import SglangUsers, best_two, user_key
from tests.watermark.mpmath_oracle import gumbel_tail
from tests.watermark.random_levels import levels_of, texts
from tests.watermark.sglang import reference as sglang
from tests.watermark.vllm import reference as vllm

pytestmark = pytest.mark.seconds

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": ("vllm-gumbel", {"context_width": 3}),
    "whole contexts": ("vllm-gumbel", {"context_width": 3, "partial_contexts": "dropped"}),
    "two keys of vllm": ("vllm-dual-key", {"context_width": 3}),
    "two equal keys of vllm": ("vllm-dual-key", {"context_width": 3, "alpha": 0.5}),
    "sglang": ("sglang-one-key", {"context_window": 3}),
    "two keys of sglang": ("sglang-two-keys", {"context_window": 3, "mixing_probability": 0.3}),
    "users of sglang": ("sglang-user-keys", {"context_window": 3}),
}


def form_of(case: str) -> Format:
    name, parameters = FORMS[case]
    return make_format(name, parameters)


def secret_of(form: Format, number: int = 0) -> bytes:
    secret: bytes = form.draw_key(hashlib.sha256(b"%d" % number).digest())  # type: ignore[attr-defined]
    return secret


def plain_terms(form: Format, secret: bytes, document: list[int], place: int, message: int) -> list[mp.mpf]:
    """What a token adds to the sum of each key, exactly, by the references."""
    parameters: Any = form
    if form.name.startswith("vllm"):
        master = int.from_bytes(secret, "big")
        keys = [vllm.derive(master, name) for name in ("key_a", "key_b")] if "dual" in form.name else [master]
        width = parameters.context_width
        context = ([-1] * width + document)[place : place + width]
        return [-mp.log(1 - mp.mpf(vllm.word(key, context, document[place]) >> 8) / 2**24) for key in keys]
    keys = [int.from_bytes(secret[i : i + 8], "big") for i in range(0, len(secret), 8)]
    if form.name == "sglang-user-keys":
        keys = [user_key(secret, message)]
    written = [f"{key:x}" for key in keys]
    width = parameters.context_window
    seed = sglang.context_hash(document[place - width : place])
    chosen = written[0]
    if len(keys) == 2 and sglang.coin(*written, seed) >= int(parameters.mixing_probability * 2**32):
        chosen = written[1]
    return [-mp.log(1 - mp.mpf(sglang.token_hash(chosen, seed, document[place])) / 2**32)]


def plain_score(form: Format, secret: bytes, document: list[int], places: list[int], message: int = 0) -> mp.mpf:
    """−ln p by partial fractions in 250 digits; of vLLM's two keys the best of 0.9 : 0.1 over 4/5 and of halves."""
    levels = levels_of(batch_tokens([document])).tolist()
    counts = np.bincount([levels[place] for place in places], minlength=LEVELS + 1).tolist()
    with mp.workdps(250):
        each = [[levels[place] * x for x in plain_terms(form, secret, document, place, message)] for place in places]
        sums = [mp.fsum(of_key) for of_key in zip(*each, strict=True)]
        found = [mp.mpf(0)]
        alpha = getattr(form, "alpha", None)
        choices = [(alpha, 0.8), (0.5, 0.2)] if alpha != 0.5 else [(0.5, 1.0)]
        for weight, share in choices if alpha is not None else [(0.0, 1.0)]:
            of_value: dict[mp.mpf, int] = {}
            for of_key in (1 - mp.mpf(weight), mp.mpf(weight)):
                for level, count in enumerate(counts):
                    of_value[of_key * level] = of_value.get(of_key * level, 0) + count
            total = (1 - mp.mpf(weight)) * sums[0] + (weight * sums[1] if weight else 0)
            if total > 0:
                found.append(mp.log(mp.mpf(share)) - mp.log(gumbel_tail(total, [*of_value.values()], [*of_value])))
        return max(found)


@pytest.mark.costly
@pytest.mark.parametrize("case", FORMS)
def test_scores_and_proofs_are_of_the_sums_by_levels(case: str) -> None:
    form = form_of(case)
    secret = secret_of(form)
    mark, tokens = form.open(secret), texts(6, 26)
    positions = mark.rule.positions(tokens, "ngram")
    found = search(ByLevels(mark, levels_of), tokens, positions, 1)
    proof = ByLevelsProof(form.proof(secret), levels_of, form)  # type: ignore[attr-defined]
    exact = []
    for d in range(6):
        ids = tokens.ids[tokens.offsets[d] : tokens.offsets[d + 1]]
        places = positions.index[positions.offsets[d] : positions.offsets[d + 1]] - tokens.offsets[d]
        wanted = plain_score(form, secret, ids.tolist(), places.tolist())
        exact.append(float(wanted))
        assert found.score[d, 0] == pytest.approx(float(wanted), rel=1e-9, abs=1e-9)
        assert found.score[d, 0] <= float(wanted) + 1e-13  # p is never too small
        scored, (score,) = proof.scores(ids, [0], "ngram")
        assert (scored, score) == (positions.scored[d], pytest.approx(float(wanted), rel=1e-9, abs=1e-9))
        assert proof.log10_p(score, scored) == pytest.approx(found.log10_p[d, 0], rel=1e-8, abs=1e-8)
    assert max(exact) > 0.5


@pytest.mark.parametrize("dedup", ["ngram", "context", "none"])
@pytest.mark.parametrize("case", FORMS)
def test_slow_paths_agree_in_long_texts_with_repeats(case: str, dedup: Any) -> None:
    form = form_of(case)
    drawn = np.random.default_rng(3).integers(0, 40, 1500) ** 3
    tokens = batch_tokens([np.concatenate([drawn, drawn[:400]]).astype(np.uint32)])
    scores = []
    for number in range(4):
        mark = form.open(secret_of(form, number))
        positions = mark.rule.positions(tokens, dedup)
        found = search(ByLevels(mark, levels_of), tokens, positions, 1)
        proof = ByLevelsProof(form.proof(secret_of(form, number)), levels_of, form)  # type: ignore[attr-defined]
        scored, (score,) = proof.scores(tokens.ids, [0], dedup)
        assert (scored, score) == (positions.scored[0], pytest.approx(found.score[0, 0], rel=1e-9, abs=1e-8))
        scores.append(score)
    assert min(scores) != max(scores)


@pytest.mark.parametrize("number", [1, 2, 700])
def test_a_search_of_users_finds_the_best_two_of_all(number: int) -> None:
    """The first text has no token that counts, and the last none at all: all users are as good."""
    form = form_of("users of sglang")
    mark, tokens = form.open(secret_of(form)), texts(4, 90)
    foregone = np.flatnonzero(levels_of(Tokens(np.arange(5000, dtype=np.uint32), np.array([0, 5000]))) == 0)
    rng = np.random.default_rng(1)
    tokens = batch_tokens([rng.choice(foregone, 50), *np.split(tokens.ids, tokens.offsets[1:-1]), []])
    positions = mark.rule.positions(tokens, "ngram")
    weighted = ByLevels(mark, levels_of)
    found = weighted.search(tokens, positions, number)
    every = np.stack([weighted.score(tokens, positions, message) for message in range(number)], axis=1)
    best = np.lexsort((np.broadcast_to(np.arange(number), every.shape), -every), axis=1)[:, :2]
    assert found.message[:, : best.shape[1]].tolist() == best.tolist()
    assert (found.score[:, : best.shape[1]] == np.take_along_axis(every, best, axis=1)).all()
    assert found.independent
    assert (found.message[:, best.shape[1] :] == -1).all()
    assert every[[0, -1]].max() == 0.0


def test_texts_in_which_no_token_counts_cost_nothing_however_many_users_there_are() -> None:
    """All users are as good. To score each of them exactly took 1.7 CPU seconds."""
    states, drawn = np.arange(20_000, dtype=np.uint32), np.arange(6_000, dtype=np.uint32)
    foregone, offsets = np.zeros(6_000, np.uint8), np.arange(0, 6_001, 300)
    best_two(states, drawn, drawn, offsets[:2], foregone)  # compiled
    began = time.process_time()
    message, score = best_two(states, drawn, drawn, offsets, foregone)
    assert time.process_time() - began < 0.3
    assert (message == [0, 1]).all()
    assert not score.any()


def test_two_users_of_one_state_name_nobody_by_levels() -> None:
    form = form_of("users of sglang")
    mark, tokens = form.open(secret_of(form)), texts(1, 60)
    assert isinstance(mark, SglangUsers)
    same = mark.states(10).copy()
    same[7] = same[2]
    mark._states.value = same
    positions = mark.rule.positions(tokens, "ngram")
    assert not ByLevels(mark, levels_of).search(tokens, positions, 10).independent
    assert ByLevels(mark, levels_of).search(tokens, positions, 7).independent


def marked_tokens(marks: list[Watermark], count: int, messages: int) -> Tokens:
    """Tokens each of which is the best of 60 for the worst of several keys, of a message that is the last of all."""
    rng, chosen = np.random.default_rng(9), [1, 2, 3]
    while len(chosen) < count:
        drawn = rng.integers(0, 50_000, 60).tolist()
        tokens = batch_tokens([[*chosen[-3:], one] for one in drawn])
        last = Positions(tokens.offsets[1:] - 1, np.arange(61))
        scores = [mark.terms_of_keys(tokens, last, messages - 1).mean(axis=0) for mark in marks]  # type: ignore[attr-defined]
        chosen.append(drawn[int(np.min(scores, axis=0).argmax())])
    return batch_tokens([chosen])


@pytest.mark.costly
@pytest.mark.parametrize(("case", "messages"), [*((case, 1) for case in FORMS), ("users of sglang", 30)])
def test_a_mark_is_found_with_its_floor_and_its_rank(case: str, messages: int) -> None:
    form = form_of(case)
    mark = form.open(secret_of(form))
    weighted, tokens = ByLevels(mark, levels_of), marked_tokens([mark], 260, messages)
    positions = mark.rule.positions(tokens, "ngram")
    found = search(weighted, tokens, positions, messages)
    assert found.message[0, 0] == messages - 1
    bits = form.basis().bits
    assert found.score[0, 0] > bits
    assert found.log10_p[0, 0] == -bits * np.log10(2.0)
    proof = ByLevelsProof(form.proof(secret_of(form)), levels_of, form)  # type: ignore[attr-defined]
    scored, (score,) = proof.scores(tokens.ids, [messages - 1], "ngram")
    assert proof.log10_p(score, scored) == found.log10_p[0, 0]
    assert not decide([found], 1e-6).flagged[0]  # without its rank
    found = ranked(found, weighted, tokens, positions, messages, 1e-6)
    assert found.p_rank[0, 0] == LEAST_RANK
    assert decide([found], 1e-6).flagged[0]


@pytest.mark.parametrize("case", FORMS)
def test_text_that_a_decoy_scores_as_high_is_not_flagged(case: str) -> None:
    form = form_of(case)
    mark = form.open(secret_of(form))
    weighted, tokens = ByLevels(mark, levels_of), marked_tokens([mark, mark.decoy(3)], 260, 1)  # type: ignore[attr-defined]
    positions = mark.rule.positions(tokens, "ngram")
    found = search(weighted, tokens, positions, 1)
    assert found.log10_p_global[0, 0] < -6.0
    tied = found._replace(score=np.minimum(found.score, weighted.decoy(3).score(tokens, positions, 0)))
    beaten = ranked(tied, weighted, tokens, positions, 1, 1e-6)
    assert beaten.p_rank[0, 0] == pytest.approx(1 / 3)
    assert beaten.log10_p_global[0, 0] >= np.log10(1 / 3)
    assert not decide([beaten], 1e-6).flagged[0]


@pytest.mark.parametrize("case", FORMS)
def test_decoys_by_levels_are_the_decoys_of_the_mark(case: str) -> None:
    form = form_of(case)
    mark, tokens = form.open(secret_of(form)), texts(3, 80)
    positions = select_positions(mark.rule.positions(tokens, "ngram"), [2, 0])
    weighted = ByLevels(mark, levels_of)
    for number in (1, 999):
        decoy = ByLevels(mark.decoy(number), levels_of)  # type: ignore[attr-defined]
        scores = weighted.decoy(number).score(tokens, positions, 0)
        assert scores.tolist() == decoy.score(tokens, positions, 0).tolist()
        assert scores.tolist() != weighted.score(tokens, positions, 0).tolist()


def answer(mark: Any, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Tokens of which a tenth were chosen among 32 as the stack chooses, and the levels by a rough model."""
    chosen, levels = rng.integers(0, 50_000, 3).tolist(), [0, 0, 0]
    for _ in range(200):
        drawn = rng.integers(0, 50_000, 32).tolist()
        free, best = rng.random() < 0.1, 0
        if free:
            tokens = batch_tokens([[*chosen[-3:], one] for one in drawn])
            terms = mark.terms_of_keys(tokens, Positions(tokens.offsets[1:] - 1, np.arange(33)), 0)
            best = int(terms[0 if len(terms) == 1 or rng.random() < 0.9 else 1].argmax())
        chosen.append(drawn[best])
        levels.append(int(rng.integers(4, 9) if free else rng.integers(0, 3)))
    return chosen, levels


@pytest.mark.costly
@pytest.mark.parametrize("case", FORMS)
def test_marked_text_in_which_most_is_foregone_is_found_more_often_by_levels(case: str) -> None:
    """40 answers, each under a key of its own, at half of 1e-6 in each look.

    The difference exceeds five standard errors of a count of which one half is found: 5·√(40/4) < 16.
    """
    form, rng, found = form_of(case), np.random.default_rng(17), []
    for number in range(40):
        mark = form.open(secret_of(form, number))
        chosen, levels = answer(mark, rng)
        tokens, of_tokens = batch_tokens([chosen]), np.array(levels, np.uint8)
        positions = mark.rule.positions(tokens, "ngram")
        looks = mark, ByLevels(mark, lambda _, of_tokens=of_tokens: of_tokens)  # type: ignore[misc]
        found.append([search(look, tokens, positions, 1).log10_p_global[0, 0] <= np.log10(5e-7) for look in looks])
    by_sum, by_levels = np.sum(found, axis=0).tolist()
    assert by_levels >= by_sum + 16


class WithoutDecoys(Version3Gumbel):
    """A mark whose key could be searched."""

    def __init__(self, mark: Version3Gumbel) -> None:
        vars(self).update(vars(mark), basis=form_of("sglang").basis())


def test_a_key_that_needs_a_rank_and_has_no_decoys_has_no_scores_by_levels() -> None:
    mark = make_format("gumbel-v3", {"window": 3, "beacon": "00" * 32}).open(bytes(32))
    assert isinstance(mark, Version3Gumbel)
    with pytest.raises(ValueError, match="has no decoys, without which"):
        ByLevels(WithoutDecoys(mark), levels_of)
    with pytest.raises(ValueError, match="has no decoys"):
        ByLevels(mark, levels_of).decoy(1)


def test_formats_say_whether_their_tokens_count_by_levels() -> None:
    parameters: dict[str, dict[str, Any]] = {
        name: {"vocab_size": 1000} if "vocab_size" in form.model_fields else dict(form.suggested)
        for name, form in FORMATS.items()
    }
    parameters["greenlist"]["gamma"] = "1/4"
    forms = [make_format(name, of_name) for name, of_name in parameters.items()]
    weighed = [form.name for form in forms if not lacks_for_levels(form, 1)]
    assert weighed == [
        *("greenlist", "gumbel", "greenlist-v3", "gumbel-v3"),
        *("vllm-gumbel", "vllm-dual-key", "sglang-one-key", "sglang-two-keys", "sglang-user-keys"),
    ]
    assert lacks_for_levels(make_format("sglang-user-keys", {}), 1000) == ""
    for alpha, lacks in (
        (0.01, True),
        (0.1, False),
        (0.5, False),
        (0.9, False),
        (0.95, True),
        (0.0, False),
        (1.0, False),
    ):
        assert bool(lacks_for_levels(make_format("vllm-dual-key", {"alpha": alpha}), 1)) == lacks, alpha


@pytest.mark.costly
@pytest.mark.parametrize("case", FORMS)
def test_fresh_keys_reach_each_rate_as_often_as_it_says(case: str) -> None:
    """4,000 keys on 5 texts each; levels do not depend on keys. Counts are binomial; five standard errors of each.

    Two weights of two keys reach a rate less often, since both may.
    """
    form, tokens, found = form_of(case), texts(5, 60, seed=5), list[NDArray[np.float64]]()
    for number in range(4_000):
        mark = form.open(secret_of(form, number))
        weighted, positions = ByLevels(mark, levels_of), mark.rule.positions(tokens, "ngram")
        found.append(search(weighted, tokens, positions, 1).log10_p[:, 0])
    log10_p = np.concatenate(found)
    for rate in (0.5, 0.1, 0.01, 0.001):
        hits, expected = (log10_p <= np.log10(rate)).sum(), rate * len(log10_p)
        assert hits <= expected + 5.0 * np.sqrt(expected)
        if case != "two keys of vllm":
            assert hits >= expected - 5.0 * np.sqrt(expected)

"""The logits processors against the specification: single steps, and whole generations of a tiny model."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from scanner.errors import Refused
from scanner.generation import GreenListProcessor, GumbelProcessor, LocalModel
from scanner.watermark import GreenList, Gumbel, batch_tokens, cheapest, cut, scored_positions
from tests.generation import slow
from tests.generation.batches import LENGTHS, SAMPLING, SECRET, batch
from tests.generation.conftest import VOCABULARY

GAMMAS = [Fraction(1, 4), Fraction(3, 8), Fraction(1, 2)]
MESSAGES = [0, 17, 5, 4_000_000_000]


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_green_list_adds_delta_to_green_tokens_only(window: int, gamma: Fraction, extra: int) -> None:
    ids, own, logits = batch(1, extra)
    before = logits.clone()
    processor = GreenListProcessor(GreenList(SECRET, window, gamma), MESSAGES, LENGTHS, delta=2.5)
    found = processor(ids, logits)
    for row, (previous, message) in enumerate(zip(own, MESSAGES, strict=True)):
        wanted = slow.biased(SECRET, window, gamma, 2.5, previous, message, logits[row].tolist())
        assert torch.equal(found[row], torch.tensor(wanted, dtype=torch.float32))
        assert torch.equal(found[row], logits[row]) == (len(previous) < window)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLING)
def test_gumbel_chooses_as_specified(window: int, extra: int, temperature: float, top_k: int, top_p: float) -> None:
    for seed in range(5):
        ids, own, logits = batch(seed, extra)
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        found = GumbelProcessor(Gumbel(SECRET, window), MESSAGES, LENGTHS, **how)(ids, logits)
        for row, (previous, message) in enumerate(zip(own, MESSAGES, strict=True)):
            p = slow.distribution(logits[row].tolist(), temperature, top_k, top_p)
            token = slow.gumbel_token(SECRET, window, previous, message, p)
            assert (found[row] == 0).sum() == 1
            assert torch.isneginf(found[row]).sum() == VOCABULARY - 1
            assert p[int(found[row].argmax())] > 0
            assert token is None or int(found[row].argmax()) == token


@pytest.mark.parametrize(
    ("draws", "p", "token"),
    [
        # in 32 bits r would be 1 for the last token, its cost 0, and it would win with any probability
        ([2**31, 2**30, 5, 2**32 - 1], [0.7, 0.2, 0.1, 1e-12], 0),
        ([2**31, 2**30, 5, 2**32 - 100], [0.7, 0.2, 0.1, 1e-12], 0),
        ([2**31, 2**30, 5, 2**32 - 1], [0.7, 0.2, 0.1, 1e-9], 3),
        ([2**32 - 2, 2**32 - 1, 2**32 - 3, 0], [0.45, 0.16, 0.39, 1e-3], 1),
        ([2**32 - 2, 2**32 - 1, 2**32 - 3, 0], [0.46, 0.14, 0.4, 1e-3], 0),
        ([9, 9, 9, 9], [0.25, 0.25, 0.25, 0.25], 0),  # ties go to the smallest id
        ([9, 2**32 - 1, 2**32 - 1, 9], [0.1, 0.4, 0.4, 0.1], 1),
        ([0, 0, 2**32 - 1, 0], [0.6, 0.4, 0.0, 0.0], 0),  # a token of probability 0 is never chosen
    ],
)
def test_gumbel_near_r_equal_to_one(draws: list[int], p: list[float], token: int) -> None:
    logits = torch.tensor([p]).log()
    exact = slow.distribution(logits[0].double().tolist(), 1.0, 0, 1.0)
    assert slow.chosen(draws, exact) == token
    weights = (logits[0] - logits[0].max()).exp().double().numpy()
    assert cheapest(np.array(draws, np.uint32), weights, 0, -1, np.inf)[0] == token


def test_unmarked_gumbel_steps_follow_the_distribution_and_the_seed() -> None:
    rows = 4000
    logits = torch.tensor([0.5, 0.25, 0.2, 0.05]).log().repeat(rows, 1)
    ids = torch.full((rows, 2), 3)  # at h = 0 the only window is used from the second step on

    def tokens(seed: int) -> torch.Tensor:
        how = {"top_p": 0.9, "seed": seed, "skip_used_windows": True}
        return GumbelProcessor(Gumbel(SECRET, 0), [0] * rows, [1] * rows, **how)(ids, logits).argmax(1)

    share = tokens(1).bincount(minlength=4) / rows
    assert share[3] == 0
    assert share[:3].tolist() == pytest.approx([0.5 / 0.95, 0.25 / 0.95, 0.2 / 0.95], abs=0.03)
    assert torch.equal(tokens(1), tokens(1))
    assert not torch.equal(tokens(1), tokens(2))


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 6.0, 300.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 0.3), (0, 0.95), (1, 1.0), (12, 1.0), (12, 0.6), (0, 1.0), (2000, 1.0)]
)
def test_what_top_k_and_top_p_leave(spread: float, top_k: int, top_p: float) -> None:
    """Against sorting 1,000 logits, from all equal to one with all the mass; equal logits stay or go together."""
    logits = np.random.default_rng(1).normal(0, 1, 1000).round(2) * spread
    weights = np.exp(logits - logits.max())
    kept = np.sort(weights)[::-1][: top_k or None]
    last = int(np.searchsorted(kept.cumsum(), top_p * kept.sum() * (1 - 1e-12))) if top_p < 1 else len(kept) - 1
    wanted = np.where(weights >= kept[last], weights, 0.0)
    cut(weights, top_k, top_p)
    assert weights.tolist() == wanted.tolist()


@pytest.mark.parametrize("window", [0, 2])
def test_a_used_window_can_be_left_unmarked(window: int) -> None:
    mark = GreenList(SECRET, window, Fraction(1, 2))
    logits = torch.zeros(2, VOCABULARY)
    # four tokens of prompt (0 is padding), four of completion; row 0 has used its last window before, row 1 has not
    ids, lengths = torch.tensor([[5, 6, 1, 2, 5, 6, 5, 6], [0, 0, 9, 5, 6, 7, 5, 8]]), [4, 2]
    processor = GreenListProcessor(mark, [1, 1], lengths, delta=1.0, skip_used_windows=True)
    marked = processor(ids, logits).any(dim=1).tolist()
    assert marked == [False, window == 2]
    earlier = processor(ids[:, :6], logits).any(dim=1).tolist()
    assert earlier == [window == 2] * 2  # 5 6 stood in the prompt: not used yet
    assert processor(ids[:, :4], logits).any(dim=1).all()
    assert GreenListProcessor(mark, [1, 1], lengths, delta=1.0)(ids, logits).any(dim=1).all()


def prompts(model: LocalModel) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    ids, _, _ = batch(7)
    own = [row[len(row) - length :].tolist() for row, length in zip(ids, LENGTHS, strict=True)]
    mask = torch.tensor([[0] * (max(LENGTHS) - n) + [1] * n for n in LENGTHS])
    return {"input_ids": ids, "attention_mask": mask}, own


def steps(written: torch.Tensor) -> list[list[tuple[list[int], int]]]:
    """(previous tokens, token) of every step of every row."""
    width = max(LENGTHS)
    return [
        [(row[width - length : t].tolist(), int(row[t])) for t in range(width, written.shape[1])]
        for row, length in zip(written, LENGTHS, strict=True)
    ]


@pytest.mark.parametrize("window", [0, 4])
def test_greedy_generation_with_a_green_list(tiny: LocalModel, window: int) -> None:
    inputs, _ = prompts(tiny)
    gamma = Fraction(1, 4)
    processor = GreenListProcessor(GreenList(SECRET, window, gamma), MESSAGES, LENGTHS, delta=1.5)
    written = tiny.model.generate(
        **inputs, logits_processor=[processor], do_sample=False, max_new_tokens=12, pad_token_id=0
    )
    for row, message in zip(steps(written), MESSAGES, strict=True):
        for previous, token in row:
            logits = tiny.model(torch.tensor([previous])).logits[0, -1].tolist()
            wanted = slow.biased(SECRET, window, gamma, 1.5, previous, message, logits)
            assert int(np.argmax(wanted)) == token


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLING)
def test_the_green_list_comes_before_temperature_and_top_p(
    tiny: LocalModel, temperature: float, top_k: int, top_p: float
) -> None:
    inputs, _ = prompts(tiny)
    gamma = Fraction(1, 4)
    torch.manual_seed(3)
    out = tiny.model.generate(
        **inputs,
        logits_processor=[GreenListProcessor(GreenList(SECRET, 4, gamma), MESSAGES, LENGTHS, delta=2.0)],
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=5,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    for r, (row, message) in enumerate(zip(steps(out.sequences), MESSAGES, strict=True)):
        for t, (previous, token) in enumerate(row):
            logits = slow.biased(SECRET, 4, gamma, 2.0, previous, message, out.logits[t][r].tolist())
            wanted = [float(p) for p in slow.distribution(logits, temperature, top_k, top_p)]
            assert out.scores[t][r].softmax(0).tolist() == pytest.approx(wanted, abs=1e-6)
            assert wanted[token] > 0


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLING)
def test_generation_with_gumbel(tiny: LocalModel, window: int, temperature: float, top_k: int, top_p: float) -> None:
    inputs, _ = prompts(tiny)

    def generate(**how: object) -> torch.Tensor:
        own = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        processor = GumbelProcessor(Gumbel(SECRET, window), MESSAGES, LENGTHS, seed=5, **own)
        return tiny.model.generate(**inputs, logits_processor=[processor], max_new_tokens=6, pad_token_id=0, **how)

    written = generate(do_sample=False)
    for row, message in zip(steps(written), MESSAGES, strict=True):
        for previous, token in row:
            logits = tiny.model(torch.tensor([previous])).logits[0, -1].tolist()
            p = slow.distribution(logits, temperature, top_k, top_p)
            wanted = slow.gumbel_token(SECRET, window, previous, message, p)
            assert wanted is None or wanted == token
            assert p[token] > 0
    assert torch.equal(written, generate(do_sample=True, temperature=0.3, top_p=0.5))


@pytest.mark.parametrize("repeat", [1, 2])
def test_gumbel_refuses_beams(tiny: LocalModel, repeat: int) -> None:
    inputs, _ = prompts(tiny)
    processor = GumbelProcessor(Gumbel(SECRET, 0), list(np.repeat(MESSAGES, repeat)), list(np.repeat(LENGTHS, repeat)))
    with pytest.raises(Refused, match=r"8 rows .* 4 messages .* beam search" if repeat == 1 else "num_beams=1"):
        tiny.model.generate(
            **inputs, logits_processor=[processor], num_beams=2, do_sample=False, max_new_tokens=2, pad_token_id=0
        )


def test_a_green_list_marks_beams(tiny: LocalModel) -> None:
    """Each prompt's beams carry its message: their texts hold more green tokens than texts of unmarked beams."""
    inputs, _ = prompts(tiny)
    mark = GreenList(SECRET, 1, Fraction(1, 2))

    def green(**how: object) -> list[int]:
        written = tiny.model.generate(**inputs, num_beams=2, do_sample=False, max_new_tokens=60, pad_token_id=0, **how)
        rows = batch_tokens([row[max(LENGTHS) - 1 :] for row in written.tolist()])
        return mark.score(rows, scored_positions(rows, 1, "none"), np.array(MESSAGES)).tolist()

    processor = GreenListProcessor(mark, list(np.repeat(MESSAGES, 2)), list(np.repeat(LENGTHS, 2)), delta=8.0)
    assert min(green(logits_processor=[processor])) > 50
    assert max(green()) < 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"messages": [1, 2, 3]}, "3 messages but 2 prompt lengths"),
        ({"messages": [1, -2]}, "message -2 is negative"),
        ({"prompt_lengths": [5, 0]}, r"prompt 1 \(of 0 to [12]\) has no tokens"),
        ({"prompt_lengths": [5, 3]}, r"prompt 1 \(of 0 to [12]\) has 3 tokens, fewer than the window of 4"),
        ({"prompt_width": 4}, "prompt_width = 4"),
        ({"key_messages": 2}, "message 2: the key has messages 0 to 1"),
        ({"temperature": 0.0}, "temperature = 0.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": -1}, "top_k = -1"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_p": 1.5}, "top_p = 1.5"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": float("inf")}, "delta = inf"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(arguments: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"messages": [1, 2], "prompt_lengths": [5, 4]} | arguments
    make = partial(GreenListProcessor, GreenList(SECRET, 4, Fraction(1, 2)))
    if "delta" not in given:
        make = partial(GumbelProcessor, Gumbel(SECRET, 4))
    with pytest.raises(Refused, match=words):
        make(**given)


def test_sequences_shorter_than_the_prompts_are_refused() -> None:
    with pytest.raises(Refused, match="3 tokens, less than the prompts' 5"):
        GumbelProcessor(Gumbel(SECRET, 4), [1], [5])(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, VOCABULARY))


@pytest.mark.parametrize("method", [GreenListProcessor, GumbelProcessor])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "logits of row 1 have a largest value of nan"),
        (float("inf"), "logits of row 1 have a largest value of inf"),
        (-float("inf"), "another processor forbade every token"),
    ],
)
def test_logits_that_nothing_can_be_chosen_from_are_refused(method: type, value: float, words: str) -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[1] = value
    if value > 0:
        logits[1, 3:] = 0.0
    how = {"delta": 1.0} if method is GreenListProcessor else {}
    mark = GreenList(SECRET, 1, Fraction(1, 2)) if method is GreenListProcessor else Gumbel(SECRET, 1)
    with pytest.raises(Refused, match=words):
        method(mark, [0, 1], [2, 2], **how)(torch.full((2, 2), 5), logits)


def test_more_tokens_than_the_keys_tokenizer_knows_are_refused() -> None:
    ids, logits = torch.full((1, 2), 5), torch.zeros(1, VOCABULARY)
    mark = GreenList(SECRET, 1, Fraction(1, 2))
    GreenListProcessor(mark, [0], [2], delta=1.0, vocabulary=VOCABULARY)(ids, logits)
    with pytest.raises(Refused, match=r"97 different tokens, .* knows 90.*resize_token_embeddings\(90\)"):
        GreenListProcessor(mark, [0], [2], delta=1.0, vocabulary=90)(ids, logits)
    with pytest.raises(Refused, match="knows 90"):
        GumbelProcessor(Gumbel(SECRET, 1), [0], [2], vocabulary=90)(ids, logits)


@pytest.mark.costly
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(1, 2)])
@pytest.mark.parametrize("delta", [1.0, 3.0])
def test_the_share_of_green_tokens_on_flat_logits(gamma: Fraction, delta: float) -> None:
    """γ e^δ/(1 − γ + γ e^δ) (Kirchenbauer et al.), on 20,000 sampled steps: 20 keys, windows that never repeat.

    Within 4.4 standard errors, error rate 1e-5, and 1e-4 more: the green share of 2,048 tokens is not γ exactly, which
    shifts the result by 1e-4 at most.
    """
    steps, hits = 1000, 0
    ids = torch.arange(3, steps + 3)[:, None]
    random = torch.Generator().manual_seed(4)
    for number in range(20):
        mark = GreenList(bytes([number]) * 32, 1, gamma)
        biased = GreenListProcessor(mark, [number] * steps, [1] * steps, delta=delta)(ids, torch.zeros(steps, 2048))
        written = torch.multinomial(biased.softmax(1), 1, generator=random)
        pairs = batch_tokens(torch.cat([ids, written], dim=1).tolist())
        hits += int(mark.score(pairs, scored_positions(pairs, 1, "none"), number).sum())
    green = float(gamma) * np.exp(delta)
    share = green / (1 - float(gamma) + green)
    assert abs(hits / (20 * steps) - share) < 4.4 * np.sqrt(share * (1 - share) / (20 * steps)) + 1e-4

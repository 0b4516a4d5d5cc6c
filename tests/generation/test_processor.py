"""The logits processors against the specification: single steps, and whole generations of a tiny model."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from scanner.errors import Refused
from scanner.generation import GreenListProcessor, GumbelProcessor, LocalModel
from scanner.watermark import GreenList, Gumbel
from tests.generation import slow
from tests.generation.conftest import VOCABULARY

SECRET = bytes(range(32))
GAMMAS = [Fraction(1, 4), Fraction(3, 8), Fraction(1, 2)]
SAMPLING = [(1.0, 0, 1.0), (0.8, 0, 0.95), (1.3, 7, 1.0), (0.7, 20, 0.6)]
LENGTHS = [9, 5, 2, 4]  # of the prompts: all four are padded to 9
MESSAGES = [0, 17, 5, 4_000_000_000]


def batch(seed: int, extra: int = 0) -> tuple[torch.Tensor, list[list[int]], torch.Tensor]:
    """Left-padded ids with `extra` generated tokens, each row's own tokens, and logits."""
    random = np.random.default_rng(seed)
    ids = random.integers(3, VOCABULARY, (len(LENGTHS), max(LENGTHS) + extra))
    own = [row[max(LENGTHS) - length :].tolist() for row, length in zip(ids, LENGTHS, strict=True)]
    for row, length in zip(ids, LENGTHS, strict=True):
        row[: max(LENGTHS) - length] = 0
    logits = torch.from_numpy(random.normal(0, 2, (len(LENGTHS), VOCABULARY)).astype(np.float32))
    return torch.from_numpy(ids), own, logits


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


class CraftedDraws(Gumbel):
    """A Gumbel mark whose draws are given by hand."""

    def __init__(self, draws: list[int]) -> None:
        super().__init__(SECRET, 0)
        self._crafted = np.array([draws], np.uint32)

    def draws(self, nonces, starts, count):
        return np.repeat(self._crafted, len(nonces), axis=0)


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
        ([0, 0, 2**32 - 1, 0], [0.6, 0.4, 0.0, 0.0], 0),  # what cannot be written is never chosen
    ],
)
def test_gumbel_near_r_equal_to_one(draws: list[int], p: list[float], token: int) -> None:
    logits = torch.tensor([p]).log()
    exact = slow.distribution(logits[0].double().tolist(), 1.0, 0, 1.0)
    assert slow.chosen(draws, exact) == token
    found = GumbelProcessor(CraftedDraws(draws), [0], [1])(torch.tensor([[3]]), logits)
    assert int(found.argmax()) == token


def test_unmarked_gumbel_steps_follow_the_distribution_and_the_seed() -> None:
    rows = 4000
    logits = torch.tensor([0.5, 0.25, 0.2, 0.05]).log().repeat(rows, 1)
    ids = torch.full((rows, 1), 3)

    def tokens(seed: int) -> torch.Tensor:
        return GumbelProcessor(Gumbel(SECRET, 4), [0] * rows, [1] * rows, top_p=0.9, seed=seed)(ids, logits).argmax(1)

    share = tokens(1).bincount(minlength=4) / rows
    assert share[3] == 0
    assert share[:3].tolist() == pytest.approx([0.5 / 0.95, 0.25 / 0.95, 0.2 / 0.95], abs=0.03)
    assert torch.equal(tokens(1), tokens(1))
    assert not torch.equal(tokens(1), tokens(2))


@pytest.mark.parametrize("window", [0, 2])
def test_a_used_window_can_be_left_unmarked(window: int) -> None:
    mark = GreenList(SECRET, window, Fraction(1, 2))
    logits = torch.zeros(2, VOCABULARY)
    # four tokens of prompt (0 is padding), four of completion; row 0 has used its last window before, row 1 has not
    ids, lengths = torch.tensor([[5, 6, 1, 2, 5, 6, 5, 6], [0, 0, 0, 5, 6, 7, 5, 8]]), [4, 1]
    processor = GreenListProcessor(mark, [1, 1], lengths, delta=1.0, skip_used_windows=True)
    marked = processor(ids, logits).any(dim=1).tolist()
    assert marked == [False, window == 2]
    assert (
        processor(ids[:, :6], logits).any(dim=1).tolist() == [window == 2] * 2
    )  # 5 6 stood in the prompt: not used yet
    assert processor(ids[:, :4], logits).any(dim=1).tolist() == [True, window == 0]
    assert GreenListProcessor(mark, [1, 1], lengths, delta=1.0)(ids, logits).any(dim=1).all()


def test_a_window_that_reaches_into_the_padding_was_never_used() -> None:
    """Padding may be a token like any other, here 5: of the row 6 7 … only (6, 7) was a window, and (5, 6) was none."""
    ids = torch.tensor([[5, 5, 5, 6, 7, 5, 6], [5, 5, 5, 6, 7, 6, 7]])
    mark = GreenList(SECRET, 2, Fraction(1, 2))
    processor = GreenListProcessor(mark, [1, 1], [1, 1], 4, delta=1.0, skip_used_windows=True)
    assert processor(ids, torch.zeros(2, VOCABULARY)).any(dim=1).tolist() == [True, False]


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


def test_beams_are_refused(tiny: LocalModel) -> None:
    inputs, _ = prompts(tiny)
    for processor in (
        GreenListProcessor(GreenList(SECRET, 0, Fraction(1, 2)), MESSAGES, LENGTHS, delta=1.0),
        GumbelProcessor(Gumbel(SECRET, 0), MESSAGES, LENGTHS),
    ):
        with pytest.raises(Refused, match=r"8 rows .* 4 messages .* beam search"):
            tiny.model.generate(
                **inputs,
                logits_processor=[processor],
                num_beams=2,
                do_sample=False,
                max_new_tokens=2,
                pad_token_id=0,
            )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"messages": [1, 2, 3]}, "3 messages but 2 prompt lengths"),
        ({"messages": [1, -2]}, "message -2 is negative"),
        ({"prompt_lengths": [3, -1]}, "prompt lengths"),
        ({"prompt_width": 4}, "prompt_width = 4"),
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
    given: dict[str, object] = {"messages": [1, 2], "prompt_lengths": [5, 3]} | arguments
    make = partial(GreenListProcessor, GreenList(SECRET, 4, Fraction(1, 2)))
    if "delta" not in given:
        make = partial(GumbelProcessor, Gumbel(SECRET, 4))
    with pytest.raises(Refused, match=words):
        make(**given)


def test_sequences_shorter_than_the_prompts_are_refused() -> None:
    with pytest.raises(Refused, match="3 tokens, less than the prompts' 5"):
        GumbelProcessor(Gumbel(SECRET, 4), [1], [5])(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, VOCABULARY))

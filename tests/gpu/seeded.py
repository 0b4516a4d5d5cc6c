"""What vectors of version 3 must be, by the reference and by known answers: for Triton's, and for torch's alone."""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import resources

import numpy as np
import torch

from scanner.gpu.vectors import GreenRule, PlainSeededVectors, SeededVectors, SeedSource
from tests import reference, reference3

CPU = torch.device("cpu")
SECRET, BEACON = bytes(range(32)), bytes(range(150, 182))
MESSAGES = [0, 31, 1599, 777]  # messages of a key with 40 groups
RULES = {
    Fraction(1, 4): GreenRule(1, 2, 2), Fraction(3, 8): GreenRule(3, 3, 4),
    Fraction(1, 2): GreenRule(1, 1, 1), Fraction(77, 256): GreenRule(77, 8, 8),
}  # fmt: skip
ANSWERS = json.loads((resources.files("scanner.watermark.native") / "known_answers_3.json").read_text())["streams"]
Kind = Callable[[SeedSource, torch.device], PlainSeededVectors | SeededVectors]


def source(plain: reference3.Method) -> SeedSource:
    """What draws the keys of a method's steps, by the reference's own derivation."""
    seed_key = np.array(plain.seed_key, np.uint32)
    window_key = np.frombuffer(reference3.window_key(plain.window, plain.seeds), "<u8").astype(np.uint64)
    return SeedSource(seed_key, plain.beacon, window_key, plain.seeds, plain.groups)


def windows(width: int) -> torch.Tensor:
    """A window for each message, of tokens of 32 bits."""
    ids = np.random.default_rng(width).integers(0, 2**32, (len(MESSAGES), width))
    return torch.from_numpy(ids.astype(np.int64))


def steps(plain: reference3.Method, width: int, tokens: int) -> Iterator[tuple[list[reference3.Step], int]]:
    """The steps of all tokens after each window, and the number that its message reads there."""
    for window, message in zip(windows(width).tolist(), MESSAGES, strict=True):
        of_window = [plain.step(window, token) for token in range(tokens)]
        yield of_window, plain.number(message, of_window[0].of_group)


def some(rows: int, tokens: int) -> torch.Tensor:
    """Tokens that are wanted: half of a row, none of another's first program, all of the others."""
    wanted = torch.ones((rows, tokens), dtype=torch.bool)
    wanted[0, ::2] = False
    wanted[1, :512] = False
    return wanted


def check_draws(kind: Kind, groups: int | None, width: int, seeds: int, tokens: int) -> None:
    plain = reference3.Method("gumbel", SECRET, width, None, groups, seeds, BEACON)
    wanted = some(len(MESSAGES), tokens)
    found = kind(source(plain), CPU).draws(windows(width), torch.tensor(MESSAGES), wanted)
    for row, (of_window, number) in enumerate(steps(plain, width, tokens)):
        draws = [plain.draw(step, number) for step in of_window]
        expected = np.where(wanted[row].numpy(), draws, 0)
        assert found[row].numpy().view(np.uint32).tolist() == expected.tolist()


def check_green(kind: Kind, gamma: Fraction, groups: int | None, tokens: int) -> None:
    plain = reference3.Method("greenlist", SECRET, 3, gamma, groups, 24, BEACON)
    wanted = some(len(MESSAGES), tokens)
    found = kind(source(plain), CPU).green(windows(3), torch.tensor(MESSAGES), wanted, RULES[gamma])
    for row, (of_window, number) in enumerate(steps(plain, 3, tokens)):
        green = [plain.term(step, number) for step in of_window]
        assert found[row].tolist() == np.where(wanted[row].numpy(), green, 0).tolist()


def check_choice(kind: Kind, groups: int | None, tokens: int) -> None:
    """The token of least cost, over all tokens whose weight is above 0, each drawn in full."""
    plain = reference3.Method("gumbel", SECRET, 2, None, groups, 12, BEACON)
    random = np.random.default_rng(5)
    for share in (1.0, 0.4):
        weights = random.exponential(1.0, (len(MESSAGES), tokens)) ** 3 + 1e-9
        weights *= random.random(weights.shape) < share
        found = kind(source(plain), CPU).choose(windows(2), torch.tensor(MESSAGES), torch.from_numpy(weights))
        for row, (of_window, number) in enumerate(steps(plain, 2, tokens)):
            cost = {
                token: reference.minus_ln_r(plain.draw(of_window[token], number)) / weights[row, token]
                for token in np.flatnonzero(weights[row]).tolist()
            }
            assert int(found[row]) == min(cost, key=cost.__getitem__)


def check_known_answers(kind: Kind, most_tokens: int) -> int:
    """Hold the entries that messages read for tokens below `most_tokens` against known answers; how many they are."""
    held = 0
    for case in ANSWERS:
        parameters = dict(part.split("=") for part in case["label"].split(";")[1:])
        groups = int(parameters["groups"]) if "groups" in parameters else None
        window_key = np.frombuffer(bytes.fromhex(case["window_key"]), "<u8").astype(np.uint64)
        seed_key, beacon = np.array(case["seed_key"], np.uint32), bytes.fromhex(case["beacon"])
        vectors = kind(SeedSource(seed_key, beacon, window_key, int(parameters["seeds"]), groups), CPU)
        for entry in (*case.get("green", []), *case.get("draws", [])):
            token, number = divmod(entry["j"], 2**32)
            message = message_of(number, groups, case["group_step"])
            if message is None or token >= most_tokens:
                continue
            wanted = torch.zeros((1, token + 1), dtype=torch.bool)
            wanted[0, token] = True
            asked = torch.tensor([case["window"]]), torch.tensor([message]), wanted
            if "green" in entry:
                assert bool(vectors.green(*asked, RULES[Fraction(parameters["gamma"])])[0, token]) == entry["green"]
            else:
                assert int(vectors.draws(*asked)[0, token]) & 0xFFFFFFFF == entry["word"]
            held += 1
    return held


def message_of(number: int, groups: int | None, of_group: bool) -> int | None:
    """The message that reads a number at a step; None: no message does."""
    if groups is None:
        return number
    group, user = (number, 0) if of_group else divmod(number, 2**16)
    return group * groups + user if group < groups and user < groups else None

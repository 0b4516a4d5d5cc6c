"""What rough scores lose of a mark's power: `python -m tests.bench.search_power MODEL`.

A model writes texts at three temperatures, each for a user drawn from 105,625, in 325 groups. The search of version 3
picks groups and users by rough scores, and draws only these in full; version 2's computed the exact scores of all. Both
are made here, the latter message by message, on the same texts: how many are found at 1e-6, corrected for all messages,
with their user as the best message. Texts are also read with a tenth of their tokens exchanged for others. Lengths are
such that some texts are found, and some are not.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.generation import LocalModel, Sampling, complete, load_model
from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Positions, Tokens, Watermark, batch_tokens
from scanner.watermark.native.version3_marks import Version3Gumbel
from scanner.watermark.positions import positions_where
from scanner.watermark.rule import candidates, corrected, log10_p_of, passes
from tests.bench.configured import GROUPS
from tests.bench.prompts import PROMPTS, TELLERS, THINGS

WINDOW, BEACON, SEEDS = 4, "5a" * 32, 16
LENGTHS = (30, 45, 60)
TEMPERATURES = (0.7, 1.0, 1.3)
RATE, MESSAGES, BATCH = 1e-6, GROUPS**2, 32


def write_texts(
    model: LocalModel, tokenizer: HuggingFaceTokenizer, mark: Watermark, how: Sampling, users: NDArray[np.int64]
) -> list[NDArray[np.uint32]]:
    prompts = [PROMPTS["prose"].format(thing=thing, teller=teller) for teller in TELLERS for thing in THINGS]
    texts = list[str]()
    for begin in range(0, len(users), BATCH):
        batch = [prompts[i % len(prompts)] for i in range(begin, min(begin + BATCH, len(users)))]
        written = complete(model, batch, how, begin, mark, users[begin : begin + BATCH].tolist())
        texts += [one.text for one in written]
    tokens = tokenizer.encode(texts)
    return np.split(tokens.ids, tokens.offsets[1:-1])


def edited(ids: NDArray[np.uint32], share: float, drawn: np.random.Generator) -> NDArray[np.uint32]:
    other = drawn.integers(0, 49_000, len(ids), np.uint32)
    return np.where(drawn.random(len(ids)) < share, other, ids)


def whole_search(
    mark: Version3Gumbel, tokens: Tokens, positions: Positions
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best message of each document, and its score, by the exact scores of all groups and users (SPEC_3 §4)."""
    is_group_step = mark.group_steps(tokens, positions)
    of_group, of_user = positions_where(positions, is_group_step), positions_where(positions, ~is_group_step)
    groups = np.stack([mark.score(tokens, of_group, group * GROUPS) for group in range(GROUPS)], axis=1)
    p = log10_p_of(mark.law, groups, of_group.scored[:, None])
    order = np.argsort(-groups, axis=1, kind="stable")
    looked_into = np.take_along_axis(p <= 1e-9 - np.log10(GROUPS), order, axis=1)
    looked_into[:, 0] = True
    best, score = np.full(len(groups), -1), np.full(len(groups), -np.inf)
    for rank in range(int(np.flatnonzero(looked_into.any(axis=0))[-1]) + 1):
        first = order[:, rank] * GROUPS
        users = np.stack([mark.score(tokens, of_user, first + user) for user in range(GROUPS)], axis=1)
        user = users.argmax(axis=1)
        sums = groups[np.arange(len(groups)), order[:, rank]] + users.max(axis=1)
        better = looked_into[:, rank] & (sums > score)
        best, score = np.where(better, first + user, best), np.where(better, sums, score)
    return best, score


class Found(NamedTuple):
    """Which texts are found with their user as the best message, bool[D] each: by the scores of all, and by search."""

    whole: NDArray[np.bool_]
    search: NDArray[np.bool_]


def find(mark: Version3Gumbel, texts: list[NDArray[np.uint32]], users: NDArray[np.int64]) -> Found:
    tokens = batch_tokens([one.tolist() for one in texts])
    positions = mark.rule.positions(tokens, "ngram")

    def passing(message: NDArray[np.int64], score: NDArray[np.float64]) -> NDArray[np.bool_]:
        log10_p = corrected(log10_p_of(mark.law, score, positions.scored), MESSAGES)
        return np.asarray(passes(log10_p, RATE) & (message == users))

    searched = candidates(mark, tokens, positions, MESSAGES)
    whole = passing(*whole_search(mark, tokens, positions))
    return Found(whole, passing(searched.message[:, 0], searched.score[:, 0].astype(np.float64)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.search_power", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=480)
    given = parser.parse_args()
    model = load_model(given.model)
    tokenizer = HuggingFaceTokenizer((given.model / "tokenizer.json").read_bytes())
    drawn = np.random.default_rng(1)
    mark = Version3Gumbel(b"tests.bench.search_power, 32 byte", WINDOW, GROUPS, SEEDS, bytes.fromhex(BEACON))
    for temperature in TEMPERATURES:
        users = drawn.integers(0, MESSAGES, given.texts)
        how = Sampling(max(LENGTHS) + 5, temperature=temperature, top_p=0.95)
        texts = write_texts(model, tokenizer, mark, how, users)
        for share in (0.0, 0.1):
            read = [edited(one, share, drawn) for one in texts]
            for length in LENGTHS:
                found = find(mark, [one[:length] for one in read], users)
                lost, won = int((found.whole & ~found.search).sum()), int((found.search & ~found.whole).sum())
                print(
                    f"temperature {temperature}, {share:.0%} edited, {length} tokens: of {len(users)} texts "
                    f"{found.whole.sum()} by all scores, {found.search.sum()} by the search ({lost} lost, {won} won); "
                    f"loses at most {binomial_limits(lost, len(users), 0.05)[1]:.4f} (95 %)",
                    flush=True,
                )


if __name__ == "__main__":
    main()

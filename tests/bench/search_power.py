"""What the search of version 3 loses of a mark's power: `python -m tests.bench.search_power MODEL`.

A model writes texts at three temperatures, each for a user drawn from 105,625, in 325 groups. Who knew the user would
find a text by that user's exact score; the search finds it where its best message is the user, by the same p. So no
other search finds more than the former, version 2's neither, and the difference is all that rough scores lose. Texts
are also read with a tenth of their tokens exchanged for others. Lengths are such that some texts are found, and some
are not.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.generation import LocalModel, Sampling, complete, load_model
from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Tokens, Watermark
from scanner.watermark.formats import make_format
from scanner.watermark.rule import candidates, corrected, log10_p_of, passes
from tests.bench.configured import GROUPS
from tests.bench.prompts import PROMPTS, TELLERS, THINGS

WINDOW, BEACON, SEEDS = 4, "5a" * 32, 16
FORMS = {
    "gumbel-v3": {"window": WINDOW, "groups": GROUPS, "seeds": SEEDS, "beacon": BEACON},
    "greenlist-v3": {"window": WINDOW, "gamma": "1/4", "groups": GROUPS, "seeds": SEEDS, "beacon": BEACON},
}
LENGTHS = {"gumbel-v3": (30, 45, 60), "greenlist-v3": (60, 90, 120)}
TEMPERATURES = (0.7, 1.0, 1.3)
RATE, MESSAGES, BATCH, DELTA = 1e-6, GROUPS**2, 32, 2.0


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


def passing(
    mark: Watermark, texts: list[NDArray[np.uint32]], users: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], ...]:
    """Whether each text is found by who knows its user, and by the search: bool[D] each."""
    tokens = Tokens(np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64))
    positions = mark.rule.positions(tokens, "ngram")
    exact = corrected(log10_p_of(mark.law, mark.score(tokens, positions, users), positions.scored), MESSAGES)
    best = candidates(mark, tokens, positions, MESSAGES)
    searched = corrected(log10_p_of(mark.law, best.score[:, 0], positions.scored), MESSAGES)
    return passes(exact, RATE), passes(searched, RATE) & (best.message[:, 0] == users)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.search_power", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=320)
    given = parser.parse_args()
    model = load_model(given.model)
    tokenizer = HuggingFaceTokenizer((given.model / "tokenizer.json").read_bytes())
    drawn = np.random.default_rng(1)
    for name, form in FORMS.items():
        mark = make_format(name, form).open(b"tests.bench.search_power, 32 byte")
        for temperature in TEMPERATURES:
            users = drawn.integers(0, MESSAGES, given.texts)
            how = Sampling(max(LENGTHS[name]) + 5, temperature=temperature, top_p=0.95, delta=DELTA)
            texts = write_texts(model, tokenizer, mark, how, users)
            for share in (0.0, 0.1):
                read = [edited(one, share, drawn) for one in texts]
                for length in LENGTHS[name]:
                    known, searched = passing(mark, [one[:length] for one in read], users)
                    lost = int((known & ~searched).sum())
                    most = binomial_limits(lost, len(users), 0.95)[1]
                    print(
                        f"{name}, temperature {temperature}, {share:.0%} edited, {length} tokens: {known.sum()} of "
                        f"{len(users)} found by who knows the user, {searched.sum()} by the search; lost at most "
                        f"{most:.4f} (95 %)",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

"""Write the CPU's answers that the device benchmark carries along: `python -m tests.gpu.answers`.

Documents are drawn by Zipf's law, some of them really marked, under one key a method. An answer is what the CPU finds
among all messages. The key is drawn for this file and guards nothing.
"""

from fractions import Fraction
from pathlib import Path

import numpy as np

from scanner.gpu.marks import rule_of
from scanner.watermark import GreenList, Gumbel, Tokens, scored_positions
from scanner.watermark.native.streams import window_nonces

FILE = Path(__file__).parents[1] / "bench" / "device_answers.npz"
SECRET = bytes(range(32))
LENGTHS = [260, 5, 0, 64, 300, 2, 17, 1000, 33, 4, 120, 256]
COUNTS = (2, 1000, 30_000, 1_000_000)
VOCABULARY = 32_000


def documents(mark: GreenList | Gumbel) -> Tokens:
    """Documents of which every other one is marked for message 77 times its number: each token is the best of 30."""
    generator = np.random.default_rng(7)
    ids: list[int] = []
    for number, length in enumerate(LENGTHS):
        own = generator.integers(0, VOCABULARY, min(length, mark.window)).tolist()
        while len(own) < length:
            candidates = generator.zipf(1.3, 30) % VOCABULARY
            token = int(candidates[0])
            if number % 2:
                nonce = mark.window_nonces(np.array([own[-mark.window :]], np.uint32))
                start = np.array([77 * number], np.int64)
                if isinstance(mark, GreenList):
                    goodness = mark.green(nonce, start, VOCABULARY)[0][candidates]
                else:
                    goodness = mark.draws(nonce, start, VOCABULARY)[0][candidates]
                token = int(candidates[goodness.argmax()])
            own.append(token)
        ids += own
    return Tokens(np.array(ids, np.uint32), np.cumsum([0, *LENGTHS]).astype(np.int64))


def main() -> None:
    arrays = {"counts": np.array(COUNTS)}
    for mark in (GreenList(SECRET, 4, Fraction(1, 4)), GreenList(SECRET, 2, Fraction(3, 8)), Gumbel(SECRET, 4)):
        tokens = documents(mark)
        positions, keys = scored_positions(tokens, mark.window, "ngram"), mark.sub_keys
        arrays |= {
            f"{mark.label}:key": keys.chacha,
            f"{mark.label}:rule": np.array(rule_of(mark) if isinstance(mark, GreenList) else ()),
            f"{mark.label}:ids": tokens.ids[positions.index],
            f"{mark.label}:nonces": window_nonces(keys, tokens.ids, positions.index, mark.window),
            f"{mark.label}:offsets": positions.offsets,
        }
        for count in COUNTS:
            best = mark.best_two(tokens, positions, count)
            for name, values in best._asdict().items():
                arrays[f"{mark.label}:{count}:{name}"] = values
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()

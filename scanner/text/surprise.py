"""What a language model expected of a text, by its characters, and the levels of a key's tokens that follow.

The surprise of a token is −ln p̂, p̂ the chance that the model gave it. It is shared out over the token's characters and
kept in steps, a byte a character, so that the levels of any tokenizer's tokens follow from what is kept alone: proofs
and replays need no model. The order of tokens by p̂ is what counts, not p̂ itself (docs/concepts/weighted-evidence.md).
"""

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.level_laws import LEVELS

STEPS = 16
"""Steps of surprise to one nat. A character has 255 of them at most, p̂ = 1e-7."""


MOST_SURPRISE = 100.0
"""Most surprise of a token that counts: p̂ = 4e-44. A model may say that a token cannot be, and texts have it still."""

MOST_CHARACTERS = 2**16
"""Characters of a text that a model reads, a minute of one core: what stands after them counts nothing."""


def of_characters(surprise: NDArray[np.float64], begins: NDArray[np.int64], characters: int) -> NDArray[np.uint8]:
    """Steps of surprise of each character of a text, uint8[C].

    Args:
        surprise: −ln p̂ of the model's tokens, float64[N], 0 or more; ∞ counts as MOST_SURPRISE.
        begins: the character at which each of them begins, int64[N], in order. It ends where the next begins; of
            several that begin at one character, each is of that character.
        characters: C.
    """
    ends = np.maximum(np.append(begins[1:], characters), begins + 1)
    edges, of_each = np.zeros(characters + 2), np.minimum(surprise, MOST_SURPRISE) / (ends - begins)
    np.add.at(edges, begins, of_each)
    np.add.at(edges, ends, -of_each)
    total = np.maximum.accumulate(np.cumsum(np.cumsum(edges)[:characters]))
    return np.asarray(np.minimum(np.diff(np.rint(STEPS * total), prepend=0.0), 255), np.uint8)


def levels_of(steps: NDArray[np.uint8], begins: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Levels of a key's tokens: LEVELS · (1 − √p̂), rounded, p̂ of the characters of each: uint8[N].

    Args:
        steps: of each character, uint8[C]; tokens that begin behind them have level 0.
        begins: as for `of_characters`, of the key's tokens.
    """
    total = np.concatenate([[0.0], np.cumsum(steps, dtype=np.float64)]) / STEPS
    ends = np.minimum(np.maximum(np.append(begins[1:], len(steps)), begins + 1), len(steps))
    surprise = total[ends] - total[np.minimum(begins, len(steps))]
    return np.asarray(np.rint(LEVELS * -np.expm1(-surprise / 2.0)), np.uint8)

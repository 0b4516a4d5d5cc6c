"""Random texts, and levels of their tokens, for tests of marks by levels."""

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Tokens, batch_tokens
from scanner.watermark.level_laws import LEVELS


def levels_of(tokens: Tokens) -> NDArray[np.uint8]:
    """Any function of the tokens; most of them are foregone."""
    return np.minimum(tokens.ids * np.uint32(2654435761) >> np.uint32(28), LEVELS).astype(np.uint8) % (LEVELS + 1)


def texts(number: int, length: int, seed: int = 0) -> Tokens:
    rng = np.random.default_rng(seed)
    return batch_tokens([rng.integers(0, 5000, length).astype(np.uint32) for _ in range(number)])

"""The green list of version 2 under a key."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.laws import Binomial
from scanner.watermark.native import green_runs, marking, secret, window_runs
from scanner.watermark.native.numbered import Numbered
from scanner.watermark.native.one_message import NOT_ASKED, count_green
from scanner.watermark.native.runs import Asked, Steps
from scanner.watermark.native.window_search import Windows
from scanner.watermark.positions import Positions, Tokens


class NumberedGreenList(Numbered):
    """The green list of version 2.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        gamma: share of green tokens, n / 2^b in lowest terms, b ≤ 8.
        groups: B; None: no groups.

    Raises:
        ValueError: a secret, window, γ or number of groups out of range.
    """

    def __init__(self, secret_bytes: bytes, window: int, gamma: Fraction, groups: int | None = None) -> None:
        secret.check_gamma(gamma)
        super().__init__(secret_bytes, "greenlist-v2", window, gamma, groups)
        self.gamma, self.law = gamma, Binomial(gamma)
        self._rule = (gamma.numerator, gamma.denominator.bit_length() - 1, secret.planes_of(gamma))

    def green(self, nonces: NDArray[np.uint64], messages: NDArray[np.int64], tokens: int) -> NDArray[np.bool_]:
        """Which of the tokens 0 … V−1 are green in each step for its message: bool[R, V] (SPEC_2 §1)."""
        numbers = self.numbers(nonces, messages)
        return marking.green_tokens(self._keys.chacha, nonces, numbers, self._rule, tokens)

    def _score(
        self,
        tokens: Tokens,
        positions: Positions,
        numbers: NDArray[np.int64],
        terms: NDArray[np.float64] = NOT_ASKED,
    ) -> NDArray[np.int64]:
        keys, where = self._keys, (tokens.ids, positions.index, positions.offsets)
        return count_green(keys.chacha, keys.sip, *where, numbers, self.window, self._rule, 2, terms)

    def best_of_runs(self, steps: Steps, asked: Asked) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Best numbers of runs and their counts: int64[R, most] both."""
        return green_runs.best_of_runs(self._keys.chacha, steps, asked, self._rule)

    def best_of_windows(
        self, steps: Steps, windows: Windows, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Counts are no bounds, but exact."""
        number, counted = window_runs.best_green(self._keys.chacha, steps, *windows, count, self._rule)
        return number, counted.astype(np.float64)

"""The Gumbel mark of version 2 under a key, by its weighted score and by the unweighted one."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.laws import Gamma, Law, NegativeGamma
from scanner.watermark.native import gumbel_runs, marking, window_runs
from scanner.watermark.native.bounds import PER_LN2
from scanner.watermark.native.numbered import Numbered
from scanner.watermark.native.one_message import NOT_ASKED, score_under
from scanner.watermark.native.runs import Asked, Steps
from scanner.watermark.native.window_search import Windows
from scanner.watermark.positions import Positions, Tokens


class NumberedGumbel(Numbered):
    """The Gumbel mark of version 2.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        groups: B; None: no groups.

    Raises:
        ValueError: a secret, window or number of groups out of range.
    """

    law: Law = Gamma()
    _unweighted: ClassVar[bool] = False

    def __init__(self, secret_bytes: bytes, window: int, groups: int | None = None) -> None:
        super().__init__(secret_bytes, "gumbel-v2", window, None, groups)

    def choose(self, nonce: np.uint64, message: int, weights: NDArray[np.float64]) -> int:
        """The token to write at a step: the least −ln(r)/p, −1 when every weight is 0 (SPEC §2, SPEC_2 §1).

        Args:
            nonce: of the step's window.
            message: m.
            weights: float64[V], the probabilities up to a factor.
        """
        number = int(self.numbers(np.array([nonce], np.uint64), np.array([message], np.int64))[0])
        return marking.choose_token(self._keys.chacha, nonce, number, weights)

    def draws_of(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.uint32]:
        """The draw that each scored token meets under its document's message: uint32[P].

        Raises:
            ValueError: a message that the key does not have.
        """
        wanted, nonces = np.repeat(self._each(messages, positions), positions.scored), self._nonces(tokens, positions)
        ids = tokens.ids[positions.index].astype(np.int64)
        return gumbel_runs.draws_at(self._keys.chacha, ids, nonces, self.numbers(nonces, wanted))

    def _score(
        self,
        tokens: Tokens,
        positions: Positions,
        numbers: NDArray[np.int64],
        terms: NDArray[np.float64] = NOT_ASKED,
    ) -> NDArray[np.float64]:
        keys, where = self._keys, (tokens.ids, positions.index, positions.offsets)
        return score_under(keys.chacha, keys.sip, *where, numbers, self.window, self._unweighted, 2, terms)

    def best_of_runs(self, steps: Steps, asked: Asked) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Best numbers of runs, int64[R, most], and their scores, float64[R, most]."""
        return gumbel_runs.best_of_runs(self._keys.chacha, steps, asked)

    def best_of_windows(
        self, steps: Steps, windows: Windows, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """By the leading bits of draws, which bound scores."""
        number, units = window_runs.best_gumbel(self._keys.chacha, steps, *windows, count)
        return number, units / PER_LN2


class NumberedLogGumbel(NumberedGumbel):
    """The unweighted score Σ ln r over the same streams. One message only: it is not searched."""

    law: Law = NegativeGamma()
    _unweighted: ClassVar[bool] = True

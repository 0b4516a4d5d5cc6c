"""Prove vLLM's marks in numpy, one lane for each scored position."""

import hashlib
import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import ONE_SUM, KeyWeights, counted_positions, floored, log10_two_gammas
from scanner.watermark.stacks.plain_draws import Lanes, philox

_MASK = np.uint64(2**32 - 1)


def philox_words(key: int, contexts: Lanes, tokens: Lanes) -> Lanes:
    """Return the word of each context and token: uint64[P].

    Args:
        key: 64 bits.
        contexts: uint64[P, width]. Missing tokens are 2^32−1.
        tokens: uint64[P].
    """
    lanes, width = contexts.shape
    low, high = (np.full(lanes, half, np.uint64) for half in (key % 2**32, key >> 32))
    first = [int.from_bytes(b"WMCX", "big"), width, 0, 0]
    state = [np.full(lanes, word, np.uint64) for word in first]
    for start in range(0, width, 4):
        block = [
            contexts[:, start + i] if start + i < width else np.full(lanes, 2**32 - 1 - i, np.uint64) for i in range(4)
        ]
        state = philox([s ^ b for s, b in zip(state, block, strict=True)], low ^ np.uint64(start), high)
    mark = np.uint64(int.from_bytes(b"WMTK", "big"))
    out = philox([tokens >> np.uint64(2), *state[:3]], low ^ state[3], high ^ mark)
    return np.stack(out)[(tokens & np.uint64(3)).astype(np.int64), np.arange(lanes)]


class VllmProof:
    """The proof of one key's mark, or of the mark of the two keys that vLLM derives from a master key.

    Its repr shows no key.

    master: 8 bytes, big-endian.
    width: of the context.
    weight: weight of the second of two derived keys, besides the weight 1/2. None: one key.
    opening: whether positions count whose context lacks tokens.
    bits: no p-value is below 2^-bits.
    """

    def __init__(self, master: bytes, width: int, weight: float | None, *, opening: bool, bits: int) -> None:
        parts = [master]
        if weight is not None:
            parts = [hashlib.sha256(name + master).digest()[:8] for name in (b"key_a", b"key_b")]
        self._keys = HiddenValue([int.from_bytes(part, "big") for part in parts])
        self._width, self._opening, self._bits = width, opening, bits
        self._weight = weight

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath. The mark has one message."""
        places, terms = self._terms(tokens, dedup, common_places)
        sums = [math.fsum(key_terms) for key_terms in terms.tolist()]
        score = sums[0] if self._weight is None else self._best(sums[0], sums[1], len(places))
        return len(places), [score] * len(messages)

    @property
    def weights(self) -> KeyWeights:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys.

        For two keys: the weight with share 0.8, and 1/2 with share 0.2.
        """
        if self._weight is None:
            return ONE_SUM
        choices = [(0.5, 1.0)] if self._weight == 0.5 else [(self._weight, 0.8), (0.5, 0.2)]
        return tuple(((1.0 - second_weight, second_weight), share) for second_weight, share in choices)

    def terms_of_keys(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys. The mark has one message."""
        places, terms = self._terms(tokens, dedup, common_places)
        return places, np.stack([terms] * len(messages))

    def _terms(
        self, tokens: NDArray[np.uint32], dedup: str, common_places: Collection[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the P scored positions, and their terms for the sum of each of K keys: float64[K, P]."""
        ids, width = tokens.tolist(), self._width
        padded_ids = [-1] * width + ids
        places = range(0 if self._opening else width, len(ids))
        contexts = [tuple(padded_ids[t : t + width]) for t in places]
        indices = counted_positions(places, contexts, [ids[t] for t in places], dedup, common_places)
        rows = np.array([contexts[i] for i in indices], np.int64).reshape(len(indices), width).astype(np.uint64) & _MASK
        targets = np.array([ids[places[i]] for i in indices], np.uint64)
        cells = [(philox_words(key, rows, targets) >> np.uint64(8)).tolist() for key in self._keys.value]
        terms = [[-math.log1p(-cell / 2**24) for cell in key_cells] for key_cells in cells]
        return np.array([places[i] for i in indices], np.int64), np.array(terms)

    def _best(self, first: float, second: float, scored: int) -> float:
        """Return −ln of the smallest p over the weights of two keys, each p divided by its share."""
        log10_p = [
            log10_two_gammas(first_weight * first + second_weight * second, scored, second_weight) - math.log10(share)
            for (first_weight, second_weight), share in self.weights
        ]
        return max(-min(log10_p) * math.log(10.0), 0.0)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        if self._weight is None:
            return floored(log10_two_gammas(score, scored, 0.0), self._bits)
        return floored(-score / math.log(10.0) if scored else 0.0, self._bits)

"""Sketches of texts, by which near-duplicates are recognised without their tokens (MinHash, Broder 1997).

Two texts agree in a place of their sketches with a probability of |A∩B|/|A∪B|, A and B being their sets of n-grams.

Keyed n-grams are a sample of the n-grams of a text's bytes by their hash alone (Broder 1997, "mod m"): a piece of text
has the same ones in whatever text it stands.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel

SKETCH_PLACES = 64
"""Places of a sketch, 4 bytes each."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # constants of splitmix64
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SEEDS = (np.arange(1, SKETCH_PLACES + 1, dtype=np.uint64) * _STEP)[:, None]


def sketch(ids: NDArray[np.uint32], context: int) -> bytes | None:
    """SKETCH_PLACES · 4 bytes of a text's tokens, uint32[T]; None where it has none.

    context: how many previous tokens a key reads with a token; n-grams have one token more, and at most T.
    """
    if not len(ids):
        return None
    n = min(context + 1, len(ids))
    grams = np.zeros(len(ids) - n + 1, np.uint64)
    for place in range(n):
        grams = _mixed(grams ^ ids[place : place + len(grams)].astype(np.uint64))
    least = _mixed(np.unique(grams)[None, :] ^ _SEEDS).min(axis=1)
    return bytes((least >> np.uint64(32)).astype("<u4").tobytes())


GRAM_BYTES = 12
"""Bytes of a keyed n-gram: two to three words of English, four letters of Chinese."""

ONE_GRAM_IN = 8
"""One in so many n-grams of a text is kept: those whose keyed hash is divisible by it, wherever they stand."""


def gram_key(secret: bytes) -> NDArray[np.uint64]:
    """The key of keyed n-grams, uint64[GRAM_BYTES], without which nobody can make texts whose hashes collide."""
    drawn = hashlib.shake_256(b"brickscan keyed sketch\n" + secret).digest(8 * GRAM_BYTES)
    return np.frombuffer(drawn, "<u8").astype(np.uint64) | np.uint64(1)


def keyed_grams(text: str, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keyed hashes of the n-grams of a text that are kept, ascending, each once; uint64[G].

    Capitals and white space count alike. key: as `gram_key` makes it; hashes are shown to nobody.
    """
    raw = np.frombuffer(" ".join(text.casefold().split()).encode(errors="surrogatepass"), np.uint8)
    if len(raw) < GRAM_BYTES:
        return np.empty(0, np.uint64)
    hashes = _keyed_hashes(raw, key)
    kept: NDArray[np.uint64] = np.unique(hashes[hashes % np.uint64(ONE_GRAM_IN) == 0])
    return kept


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of 64 bits (splitmix64's)."""
    value = value + _STEP
    value = (value ^ (value >> np.uint64(30))) * _MIX[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX[1]
    return value ^ (value >> np.uint64(31))


_mixed_number = inlined(_mixed)


@kernel
def _keyed_hashes(raw: NDArray[np.uint8], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sum of the bytes of each n-gram, each byte multiplied by the key of its place, mixed; uint64[N - GRAM_BYTES + 1].

    In one kernel: as calls of numpy, mixing takes as long as adding up.
    """
    sums = np.zeros(len(raw) - len(key) + 1, np.uint64)
    for place in range(len(key)):
        for begin in range(len(sums)):
            sums[begin] += np.uint64(raw[begin + place]) * key[place]
    for begin in range(len(sums)):
        sums[begin] = _mixed_number(sums[begin])
    return sums

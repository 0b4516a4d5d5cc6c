"""Sketches of texts, by which near-duplicates are recognised without their tokens (MinHash, Broder 1997).

Two texts agree in a place of their sketches with a probability of |A∩B|/|A∪B|, A and B being their sets of n-grams.

A keyed sketch has the smallest hashes of n-grams of a passage's bytes (bottom-k, Cohen and Kaplan 2007). Below the
smaller of two sketches' largest hashes, both are complete, so that they tell how much of the smaller passage the other
one holds.
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
"""Bytes of an n-gram of a keyed sketch: two to three words of English, four letters of Chinese."""

MOST_GRAMS = 128
"""Hashes of a keyed sketch, 8 bytes each."""


def gram_key(secret: bytes) -> NDArray[np.uint64]:
    """The key of keyed sketches, uint64[GRAM_BYTES], without which nobody can make texts whose hashes collide."""
    drawn = hashlib.shake_256(b"brickscan keyed sketch\n" + secret).digest(8 * GRAM_BYTES)
    return np.frombuffer(drawn, "<u8").astype(np.uint64) | np.uint64(1)


PASSAGE_BYTES = 4096
"""Most n-grams of a passage: text that stands in a long one stands in one or two passages, however long that is."""


def keyed_sketches(text: str, key: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    """A sketch of each passage of a text: the MOST_GRAMS smallest hashes of its n-grams, ascending.

    uint64[G] each, fewer than MOST_GRAMS where a passage has fewer; none of a text without n-grams. Capitals and white
    space count alike. key: as `gram_key` makes it; hashes are shown to nobody.
    """
    raw = np.frombuffer(" ".join(text.casefold().split()).encode(errors="surrogatepass"), np.uint8)
    if len(raw) < GRAM_BYTES:
        return []
    hashes = _keyed_hashes(raw, key)
    if len(hashes) <= PASSAGE_BYTES:
        return [_smallest(hashes)]
    return [_smallest(passage) for passage in np.array_split(hashes, -(-len(hashes) // PASSAGE_BYTES))]


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


def _smallest(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bound = 2**65 // max(len(hashes) // MOST_GRAMS, 2)  # twice as many lie below it, if few repeat
    few = hashes[hashes < np.uint64(bound - 1)]
    kept = _each_once(few)
    return (kept if len(kept) >= MOST_GRAMS else _each_once(hashes))[:MOST_GRAMS]


def _each_once(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes ascending, each once; np.unique takes five times as long."""
    ordered: NDArray[np.uint64] = np.sort(hashes)
    kept: NDArray[np.uint64] = np.append(ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]])
    return kept

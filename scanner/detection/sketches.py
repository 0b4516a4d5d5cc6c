"""Make sketches of texts, by which near-duplicates are recognised without their tokens (MinHash, Broder 1997).

Two texts agree in a place of their sketches with a probability of |A∩B|/|A∪B|. A and B are their sets of n-grams.

Texts that share more than a fifth of their n-grams (in a corpus: a third) are one **piece**, and so are texts connected
by a chain of such pairs. If a text is flagged by chance, an edited copy of it, or another filling of its template, is
flagged far more often than by chance. So code that counts independent texts counts pieces (`pieces_of`).

Keyed n-grams are a sample of the n-grams of a text's bytes, chosen only by their hash (Broder 1997, "mod m"). A passage
has the same ones in every text that contains it.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel

SKETCH_PLACES = 64
"""Number of places of a sketch."""

SKETCH_BYTES = 4 * SKETCH_PLACES
"""Number of bytes of a sketch."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # constants of splitmix64
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SEEDS = (np.arange(1, SKETCH_PLACES + 1, dtype=np.uint64) * _STEP)[:, None]


EQUAL_PLACES = 4
"""Number of equal places of two sketches of 64 from which texts are one piece.

Texts of one length that share a fifth agree in 7 places on average, and in fewer than 4 in one case of 12. Texts that
share nothing agree in none.
"""


EQUAL_IN_CORPUS = 13
"""The same number for a corpus, where no texts were chosen by their scores.

Texts that share a third agree in so many places on average. Example: 8,000 texts by people, of 63 sources. Chains of
pairs that agree in 4 places connected 1,499 of them, and chains of pairs that agree in 13 places at most 23. 2,000
fillings of a template with a blank in every eight words were one piece by both numbers.
"""

CORPUS_CONTEXT = 4
"""Smallest number of previous tokens of n-grams in a corpus. Texts share shorter n-grams merely by their language."""


def pieces_of(
    sketches: Sequence[bytes | None], groups: NDArray[np.int64] | None = None, equal_places: int = EQUAL_PLACES
) -> NDArray[np.int64]:
    """Return the piece of each of N texts, as the number of its first text: int64[N]. Linear in N except for sorting.

    Args:
        sketches: sketches as `sketch` makes them. A text without one is a piece of its own.
        groups: int64[N], texts of two groups are never one piece. None: all texts are of one group.
        equal_places: number of equal places from which two texts are one piece.

    Example: the second and the fifth of five texts are fillings of one template: [0, 1, 2, 3, 1].
    """
    # in numpy, because a compiler would make commands that list flags start half a second later
    piece = np.arange(len(sketches))
    texts = np.array([text for text, text_sketch in enumerate(sketches) if text_sketch is not None], np.int64)
    group = np.zeros(len(texts), np.int64) if groups is None else groups[texts]
    places = np.frombuffer(b"".join(filter(None, sketches)), "<u4").reshape(len(texts), SKETCH_PLACES)
    for place in range(SKETCH_PLACES):
        # 1. texts are neighbours if they have equal values in this place
        order = np.lexsort((places[:, place], group))
        a, b = order[:-1], order[1:]
        near = (group[a] == group[b]) & (places[a, place] == places[b, place]) & (piece[texts[a]] != piece[texts[b]])
        a, b = a[near], b[near]
        # 2. those that agree in enough places are joined
        for begin in range(0, len(a), _PAIRS_AT_ONCE):
            pairs = slice(begin, begin + _PAIRS_AT_ONCE)
            alike = (places[a[pairs]] == places[b[pairs]]).sum(axis=1) >= equal_places
            for a_text, b_text in zip(texts[a[pairs][alike]].tolist(), texts[b[pairs][alike]].tolist(), strict=True):
                first, second = _root(piece, a_text), _root(piece, b_text)
                piece[max(first, second)] = min(first, second)
        # 3. each text gets the number of its piece again
        while ((settled := piece[piece]) != piece).any():
            piece = settled
    return piece


_PAIRS_AT_ONCE = 1 << 16


def _root(piece: NDArray[np.int64], text: int) -> int:
    while piece[text] != text:
        piece[text] = piece[piece[text]]
        text = int(piece[text])
    return text


def sketch(ids: NDArray[np.uint32], context: int, places: NDArray[np.int64] | None = None) -> bytes | None:
    """Return SKETCH_PLACES · 4 bytes of a text's tokens, uint32[T]. None if it has no n-gram that counts.

    Args:
        ids: the tokens.
        context: number of previous tokens that a key reads with a token. n-grams have one token more, and at most T.
        places: places where the counted n-grams end, int64[P]. None: all count.
    """
    if not len(ids):
        return None
    n = min(context + 1, len(ids))
    grams = np.zeros(len(ids) - n + 1, np.uint64)
    for place in range(n):
        grams = _mixed(grams ^ ids[place : place + len(grams)].astype(np.uint64))
    if places is not None:
        grams = grams[places[places >= n - 1] - (n - 1)]
        if not len(grams):
            return None
    least = _mixed(np.unique(grams)[None, :] ^ _SEEDS).min(axis=1)
    return bytes((least >> np.uint64(32)).astype("<u4").tobytes())


GRAM_BYTES = 12
"""Bytes of a keyed n-gram: two to three words of English, four letters of Chinese."""

ONE_GRAM_IN = 8
"""One in so many n-grams of a text is kept: those with a keyed hash divisible by this number, at any place."""


def gram_key(secret: bytes) -> NDArray[np.uint64]:
    """Return the key of keyed n-grams, uint64[GRAM_BYTES]. Without it, texts with colliding hashes cannot be made."""
    drawn = hashlib.shake_256(b"brickscan keyed sketch\n" + secret).digest(8 * GRAM_BYTES)
    return np.frombuffer(drawn, "<u8").astype(np.uint64) | np.uint64(1)


def keyed_grams(text: str, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return keyed hashes of the kept n-grams of a text, ascending, each once: uint64[G].

    Upper and lower case count as the same, and so does any white space. The hashes are never shown.

    key: key from `gram_key`.
    """
    raw = np.frombuffer(" ".join(text.casefold().split()).encode(errors="surrogatepass"), np.uint8)
    if len(raw) < GRAM_BYTES:
        return np.empty(0, np.uint64)
    hashes = _keyed_hashes(raw, key)
    grams: NDArray[np.uint64] = np.unique(hashes[hashes % np.uint64(ONE_GRAM_IN) == 0])
    return grams


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Permute 64 bits, as splitmix64 does."""
    value = value + _STEP
    value = (value ^ (value >> np.uint64(30))) * _MIX[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX[1]
    return value ^ (value >> np.uint64(31))


_mixed_number = inlined(_mixed)


@kernel
def _keyed_hashes(raw: NDArray[np.uint8], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sum the bytes of each n-gram, each multiplied by the key of its place, and mix: uint64[N - GRAM_BYTES + 1].

    It is one kernel, because mixing by calls of numpy takes as long as adding up.
    """
    sums = np.zeros(len(raw) - len(key) + 1, np.uint64)
    for place in range(len(key)):
        for begin in range(len(sums)):
            sums[begin] += np.uint64(raw[begin + place]) * key[place]
    for begin in range(len(sums)):
        sums[begin] = _mixed_number(sums[begin])
    return sums

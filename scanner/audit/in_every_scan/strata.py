"""Parts of the traffic that are judged alone, since one sick host, or one length of texts, is lost in the whole.

Each document that is scored under a decoy, with one message or with all of them one by one, falls into a stratum of
every kind: by scored length, host, tokenizer backend, and script.
"""

import platform
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.text import Tokenizer
from schemas.audit_tables import PARTS

LETTERS = 64
"""First letters of a text that decide its script."""

_LOOKED_AT = 1024  # characters among which the letters are looked for
_SCRIPTS = (
    *("LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "THAI"),
    *("HANGUL", "HIRAGANA", "KATAKANA", "CJK", "GEORGIAN", "ARMENIAN", "ETHIOPIC", "KHMER", "MYANMAR"),
)


def script_of(text: str) -> str:
    """The script of most of a text's first letters, as Unicode names them; `other`, or `none` where it has none."""
    head, found = text[:_LOOKED_AT], list[str]()
    if head.isascii():
        return "LATIN" if any(map(str.isalpha, head)) else "none"
    for character in head:
        if character.isalpha():
            found.append("LATIN" if character.isascii() else unicodedata.name(character, "other").split()[0])
            if len(found) == LETTERS:
                break
    if not found:
        return "none"
    ((most, _),) = Counter(found).most_common(1)
    return most if most in _SCRIPTS else "other"


def strata(
    scored: NDArray[np.int64], tokenizer: Tokenizer, text_of: Callable[[int], str], places: Sequence[int]
) -> Iterator[tuple[str, NDArray[np.str_]]]:
    """Parts of the traffic (schemas.audit_tables.PARTS), each with the stratum of every one of D documents: str[D].

    Args:
        scored: positions, int64[D], each above 0.
        tokenizer: the tokenizer that made their tokens.
        text_of: gives their texts, by place in the batch.
        places: places of the D documents in the batch.
    """
    length, host, backend, script = PARTS
    low = 2 ** np.floor(np.log2(scored)).astype(np.int64)
    yield length, np.array([f"{least}-{2 * least - 1}" for least in low.tolist()])
    yield host, np.full(len(scored), platform.node() or "unnamed")
    yield backend, np.full(len(scored), tokenizer.backend)
    yield script, np.array([script_of(text_of(place)) for place in places])

"""Places of a batch's spans: key and characters; and which spans may name somebody."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.text.quoting import parts_of
from scanner.watermark import Positions, Tokens
from scanner.watermark.rule import passes
from scanner.watermark.span_search import Span
from schemas.words import Naming


class Located(NamedTuple):
    """A span of a document of a batch: the place of its key, and its first and last scored token in the document."""

    document: int
    key: int
    first: int
    last: int
    span: Span

    def characters(self, stand: NDArray[np.int64]) -> tuple[int, int]:
        """First character and the one after the last; stand: characters of each token of the document, int64[N, 2]."""
        return int(stand[self.first, 0]), int(stand[self.last, 1])


def locate(
    spans: Iterable[Span], key: int, tokens: Tokens, positions: Positions, documents: NDArray[np.int64]
) -> list[Located]:
    """Find the places of spans.

    Args:
        spans: spans of `positions`.
        key: place of the key.
        tokens: tokens of the batch.
        positions: positions of the documents that were scored.
        documents: places of these documents in the batch, int64[d].
    """
    found = []
    for span in spans:
        document, begin = int(documents[span.document]), int(positions.offsets[span.document])
        first, last = positions.index[begin + span.begin], positions.index[begin + span.end - 1]
        at = tokens.offsets[document]
        found.append(Located(document, key, int(first - at), int(last - at), span))
    return found


def namings(
    located: Sequence[Located],
    characters: Sequence[tuple[int, int]],
    misnaming_rate: float,
) -> list[Naming]:
    """Which spans of one document name their user, each by its own evidence: `named`, or why not.

    A span names its message if the message passes on what it shares with no other. Where one message's mark raises the
    scores of others, it names unless another message has a span in the same place: an overlap of at least half of the
    shorter span.

    Args:
        located: spans of one document.
        characters: first character of each span, and the one after its last.
        misnaming_rate: largest p, on what a span shares with no other, at which it names.
    """
    whose = [(one.key, one.span.message) for one in located]
    numbers = {who: number for number, who in enumerate(dict.fromkeys(whose))}
    messages = np.array([numbers[who] for who in whose], np.int64)
    begins, ends = np.array(characters, np.int64).reshape(-1, 2).T
    said = []
    for number, one in enumerate(located):
        if not passes(one.span.log10_p_own, misnaming_rate):
            said.append(Naming.UNDECIDED)
        elif not one.span.independent and bool(
            (_in_one_place(begins, ends, number) & (messages != messages[number])).any()
        ):
            said.append(Naming.AMBIGUOUS)
        else:
            said.append(Naming.NAMED)
    return said


def _in_one_place(begins: NDArray[np.int64], ends: NDArray[np.int64], number: int) -> NDArray[np.bool_]:
    """Which of S places share at least half of the shorter place with a given one, by its number: bool[S]."""
    common = np.minimum(ends, ends[number]) - np.maximum(begins, begins[number])
    lengths = ends - begins
    return np.asarray(2 * common >= np.maximum(1, np.minimum(lengths, lengths[number])), np.bool_)


def quoted_shares(text: str, characters: Sequence[tuple[int, int]]) -> list[float]:
    """Share of the characters at some places of a text that are quotations by their form."""
    parts = [(part.begin, part.end) for part in parts_of(text) if part.kind == "quoted"]
    begins, ends = np.array(parts, np.int64).reshape(-1, 2).T
    sums = np.append(0, np.cumsum(ends - begins))

    def before(at: NDArray[np.int64]) -> NDArray[np.int64]:
        begun = np.searchsorted(begins, at)
        beyond = np.maximum(np.append(0, ends)[begun] - at, 0)
        return np.asarray(sums[begun] - beyond, np.int64)

    first, last = np.array(characters, np.int64).reshape(-1, 2).T
    shares: list[float] = ((before(last) - before(first)) / np.maximum(last - first, 1)).tolist()
    return shares

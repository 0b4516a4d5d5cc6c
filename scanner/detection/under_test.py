"""Input and output of a detector: keys under test, the origin of a batch, its scores, and its results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.registry import NamedUser
from scanner.text import Tokenizer
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.span_search import Parts, Span
from schemas.registry import MasterKey


class NamesUsers(Protocol):
    """Who holds a message; scanner.registry.Holders is one."""

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """Whom a message names, for a document that existed at `at`."""


class Origin(NamedTuple):
    """The origin of a batch, as it stands in every row."""

    scan_id: str
    shard_id: str
    path: str


def as_it_is(mark: Watermark) -> Watermark:
    """Score a watermark on the CPU."""
    return mark


@dataclass(frozen=True)
class KeyUnderTest:
    """A key of the registry, opened, with its tokenizer, and the function that moves its watermark to its device."""

    key: MasterKey
    watermark: Watermark
    tokenizer: Tokenizer
    to_device: Callable[[Watermark], Watermark] = as_it_is


class KeyScores(NamedTuple):
    """Scores of one key in a batch: the positions of D of its documents, and which these are, int64[D].

    spans: spans in these documents, where they are looked for; parts: the parts that were tested, None: none.
    """

    test: KeyUnderTest
    tokens: Tokens
    positions: Positions
    documents: NDArray[np.int64]
    spans: list[Span] = []  # noqa: RUF012 - nobody changes it
    parts: Parts | None = None

    @property
    def parted(self) -> NDArray[np.bool_]:
        """Which documents of the batch have parts that are tested: bool[all]."""
        parted = np.zeros(len(self.tokens.offsets) - 1, np.bool_)
        if self.parts is not None:
            parted[self.documents] = self.parts.there(self.positions.scored)
        return parted


class BatchResult(NamedTuple):
    """Result of a batch. verdicts, quarantine: as `Detector.detect` returns them.

    lengths: row, tokens and scored of each verdict's text as it stands, under the first key that scored it, else the
    first: int64. They depend on no score. spans: rows of schemas.tables.SPANS, `keys` left empty.
    """

    verdicts: pa.RecordBatch
    quarantine: pa.RecordBatch
    lengths: pa.RecordBatch
    spans: pa.RecordBatch


class Witness(Protocol):
    """Is shown the scores while they are made; scanner.audit.in_every_scan.decoys.PieceDecoys is one."""

    def see(self, digests: Sequence[bytes], scores: Sequence[KeyScores], text_of: Callable[[int], str]) -> None:
        """Take a batch: SHA-256 of its texts, the scores of each key, and the texts as they were read, by place."""


def log10_reach(test: KeyUnderTest) -> float:
    """log10 of the smallest p-value that a key may state: by its admission if its law is assumed; else −∞."""
    admission = test.key.admission
    return math.log10(admission.holds_down_to) if test.watermark.basis.assumed and admission else -math.inf


class DocumentSpan(NamedTuple):
    """A span of a document of a batch: the place of its key, and its first and last scored token in the document."""

    document: int
    key: int
    first: int
    last: int
    span: Span

    def characters(self, stand: NDArray[np.int64]) -> tuple[int, int]:
        """First character and the one after the last; stand: characters of each token of the document, int64[N, 2]."""
        return int(stand[self.first, 0]), int(stand[self.last, 1])

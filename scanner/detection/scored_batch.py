"""A batch with its scores, as naming and the look at parts of texts see it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

import pyarrow as pa

from scanner.detection.attribution import DocumentSpan, FileHistory, KeyPositions, UserOfMessage
from scanner.text import HuggingFaceTokenizer
from schemas.registry import MasterKey
from schemas.words import Proof


class ProvesSpans(Protocol):
    """Computes spans again, as scanner.detection.proving.Prover does."""

    def draw(self, texts: Iterable[tuple[int, str, int]], salt: bytes) -> set[int]:
        """Draw the texts of a batch whose spans are proved, by place, of places, texts and their tokens."""

    def prove_spans(self, text: str, key: int, document_spans: Sequence[DocumentSpan]) -> Proof:
        """Compute spans of one key, by its place, in a text again: `differs` where one differs."""


class SpanKey(NamedTuple):
    """What rows of spans say of a key, and how its tokens are located.

    correction: K of its spans.
    """

    key: MasterKey
    tokenizer: HuggingFaceTokenizer
    correction: float
    basis: str


@dataclass(frozen=True)
class ScoredBatch:
    """The documents of a batch by place, and the keys by place.

    scores: what each key scored, with its spans.
    documents: with their digests and times.
    text_of: gives a text as it is written.
    history: of their file.
    users_at: gives key id and named user by key and message, for a document that existed at a time.
    prover: computes spans again; None: spans are not proved.
    """

    scores: Sequence[KeyPositions]
    documents: pa.RecordBatch
    text_of: Callable[[int], str]
    history: FileHistory
    users_at: Callable[[datetime], UserOfMessage]
    prover: ProvesSpans | None

    def existed_by(self, place: int) -> datetime | None:
        """Return the time by which a document existed; None: not known to exist before the scan."""
        latest, digest = (self.documents[name][place].as_py() for name in ("created_at_latest", "text_sha256"))
        return self.history.existed_by(latest, digest)

    def user_of(self, existed_by: datetime | None) -> UserOfMessage:
        """Return what names users by key and message, in a document that existed then."""
        return self.users_at(existed_by or self.history.began)

"""Define a batch with its scores, for naming and for the look at parts of texts."""

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
    """An object that computes spans again, as scanner.detection.proving.Prover does."""

    def draw(self, texts: Iterable[tuple[int, str, int]], salt: bytes) -> set[int]:
        """Draw the texts of a batch whose spans are proved.

        `texts` are places, texts and numbers of tokens. Returns places.
        """

    def prove_spans(self, text: str, key: int, document_spans: Sequence[DocumentSpan]) -> Proof:
        """Compute spans of one key, by its place, in a text again. The result is `differs` if one of them differs."""


class SpanKey(NamedTuple):
    """Columns of a key for rows of spans, and the means to find its tokens' places.

    correction: K of its spans.
    """

    key: MasterKey
    tokenizer: HuggingFaceTokenizer
    correction: float
    basis: str


@dataclass(frozen=True)
class ScoredBatch:
    """The documents of a batch by place, and the keys by place.

    scores: the positions that each key scored, with its spans.
    documents: documents with their digests and times.
    text_of: returns a text as written.
    history: history of their file.
    users_at: for a document that existed at a time, returns a function from key and message to key id and named user.
    prover: computes spans again. None: spans are not proved.
    """

    scores: Sequence[KeyPositions]
    documents: pa.RecordBatch
    text_of: Callable[[int], str]
    history: FileHistory
    users_at: Callable[[datetime], UserOfMessage]
    prover: ProvesSpans | None

    def existed_by(self, place: int) -> datetime | None:
        """Return the time by which a document existed. None: it is not known to exist before the scan."""
        latest, digest = (self.documents[name][place].as_py() for name in ("created_at_latest", "text_sha256"))
        return self.history.existed_by(latest, digest)

    def user_of(self, existed_by: datetime | None) -> UserOfMessage:
        """Return the function that names users by key and message, in a document that existed then."""
        return self.users_at(existed_by or self.history.began)

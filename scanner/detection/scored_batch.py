"""The data of a scored batch that spans need about their documents."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from scanner.detection.existence import OfFile
from scanner.detection.located import Located, locate
from scanner.detection.proving import Prover
from scanner.detection.sketches import reach_of, sketch
from scanner.detection.under_test import Seen
from scanner.registry import Named
from schemas.words import Proof


def located_spans(seen: Sequence[Seen]) -> list[Located]:
    """Every span that keys found in a batch, with the place of its tokens."""
    return [
        one
        for key, of_key in enumerate(seen)
        for one in locate(of_key.spans, key, of_key.tokens, of_key.positions, of_key.documents)
    ]


@dataclass(frozen=True)
class ScoredBatch:
    """The documents of a batch by place, and the keys by place.

    seen: the scores of each key; documents: with their digests and times; text_of: gives a text as it stands; known:
    what is known of their file; who_at: gives key id and named user, by place of the key and message, for a document
    that existed then; prover: computes spans again, None: spans are not proved.
    """

    seen: Sequence[Seen]
    documents: pa.RecordBatch
    text_of: Callable[[int], str]
    known: OfFile
    who_at: Callable[[datetime], Callable[[int, int], tuple[str, Named]]]
    prover: Prover | None

    def first_seen(self, place: int) -> datetime | None:
        """Time by which a document existed; None: not known to exist before the scan."""
        latest, digest = (self.documents[name][place].as_py() for name in ("created_at_latest", "text_sha256"))
        return self.known.first_seen(latest, digest)

    def who(self, first_seen: datetime | None) -> Callable[[int, int], tuple[str, Named]]:
        """The named user by place of the key and message, in a document that existed then."""
        return self.who_at(first_seen or self.known.began)

    def sketch(self, place: int, key: int) -> bytes | None:
        """Sketch by which near-duplicates of a document are recognised."""
        tokens = self.seen[key].tokens
        ids = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]]
        return sketch(ids, reach_of(self.seen[key].test.watermark.rule))

    def lengths(self, place: int, key: int) -> tuple[int, int]:
        """Tokens of a document, and how many are scored."""
        of_key = self.seen[key]
        scored = of_key.positions.scored[int(np.searchsorted(of_key.documents, place))]
        return int(of_key.tokens.offsets[place + 1] - of_key.tokens.offsets[place]), int(scored)

    def drawn(self, located: Sequence[Located], salt: bytes) -> set[int]:
        """Documents whose spans are computed again; salt: the batch's, as for Prover.prove."""
        if self.prover is None:
            return set()
        sizes: dict[int, int] = {}
        for place, key in {(one.document, one.key) for one in located}:
            sizes[place] = sizes.get(place, 0) + self.lengths(place, key)[0]
        return self.prover.drawn(((place, self.text_of(place), size) for place, size in sizes.items()), salt)

    def prove(self, text: str, key: int, of_text: Sequence[Located], drawn: Collection[int]) -> Proof | None:
        """Result of computing spans of one key in a text again; None: spans are not proved."""
        if self.prover is None:
            return None
        return self.prover.prove_spans(text, key, of_text) if of_text[0].document in drawn else Proof.NOT_DRAWN

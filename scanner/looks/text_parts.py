"""Define the interface of parts of texts: windows and segments, each a text of its own that may carry a mark.

No score decides which parts a text has, so p-values hold for them. Together they are a look, with a share of the rate
(scanner.error_shares). Without such a look, texts have no parts, and the whole text has that share.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from scanner.detection.attribution import DocumentSpan
from scanner.detection.left_out import LeftOut
from scanner.detection.scored_batch import ScoredBatch, SpanKey
from scanner.errors import Refused
from scanner.looks.parts import look
from scanner.text import HuggingFaceTokenizer
from scanner.text.utf8 import Utf8
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.format import ProofPath
from scanner.watermark.laws import Law
from scanner.watermark.parts import Limit, PartKinds, Parts, Segments, Span
from scanner.watermark.rule import KeyFindings
from schemas.words import Dedup, Proof

CutTexts = Callable[[Utf8, Mapping[str, Tokens]], dict[str, Segments]]
"""A function that cuts texts into segments.

It takes texts and their tokens under each tokenizer. It returns the segments under each tokenizer, by these tokens.
"""


class PartsLook(Protocol):
    """A look that finds passing parts of texts, changes verdicts by them, and proves them."""

    def segment_cutter(self, tokenizers: Mapping[str, HuggingFaceTokenizer]) -> CutTexts:
        """Return a function that cuts texts into segments. `tokenizers` are the reference tokenizers, by name."""

    def scored_parts(
        self,
        kinds: PartKinds,
        segments: Segments | None,
        tokens: Tokens,
        positions: Positions,
        documents: NDArray[np.int64],
    ) -> Parts:
        """Return the parts of D documents that are tested, by scored positions.

        Args:
            kinds: kinds of parts.
            segments: segments of the texts of the batch, by tokens. None: none are tested.
            tokens: of the batch.
            positions: of the documents.
            documents: int64[D], their places in the batch.
        """

    def search_parts(
        self,
        mark: Watermark,
        tokens: Tokens,
        positions: Positions,
        messages: int,
        correction: ArrayLike,
        limit: Limit,
        parts: Parts,
    ) -> tuple[KeyFindings, list[Span]]:
        """Search D documents as a whole, as scanner.watermark.rule.search does, and their parts.

        Args:
            mark: mark of the key.
            tokens: of the batch.
            positions: of the documents.
            messages: M of SPEC §3.
            correction: K of whole documents, one for all or one for each.
            limit: the limit that a span must pass.
            parts: parts that are tested besides the whole.

        Returns:
            Findings on the whole.
            Spans by document, the smallest p first.
        """

    def least_of_parts(
        self, law: Law, sums: NDArray[np.float64], positions: Positions, parts: Parts
    ) -> NDArray[np.float64]:
        """Return log10 of the smallest p of any part of each document, float64[D], from running sums of its terms."""

    def with_spans(
        self,
        verdicts: pa.RecordBatch,
        keys: Sequence[SpanKey],
        batch: ScoredBatch,
        misnaming_rate: float,
        salt: bytes,
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return verdicts with the changes of spans in them, and rows of SPANS.

        Args:
            verdicts: exact rows of VERDICTS, of all documents of the batch.
            keys: each key's columns for rows.
            batch: the documents and their scores.
            misnaming_rate: largest p of a span's user evidence at which it names.
            salt: salt of the batch, as for Prover.prove.
        """

    def parts_of(
        self, kinds: PartKinds, tokenizer: HuggingFaceTokenizer, text: str, places: NDArray[np.int64]
    ) -> list[tuple[int, int, int]]:
        """Return all parts of a text: first scored position, position after the last, number of its segment (−1: none).

        Args:
            kinds: kinds of parts.
            tokenizer: the reference tokenizer.
            text: the text as written.
            places: int64[P], places of its scored tokens.
        """

    def prove_spans(
        self,
        path: ProofPath | None,
        tokenizer: HuggingFaceTokenizer,
        text: str,
        document_spans: Sequence[DocumentSpan],
        tests: tuple[int, float],
        dedup: Dedup,
        kinds: PartKinds,
        common: LeftOut | None = None,
    ) -> Proof:
        """Prove all spans of one key in a text. The result is `differs` if one of them is not confirmed.

        Args:
            path: the key's slow path. None: its format has none.
            tokenizer: the reference tokenizer.
            text: the text as written.
            document_spans: spans of the key.
            tests: M and K of SPEC §3.
            dedup: the repeats that are left out.
            kinds: kinds of parts.
            common: n-grams that are left out of scoring. None: none are.
        """


PARTS_LOOKS: tuple[PartsLook, ...] = (look,)
"""The only such look, on a line that can be deleted together with its folder. Texts then have no parts."""


def check_parts(*, tested: bool) -> None:
    """Raise Refused if parts of texts are to be tested, or were, but there is no such look."""
    if tested and not PARTS_LOOKS:
        raise Refused(
            "[spans]: this installation does not test parts of texts; leave the section out, or install the look"
        )


def parts_look() -> PartsLook:
    """Return the look.

    Raises:
        Refused: there is none.
    """
    check_parts(tested=True)
    return PARTS_LOOKS[0]

"""The look at parts of texts, as the detector, proofs and controls ask for it (scanner.looks.text_parts.PartsLook)."""

from scanner.looks.parts.proofs import parts_of, prove_spans
from scanner.looks.parts.rows import with_spans
from scanner.looks.parts.search import least_of_parts, scored_parts, search_parts
from scanner.looks.parts.segments import segment_cutter

__all__ = ["least_of_parts", "parts_of", "prove_spans", "scored_parts", "search_parts", "segment_cutter", "with_spans"]

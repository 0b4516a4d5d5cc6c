"""The science: arrays in, arrays out. No files, no Arrow, no Ray, no torch. Our own marks: SPEC.md, SPEC_3.md."""

from scanner.watermark.format import Candidates, Format, Watermark
from scanner.watermark.native.greenlist import GreenList
from scanner.watermark.native.gumbel import Gumbel, LogGumbel, cheapest, cut, minus_ln_r
from scanner.watermark.native.keyed import BestMessages
from scanner.watermark.native.secret import commitment, label
from scanner.watermark.positions import (
    Dedup,
    Positions,
    Tokens,
    batch_tokens,
    join_batches,
    scored_positions,
    select_documents,
    select_positions,
)
from scanner.watermark.pvalues import log10_any_of, log10_greenlist, log10_gumbel, log10_gumbel_log, log10_z

__all__ = [
    "BestMessages",
    "Candidates",
    "Dedup",
    "Format",
    "GreenList",
    "Gumbel",
    "LogGumbel",
    "Positions",
    "Tokens",
    "Watermark",
    "batch_tokens",
    "cheapest",
    "commitment",
    "cut",
    "join_batches",
    "label",
    "log10_any_of",
    "log10_greenlist",
    "log10_gumbel",
    "log10_gumbel_log",
    "log10_z",
    "minus_ln_r",
    "scored_positions",
    "select_documents",
    "select_positions",
]

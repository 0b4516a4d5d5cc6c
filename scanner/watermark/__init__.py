"""The science: arrays in, arrays out. No files, no Arrow, no Ray, no torch. SPEC.md is its specification."""

from scanner.watermark.choice import cheapest, cut, minus_ln_r
from scanner.watermark.greenlist import GreenList
from scanner.watermark.gumbel import Gumbel, LogGumbel
from scanner.watermark.method import Best, Watermark
from scanner.watermark.neyman_pearson import Weighted, log10_chernoff, neyman_pearson
from scanner.watermark.positions import Dedup, Positions, Tokens, joined, ragged, scored_positions
from scanner.watermark.pvalues import log10_any_of, log10_greenlist, log10_gumbel, log10_gumbel_log, log10_z
from scanner.watermark.secret import commitment, label

__all__ = [
    "Best",
    "Dedup",
    "GreenList",
    "Gumbel",
    "LogGumbel",
    "Positions",
    "Tokens",
    "Watermark",
    "Weighted",
    "cheapest",
    "commitment",
    "cut",
    "joined",
    "label",
    "log10_any_of",
    "log10_chernoff",
    "log10_greenlist",
    "log10_gumbel",
    "log10_gumbel_log",
    "log10_z",
    "minus_ln_r",
    "neyman_pearson",
    "ragged",
    "scored_positions",
]

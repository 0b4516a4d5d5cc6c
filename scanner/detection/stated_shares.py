"""Compute, in a plain way from the configuration, the number of tests that proofs correct p-values for.

This is K of SPEC §3. It shares no code with scanner.error_shares, which judges texts, parts, accounts and readings of a
model. If a share is lost there, p-values become too small, but the proofs of their flags then differ.

Example: one of two keys, with the sections [spans] and [variants] of the default configuration, which state no weights.
A text with parts and another normal form has K = 2 / (1/2 · 1/2) = 8 as written, and its parts have K = 2 / (1/2) = 4.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.formats import can_have_levels, format_of
from schemas.config import ScanConfig
from schemas.registry import MasterKey

_NONE, _ALL = Fraction(0), Fraction(1)


class StatedShares(NamedTuple):
    """Shares of the false-positive rate, as the configuration states them. 0 for a look that is off.

    document, span, account, levels: shares of looks.
    as_written, normalised: shares of variants of texts.
    nights: number of nights in a window of accounts. They divide the look's share among them.
    """

    document: Fraction = _ALL
    span: Fraction = _NONE
    account: Fraction = _NONE
    levels: Fraction = _NONE
    as_written: Fraction = _ALL
    normalised: Fraction = _NONE
    nights: int = 1

    @classmethod
    def of_config(cls, config: ScanConfig) -> "StatedShares":
        """Read the shares of a scan's configuration. If it states none, the looks that are on have equal shares."""
        is_on = {
            "document": True,
            "span": config.spans.windows or config.spans.segments,
            "account": config.accounts is not None,
            "levels": config.levels is not None,
        }
        equal_look = f"{1 / sum(is_on.values()):.4f}"
        looks = {name: getattr(config.weights, name) or equal_look for name, on in is_on.items() if on}
        equal_variant = "0.5" if config.variants.normalised else "1"
        variants = {"as_written": config.weights.as_written or equal_variant}
        if config.variants.normalised:
            variants["normalised"] = config.weights.normalised or equal_variant
        shares = {name: Fraction(str(share)) for name, share in (looks | variants).items()}
        return cls(**shares, nights=config.accounts.nights if config.accounts else 1)

    @classmethod
    def on_record(cls, **weights: float | None) -> "StatedShares":
        """Return recorded weights, where no configuration states them. None: the look is off."""
        shares = {name: Fraction(str(weights[name] or 0)) for name in cls._fields if name in weights}
        return cls(**shares, nights=1)

    def of_levels(self) -> "StatedShares":
        """Return the shares of the look at texts with tokens weighed by a model: the whole share of that look."""
        return StatedShares(document=self.levels)


def text_corrections(shares: StatedShares, key: MasterKey, keys_tested: int) -> NDArray[np.float64]:
    """Compute K of whole texts under a key: float64[variant, has_normal_form, has_parts].

    Variants are the text as written and, if they are scored, the normalised text. keys_tested: number of keys that
    share equally, for a key without a weight of its own.
    """
    key_format, variants = format_of(key), 2 if shares.normalised else 1
    table = np.empty((variants, 2, 2))
    for has_normal_form in (0, 1):
        for has_parts in (0, 1):
            # 1. A look that a text does not have under this key gives its share to the whole text.
            whole = shares.document
            if not (has_parts and key_format.scores_parts):
                whole += shares.span
            if not can_have_levels(key):
                whole += shares.levels
            # 2. A text that is its own normal form is one variant. Under an assumed law every text is.
            written = shares.as_written
            if not has_normal_form or key_format.basis().assumed:
                written += shares.normalised
            # 3. K is 1 over the product of the shares.
            for variant, share in enumerate((written, shares.normalised)[:variants]):
                table[variant, has_normal_form, has_parts] = float(1 / (_share_of(key, keys_tested) * whole * share))
    return table


def span_correction(shares: StatedShares, key: MasterKey, keys_tested: int) -> float | None:
    """Compute K of parts of texts under a key. None: they are not tested."""
    return float(1 / (_share_of(key, keys_tested) * shares.span)) if shares.span else None


def account_correction(shares: StatedShares, key: MasterKey, keys_tested: int) -> float | None:
    """Compute K of all posts of an account under a key, on every night of the window. None: they are not tested."""
    return float(shares.nights / (_share_of(key, keys_tested) * shares.account)) if shares.account else None


def _share_of(key: MasterKey, keys_tested: int) -> Fraction:
    return Fraction(1, key.one_of or keys_tested)

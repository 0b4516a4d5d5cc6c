"""What a person has to know of one flag: what was found, how likely chance does it, where it stands in the text.

Nothing here decides: the verdict was given by the scan. The text is read again from its file, and is shown only if it
is, byte for byte, the one that was scanned.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from scanner.detection.normalising import normalise
from scanner.detection.scan_plan import open_keys, read_config, results_of
from scanner.errors import Refused
from scanner.evidence.case import Case, find_case, stored_text
from scanner.evidence.quoting import Kind, Part, parts_of
from scanner.evidence.weighing import RUN, PartSaid, Weighed, weigh
from scanner.input.columns import Columns
from scanner.input.documents import read_text
from scanner.input.files import resolve
from scanner.registry import find_key, load_registry
from scanner.results.queries import ask, standing_flags
from scanner.storage.locations import absolute
from schemas.config import ScanConfig
from schemas.registry import MasterKey

ALIKE = 0.01
"""A part whose p-value is above it reads like text without a mark."""


class Around(NamedTuple):
    """Flagged documents, and distinct texts among them."""

    documents: int
    texts: int


@dataclass(frozen=True)
class Explanation:
    """A flag explained.

    case: its row and scan; key: on record, None without a configuration; text: as it was scored, None where it cannot
    be shown, for the reason `no_text`; parts of the text; weighed: how it speaks for the verdict's message, None where
    none is shown; of_message, of_account, of_text: other flags; expected: N·p, how many texts of its scan chance alone
    brings to this p-value; false_flags: how many flags of its scan chance alone makes; None: the scan did not end.
    """

    case: Case
    rate: float
    key: MasterKey | None
    text: str | None
    no_text: str | None
    parts: list[Part]
    weighed: Weighed | None
    of_message: Around
    of_account: Around | None
    of_text: Around
    expected: float | None
    false_flags: float | None

    @property
    def row(self) -> Mapping[str, Any]:
        """Of schemas.tables.VERDICTS."""
        return self.case.row

    @property
    def said_of_parts(self) -> list[PartSaid]:
        """What quoted lines and own words say, where the text has both."""
        return self.weighed.parts if self.weighed and len(self.weighed.parts) > 1 else []

    @property
    def carried_by(self) -> Kind | None:
        """Which part alone carries the mark, while the other reads like text without one: `quoted`, `own` or None."""
        said = {part.kind: part.log10_p_any for part in self.said_of_parts}
        orders: tuple[tuple[Kind, Kind], ...] = (("quoted", "own"), ("own", "quoted"))
        for kind, other in orders:
            if said and said[kind] <= math.log10(self.rate) and said[other] > math.log10(ALIKE):
                return kind
        return None


class _Source(NamedTuple):
    """A configuration, and where it looks for what it names."""

    config: ScanConfig
    base: Path

    @property
    def registry(self) -> str:
        """Folder or URI."""
        return absolute("registry", self.config.registry, self.base)


def explain(place: Path | str, document: str, run: int = RUN) -> Explanation:
    """Explain a flagged document.

    Args:
        place: the file of a scan's configuration; or a folder or URI of results, with which no text is shown.
        document: its id, or PATH:ROW.
        run: scored tokens that are weighed as one; below RUN a page shows material of the key.

    Raises:
        Refused: there is no such flag, or the configuration cannot be right; SecretError, TokenizerError.
    """
    if isinstance(place, Path):
        source = _Source(read_config(place), place.absolute().parent)
        results, rate = results_of(source.config, place), source.config.false_positive_rate
    else:
        source, results, rate = None, place, 1.0
    case = find_case(results, rate, document)
    stated = case.scan["false_positive_rate"] if case.scan else rate
    text, why, key, weighed, parts = _text_of(case, source, run)
    read = case.scan["documents"] if case.scan else None
    return Explanation(
        case=case,
        rate=min(rate, stated),
        key=key,
        text=text,
        no_text=why,
        parts=parts,
        weighed=weighed,
        of_message=_around(results, rate, case, ("key_id", "message")),
        of_account=None if case.row["account_id"] is None else _around(results, rate, case, ("account_id",)),
        of_text=_around(results, rate, case, ("text_sha256",)),
        expected=None if read is None else read * 10.0 ** case.row["log10_p_global"],
        false_flags=None if read is None else read * stated,
    )


def _text_of(
    case: Case, source: _Source | None, run: int
) -> tuple[str | None, str | None, MasterKey | None, Weighed | None, list[Part]]:
    """Text, why there is none, key, what the text says, and its parts."""
    if source is None:
        return None, "name the scan's configuration instead of its results to see the text", None, None, []
    key = find_key(load_registry(source.registry), case.row["key_id"])
    try:
        locations = [resolve(path, source.base, None) for path in source.config.input.paths if "{date}" not in path]
        raw = stored_text(case, Columns.of(source.config.input), locations)
    except Refused as error:
        return None, str(error), key, None, []
    text = read_text(raw)[0] or ""
    if case.row["variant"] is not None:
        text = normalise(text)
    parts = parts_of(text)
    if case.row["message"] is None:  # undecided: whoever is best may be a stranger
        return text, None, key, None, parts
    (test,) = open_keys(source.registry, [key], fast=False)
    dedup = case.scan["dedup"] if case.scan else source.config.dedup
    message = case.row["message"]
    weighed = weigh(test.watermark, test.tokenizer.reference, text, message, key.messages, dedup, parts, run)
    return text, None, key, weighed, parts


def _around(results: str, rate: float, case: Case, columns: tuple[str, ...]) -> Around:
    """Flags that have in these columns what the case has, itself among them."""
    same = [pl.col(name).eq_missing(pl.lit(case.row[name])) for name in columns]
    wanted = pl.all_horizontal(*same)
    counts = [pl.len().alias("documents"), pl.col("text_sha256").n_unique().alias("texts")]
    found = ask(results, lambda: standing_flags(results, rate, wanted).select(counts).collect())
    return Around(*map(int, found.row(0)))


def in_words(log10_p: float) -> str:
    """How seldom chance does it: `2.9·10^12` of one text in so many."""
    whole = math.floor(-log10_p)
    return f"{10 ** (-log10_p - whole):.1f}·10^{whole}" if whole > 3 else f"{10**-log10_p:,.0f}"

"""The page of error rates: one HTML file in the look of a report, and its JSON twin. Equal inputs give equal bytes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import jinja2

from scanner.evaluation.error_rates import COARSE, FORGED_TOKENS, LEAST_TEXTS, LONG, ErrorCell
from scanner.evidence.page import environment, rates_chart
from scanner.printable import printable

LONGEST_ROW = 120

_ALL, _LONG = "all", f"{LONG} tokens and more"

_FOUND = (("found", _ALL, "found"), ("named", _ALL, "its user named"), ("misnamed", _ALL, "somebody else named"))

_EDITED = tuple(
    (measure, among, f"{words}, {lengths}")
    for among, lengths in ((_ALL, "all lengths"), (_LONG, _LONG))
    for measure, _, words in _FOUND
)


class PageCell(NamedTuple):
    """A cell in words: its count, its limits, and what it lacks or warns of (empty: nothing)."""

    counted: str
    limits: str
    lacks: str


def in_words(cell: ErrorCell | None) -> PageCell:
    """A cell as the page has it; None: no text belongs into it."""
    if cell is None:
        return PageCell("no text", "", "")
    count = f"{cell.hits:,} of {cell.texts:,}"
    if cell.rate is not None:
        lacks = f"lacks {cell.lacks:,} texts to show {cell.rate:g}" if cell.lacks else ""
        if cell.too_high:
            lacks = f"above {cell.rate:g}: believe no flag before the cause is known"
        return PageCell(count, f"{_rounded(cell.low, math.floor):.2g} to {_rounded(cell.high, math.ceil):.2g}", lacks)
    limits = f"{math.floor(100 * cell.low) / 100:.2f} to {math.ceil(100 * cell.high) / 100:.2f}"
    if cell.share is None:
        return PageCell(count, limits, f"lacks {cell.lacks:,} texts to state a share")
    return PageCell(count, f"{cell.share:.2f} ({limits})", "")


def _rounded(limit: float, outwards: Callable[[float], int]) -> float:
    """A limit of two digits, which is never nearer than the limit itself."""
    step = 10.0 ** (math.floor(math.log10(limit)) - 1) if limit > 0 else 1.0
    return outwards(round(limit / step, 9)) * step


def table(
    cells: Sequence[ErrorCell], part: str, heading: str, columns: Sequence[tuple[str, str, str]]
) -> dict[str, Any]:
    """A section as a table, a line a row; columns: measure, which texts, words above; empty ones are left out."""
    known = {(cell.row, cell.measure, cell.among): cell for cell in cells if cell.part == part}
    there = [column for column in columns if any(key[1:] == column[:2] for key in known)]
    lines = [
        (printable(row, LONGEST_ROW), [in_words(known.get((row, *column[:2]))) for column in there])
        for row in dict.fromkeys(row for row, *_ in known)
    ]
    return {"heading": heading, "heads": [words for *_, words in there], "lines": lines}


def page(about: Mapping[str, Any], cells: Sequence[ErrorCell]) -> str:
    """The page as HTML; about: as in `twin`."""
    rate = f"{about['rules']['false_positive_rate']:g}"
    rates = [cell for cell in cells if cell.part == "p-values"]
    points = [
        {"tests": 1, "hits": cell.hits / cell.texts, "expected": cell.rate, "low": cell.low, "high": cell.high}
        for cell in rates
    ]
    at_rate = [("flagged", _ALL, f"flagged at {rate}"), ("reached", _ALL, f"p of {COARSE:g} and less")]
    return _environment().get_template("error_rates.html.j2").render(
        title="Error rates of a watermark detector",
        about=about,
        cells=len(cells),
        held=sum(cell.rate is not None for cell in cells),
        rate=rate,
        least=LEAST_TEXTS,
        forged=FORGED_TOKENS,
        chart=rates_chart(points, "unmarked texts"),
        p_values=table(cells, "p-values", "All unmarked texts", [("reached", _ALL, "texts with so small a p-value")]),
        unmarked=table(cells, "false positives", "By part of the corpus", at_rate),
        marked=table(cells, "marked", "By length and kind", _FOUND),
        edits=table(cells, "edits", "After edits", _EDITED),
        removers=table(cells, "removers", "After steps of public removers", _EDITED),
        rewriting=table(cells, "rewriting", "After a model rewrote them", _EDITED),
        imitation=table(cells, "imitation", "Forgeries", _FOUND),
    )  # fmt: skip


def twin(about: Mapping[str, Any], cells: Sequence[ErrorCell]) -> str:
    """The page as JSON: how it was made, and all cells, those too that the page leaves out."""
    return json.dumps({**about, "cells": [asdict(cell) for cell in cells]}, indent=1, ensure_ascii=False) + "\n"


def _environment() -> jinja2.Environment:
    of_evidence = environment()
    loaders = [jinja2.PackageLoader("scanner.evaluation", "."), of_evidence.loader]
    return of_evidence.overlay(loader=jinja2.ChoiceLoader([one for one in loaders if one is not None]))

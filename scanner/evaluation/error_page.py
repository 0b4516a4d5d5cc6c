"""The page of error rates: one HTML file in the look of a report, and its JSON twin. Equal inputs give equal bytes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import jinja2

from scanner.evaluation.error_rates import COARSE, FORGED_TOKENS, LEAST_TEXTS, LONG, ErrorCell
from scanner.evidence.page import environment, rates_chart
from scanner.printable import printable

LONGEST_ROW = 120

_FOUND = (("found", "found"), ("named", "its user named"), ("misnamed", "somebody else named"))

_OF_EDITS = (("all", "all lengths"), (f"{LONG} tokens and more", f"{LONG} tokens and more"))


class PageCell(NamedTuple):
    """A cell in words: its count, its limits, and what it lacks or warns of (empty: nothing)."""

    counted: str
    limits: str
    lacks: str


class PageTable(NamedTuple):
    """A table: its heading, the heads of its columns, and lines of a name and cells."""

    heading: str
    heads: Sequence[str]
    lines: Sequence[tuple[str, Sequence[PageCell]]]


def in_words(cell: ErrorCell | None) -> PageCell:
    """A cell as the page has it; None: no text belongs into it."""
    if cell is None:
        return PageCell("no text", "", "")
    count = f"{cell.hits:,} of {cell.texts:,}"
    limits = f"{cell.low:.2f} to {cell.high:.2f}" if cell.rate is None else f"{cell.low:.2g} to {cell.high:.2g}"
    if cell.rate is not None:
        if cell.too_high:
            return PageCell(count, limits, f"above {cell.rate:g}: believe no flag before the cause is known")
        return PageCell(count, limits, (cell.lacks and f"lacks {cell.lacks:,} texts to show {cell.rate:g}") or "")
    if cell.share is None:
        return PageCell(count, limits, f"lacks {cell.lacks:,} texts to state a share")
    return PageCell(count, f"{cell.share:.2f} ({limits})", "")


def table(cells: Sequence[ErrorCell], part: str, columns: Sequence[tuple[str, str]], heading: str) -> PageTable:
    """A section as a table: a line a row, a column a measure; columns: measure and its words."""
    return _table([cell for cell in cells if cell.part == part], heading, columns, lambda cell: cell.measure)


def edits_table(cells: Sequence[ErrorCell], part: str, heading: str) -> PageTable:
    """Edits as a table: found and named, among all texts and among those that are long."""
    columns = [
        (f"{measure}|{among}", f"{words}, {lengths}") for among, lengths in _OF_EDITS for measure, words in _FOUND
    ]
    kept = [cell for cell in cells if cell.part == part]
    return _table(kept, heading, columns, lambda cell: f"{cell.measure}|{cell.among}")


def _table(cells: Sequence[ErrorCell], heading: str, columns: Sequence[tuple[str, str]], key: Any) -> PageTable:  # noqa: ANN401
    known = {(cell.row, key(cell)): cell for cell in cells}
    there = [(name, words) for name, words in columns if any(name == key for _, key in known)]
    lines = [
        (
            printable(row, LONGEST_ROW),
            [in_words(known.get((row, name))) for name, _ in there],
        )
        for row in dict.fromkeys(cell.row for cell in cells)
    ]
    return PageTable(heading, [words for _, words in there], lines)


def page(about: Mapping[str, Any], cells: Sequence[ErrorCell]) -> str:
    """The page as HTML; about: as in `twin`."""
    rate = f"{about['rules']['false_positive_rate']:g}"
    p_values = [cell for cell in cells if cell.part == "p-values"]
    chart = rates_chart(
        [
            {
                "tests": cell.texts,
                "hits": cell.hits,
                "expected": (cell.rate or 0) * cell.texts,
                "low": cell.low * cell.texts,
                "high": cell.high * cell.texts,
            }
            for cell in p_values
        ],
        "unmarked texts",
    )
    reached = ("reached", f"p of {COARSE:g} and less")
    return _environment().get_template("error_rates.html.j2").render(
        title="Error rates of a watermark detector",
        about=about,
        cells=len(cells),
        rate=rate,
        least=LEAST_TEXTS,
        forged=FORGED_TOKENS,
        chart=chart,
        p_values=table(cells, "p-values", [("reached", "texts with so small a p-value")], "All unmarked texts"),
        unmarked=table(cells, "false positives", [("flagged", f"flagged at {rate}"), reached], "By part of the corpus"),
        marked=table(cells, "marked", _FOUND, "By length and kind"),
        edits=edits_table(cells, "edits", "After edits"),
        removers=edits_table(cells, "removers", "After steps of public removers"),
        rewriting=edits_table(cells, "rewriting", "After a model rewrote them"),
        imitation=table(cells, "imitation", _FOUND, "Forgeries"),
    )  # fmt: skip


def twin(about: Mapping[str, Any], cells: Sequence[ErrorCell]) -> str:
    """The page as JSON: how it was made, and all cells, those too that the page leaves out."""
    return json.dumps({**about, "cells": [asdict(cell) for cell in cells]}, indent=1, ensure_ascii=False) + "\n"


def _environment() -> jinja2.Environment:
    of_evidence = environment()
    loaders = [jinja2.PackageLoader("scanner.evaluation", "."), of_evidence.loader]
    return of_evidence.overlay(loader=jinja2.ChoiceLoader([one for one in loaders if one is not None]))

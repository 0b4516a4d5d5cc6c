"""How many flags there are, which every command counts alike, and the order in which they need a decision.

A canary's text that was found and named right is no flag to decide on: it is counted apart, everywhere.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import polars as pl

from scanner.results.flag_list import found_flags, of_canary
from scanner.results.queries import ask, standing_flags
from scanner.results.wanted_flags import WantedFlags
from schemas.registry import Canary
from schemas.words import AuditState, Naming, Proof

IN_NEED = (
    "flags whose account and user have the same name",
    "flags that name another user than their account",
    "flags that name nobody",
    "flags that cannot be used, since the audit alarmed, the message is reserved or a slow path found something else",
)
"""Groups of flags, those that need a decision most first."""

_TEXT = ("text_sha256", "key_id", "message")


class FlagCount(NamedTuple):
    """Flagged documents; canaries: beside these, documents of canaries that were found and named right."""

    flagged: int
    canaries: int

    def in_words(self) -> str:
        """The count; canaries are told apart."""
        apart = f", and {self.canaries:,} of canaries, found and named right" if self.canaries else ""
        return f"{self.flagged:,} flagged{apart}"


NO_FLAGS = FlagCount(0, 0)


def count_flags(results: str, rate: float, wanted: WantedFlags, canaries: Collection[Canary] | None = ()) -> FlagCount:
    """Count the flags that are asked for.

    Args:
        results: folder or URI.
        rate: a rate stricter than the scan's leaves out flags that it would not have made.
        wanted: which flags.
        canaries: as scanner.results.flag_list.of_canary.

    Raises:
        Refused: there are no results.
    """
    found = ask(results, lambda: _counted(found_flags(results, rate, wanted), canaries).collect())
    return FlagCount(*found.row(0))


def flags_at(results: str, rate: float, wanted: WantedFlags, places: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of VERDICTS with `audit` at some places, in their order; places: columns path and row. Raises: as above."""
    numbered = places.select("path", "row").with_row_index("number").lazy()
    among = pl.col("path").is_in(places["path"].unique().implode())
    found = found_flags(results, rate, wanted).filter(among).join(numbered, on=["path", "row"], how="inner")
    return ask(results, found.collect).sort("number").drop("number", "again").to_dicts()


def counts_of_scans(results: str, rate: float, canaries: Collection[Canary] | None = ()) -> dict[str, FlagCount]:
    """The flags that stand, by the scan that found them. Args, raises: as `count_flags`."""
    rows = ask(results, lambda: _counted(standing_flags(results, rate), canaries, "scan_id").collect())
    return {scan_id: FlagCount(*counts) for scan_id, *counts in rows.rows()}


def _counted(rows: pl.LazyFrame, canaries: Collection[Canary] | None, *by: str) -> pl.LazyFrame:
    own = of_canary(canaries).sum().cast(pl.Int64)
    counts = [(pl.len().cast(pl.Int64) - own).alias("flagged"), own.alias("canaries")]
    return rows.group_by(*by).agg(counts) if by else rows.select(counts)


def by_need(results: str, rate: float, wanted: WantedFlags, canaries: Collection[Canary] | None = ()) -> pl.DataFrame:
    """The flags that are asked for, those that need a decision most first.

    First come the groups IN_NEED, in their order; in a group, texts of which most copies are asked for, then those that
    were scanned last, then those that chance makes most seldom. Copies of one text stand together.

    Columns: path, row; need, the place in IN_NEED; copies, of the text, among the flags that are asked for. Args,
    raises: as `count_flags`.
    """
    entries = pl.concat_list(pl.col(name).fill_null([]) for name in ("named", "named_again"))
    account = pl.col("account_id")
    of_account = (account == pl.col("user_id")) | entries.list.eval(pl.element().struct.field("user_id")).list.contains(
        account
    )
    unusable = (
        (pl.col("audit") == AuditState.ALARM)
        | (pl.col("proof") == Proof.DIFFERS)
        | pl.col("naming").is_in([Naming.UNPROVED, Naming.RESERVED])
    )
    need = (
        pl.when(unusable.fill_null(value=False))
        .then(3)
        .when(pl.col("naming") != Naming.NAMED)
        .then(2)
        .when(of_account.fill_null(value=False))
        .then(0)
        .otherwise(1)
        .alias("need")
    )

    def question() -> pl.DataFrame:
        found = found_flags(results, rate, wanted).filter(~of_canary(canaries))
        return found.select("path", "row", *_TEXT, "scanned_at", "log10_p_global", need).collect()

    copies, last = pl.len().over(_TEXT).cast(pl.Int64), pl.col("scanned_at").max().over(_TEXT)
    first, surest = pl.col("need").min().over(_TEXT), pl.col("log10_p_global").min().over(_TEXT)
    order = ask(results, question).with_columns(copies=copies, last=last, first=first, surest=surest)
    down = {"copies", "last", "scanned_at"}
    names = ("first", "copies", "last", "surest", *_TEXT, "need", "scanned_at", "log10_p_global", "path", "row")
    ordered = order.sort(*names, descending=[name in down for name in names], nulls_last=True)
    return ordered.select("path", "row", "need", "copies")

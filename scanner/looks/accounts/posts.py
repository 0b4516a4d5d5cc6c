"""Keep posts of accounts until their window is over, and read them for a part of all accounts at a time."""

from collections.abc import Collection, Iterator
from datetime import date, timedelta
from functools import partial
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from scanner.results.current_rows import shards
from scanner.results.queries import ask, scans, verdicts
from scanner.results.transactions import has_table, read_whole
from scanner.results.upkeep import RewrittenFile, keep_rows, rewrite
from scanner.storage.data_files import SCHEMAS
from schemas.words import Proof

POSTS_OF_AN_ACCOUNT = 20_000
"""Largest number of posts of an account that are tested. Later ones are left out."""

MOST_TEXT_BYTES = 2**24
"""Largest number of bytes of an account's posts that are tested, as for one text. Later posts are left out."""

ROWS_A_PART = 50_000
"""Number of posts that a worker reads at a time, roughly."""

_ORDER = ("account", "account_id", "path", "row")
"""Order of posts, in which a tuple of tokens belongs to the first post that has it.

An interrupted scan keeps the order.
"""

_FIRST = ("path", "row", "night", "scan_id")
"""Order by which the first of several rows at one place of the input counts, for example after a file was replaced."""

_POST = [*_ORDER, "scan_id", "shard_id"]
_SPREAD = 2**64
_OF_TIME = 16  # characters of a scan's id that tell when it began; the others are random


class PostGroup(NamedTuple):
    """Posts that are tested together: the posts of some shards, and of the nights of a window.

    shards: ids.
    dates: first and last night, such as 2026-11-21. None: only these shards.
    parts: number of parts into which all accounts are divided, by their digest.
    """

    shards: tuple[str, ...]
    dates: tuple[str, str] | None
    parts: int


def window_begins(night: date, nights: int) -> date:
    """Return the first date of the window of a night. Windows of so many nights follow each other since year 1."""
    return night - timedelta(days=night.toordinal() % nights)


def part_of(results: str, together: PostGroup, part: int) -> pa.Table:
    """Return rows of ACCOUNT_POSTS of the accounts of a part, account by account and file by file.

    Each row of the input comes once. Texts are read only of the posts that are tested: one account may have millions.

    Raises:
        Refused: there is no such table.
    """
    width = _SPREAD // together.parts
    low = part * width - _SPREAD // 2
    high = low + width - 1 if part + 1 < together.parts else _SPREAD // 2 - 1
    group_shards = pl.LazyFrame({"shard_id": together.shards}, schema={"shard_id": pl.String}).with_columns(wanted=True)
    part_posts = read_whole(results, "account_posts").filter(pl.col("account").is_between(low, high))
    in_group = pl.col("wanted").fill_null(value=False)
    if together.dates is not None:
        first, last = map(pl.lit, together.dates)
        in_group |= pl.col("night").is_between(first, last)
    posts = part_posts.select(*_POST, "night", size=pl.col("text").bin.size()).join(
        group_shards, on="shard_id", how="left"
    )
    distinct = (
        posts.filter(in_group)
        .sort("account", "account_id", *_FIRST)
        .unique(["account_id", "path", "row"], keep="first", maintain_order=True)
    )
    few = (pl.int_range(pl.len()) < POSTS_OF_AN_ACCOUNT) & (pl.col("size").cum_sum() <= MOST_TEXT_BYTES)
    tested = distinct.filter(few.over("account_id")).select(_POST).collect(engine="streaming")
    rows = part_posts.join(tested.lazy(), on=_POST, how="semi").sort(_ORDER)
    return rows.collect(engine="streaming").to_arrow().cast(SCHEMAS["account_posts"])


def window_of(night: str, nights: int) -> tuple[str, str]:
    """Return the first and last date of the window of a night, as rows have them.

    Raises:
        ValueError, OverflowError: no window has this night.
    """
    first = window_begins(date.fromisoformat(night), nights) if nights > 1 else date.fromisoformat(night)
    return first.isoformat(), (first + timedelta(days=nights - 1)).isoformat()


def kept_posts(results: str, account_id: str, dates: tuple[str, str], scan_id: str) -> list[dict[str, Any]]:
    """Return rows of ACCOUNT_POSTS of an account in a window, file by file. Each row of the input comes once.

    Args:
        results: folder of the results.
        account_id: the account.
        dates: first and last night of the window.
        scan_id: the scan that tested the account. Posts of later scans are left out.

    Raises:
        ScanFailed: names were erased all the while, or the table cannot be read.
    """
    if not has_table(results, "account_posts"):
        return []
    in_window = (pl.col("account_id") == account_id) & pl.col("night").is_between(pl.lit(dates[0]), pl.lit(dates[1]))

    def question() -> pl.DataFrame:
        rows = read_whole(results, "account_posts").filter(in_window, _not_later_than(scan_id)).sort(_FIRST)
        return rows.unique(["path", "row"], keep="first", maintain_order=True).head(POSTS_OF_AN_ACCOUNT).collect()

    return ask(results, question).to_dicts()


def scanned_posts(results: str, account_id: str, dates: tuple[str, str], scan_id: str) -> pl.DataFrame:
    """Return verdicts on an account's documents in a window, with `filter_sha256` of their scans.

    The arguments are those of `kept_posts`. A document that a later scan only read again stays.

    Raises:
        ScanFailed: as `kept_posts`.
    """
    in_window = pl.col("night").is_between(pl.lit(dates[0]), pl.lit(dates[1]))
    same_account = pl.col("account_id") == account_id

    def question() -> pl.DataFrame:
        window_shards = shards(results).filter(in_window).select("shard_id").unique()
        filters = scans(results).select("scan_id", "filter_sha256")
        read_by_then = read_whole(results, "verdicts").filter(same_account, _not_later_than(scan_id))
        account_verdicts = (
            verdicts(results)
            .filter(same_account)
            .join(window_shards, on="shard_id", how="semi")
            .join(read_by_then, on=["path", "row"], how="semi")
        )
        return (
            account_verdicts.join(filters, on="scan_id", how="left")
            .sort("path", "row", "scan_id")
            .head(POSTS_OF_AN_ACCOUNT)
            .collect()
        )

    return ask(results, question)


def _not_later_than(scan_id: str) -> pl.Expr:
    """Whether a row is of a scan that began no later than this one."""
    return pl.col("scan_id").str.head(_OF_TIME) <= scan_id[:_OF_TIME]


def count_marked(results: str, units: Collection[str]) -> dict[str, int]:
    """Count accounts that have a row of ACCOUNTS, by the units of SCANS in which they were tested.

    Raises:
        ScanFailed: as `kept_posts`.
    """
    unit = pl.col("shard_id").str.split(":").list.first()

    def question() -> pl.DataFrame:
        rows = read_whole(results, "accounts").filter(unit.is_in(list(units))).group_by(unit=unit)
        return rows.agg(pl.col("account_id").n_unique().cast(pl.Int64)).collect()

    return dict.fromkeys(units, 0) | dict(ask(results, question).rows())


def count_refuted(results: str, parts: Collection[str]) -> int:
    """Count rows of ACCOUNTS from some parts whose proof differs.

    Raises:
        ScanFailed: as `kept_posts`.
    """
    if not has_table(results, "accounts"):
        return 0
    refuted = pl.col("shard_id").is_in(list(parts)) & (pl.col("proof") == Proof.DIFFERS)
    return int(ask(results, lambda: read_whole(results, "accounts").filter(refuted).select(pl.len()).collect()).item())


def some_accounts(rows: pa.Table, text_bytes: int) -> Iterator[pa.Table]:
    """Yield rows of `part_of`, cut between accounts as soon as their texts have so many bytes."""
    sizes = pl.DataFrame({"id": rows["account_id"], "size": pl.Series(rows["text"]).bin.size()})
    groups = sizes.with_row_index("end").group_by("id", maintain_order=True)
    begin, size = 0, 0
    for end, more in groups.agg(pl.col("end").last() + 1, pl.col("size").sum()).select("end", "size").iter_rows():
        size += more
        if size >= text_bytes or end == len(rows):
            yield rows.slice(begin, end - begin)
            begin, size = end, 0


def drop_posts(results: str, before: date) -> int:
    """Delete the posts whose night, and whose scan, was before this date. `vacuum` deletes the files.

    Returns:
        The number of deleted posts.

    Raises:
        ScanFailed: other processes kept committing first, or the table cannot be read or written.
    """
    if not has_table(results, "account_posts"):
        return 0
    return rewrite(results, "account_posts", partial(_younger, before))


def _younger(cutoff: date, file: pq.ParquetFile) -> RewrittenFile | None:
    rows = pl.DataFrame(file.read(["scan_id", "night"]))
    young = (pl.col("scan_id").str.head(8) >= f"{cutoff:%Y%m%d}") | (pl.col("night") >= cutoff.isoformat())
    return keep_rows("account_posts", file, rows.select(young.fill_null(value=False)).to_series())

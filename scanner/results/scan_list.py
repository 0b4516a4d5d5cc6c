"""List scans for people: the last ones and how they ended, totals, and documents in quarantine.

Also check whether a scan could write its tables into a folder of results, without making or changing anything.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import polars as pl
from deltalake.exceptions import DeltaError

from scanner.errors import Refused, in_a_line
from scanner.printable import counted
from scanner.registry.clock import refuse_clock_before
from scanner.results.canary_flags import of_canary
from scanner.results.current_rows import flags, newest_quarantine, ranges_ever, shards
from scanner.results.queries import ask, exist, scanned_and_one_of, scans
from scanner.results.transactions import has_table, refuse_other
from scanner.storage.data_files import TABLES
from scanner.storage.delta import load_table
from scanner.storage.locations import is_uri, table_uri
from scanner.watermark.formats import generator_of
from schemas.words import AuditState


class LastScans(NamedTuple):
    """The last scans, newest first.

    ended: rows of schemas.tables.SCANS, with a column `committed`, int64: number of shards that the scan finished
        itself.
    number: number of all scans that ended.
    silent: scans that finished shards, have no row, and were not continued by another scan. Columns: scan_id, began_at,
        last (time of the last finished shard), shards, documents.
    """

    ended: pl.DataFrame
    number: int
    silent: pl.DataFrame


TO_THE_END = (0, 3, 4, 5)
"""Exit codes of scans that ran to their end, with any findings."""


def resumed_by(scan: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Return whether a later scan finished and judged the work that this scan left undone.

    A scan that was killed before it read anything is in no audit: a later scan of its night did all of its work. The
    same is true of a later scan of the same part and configuration, which is judged with all parts. Nights without a
    date continue after midnight.

    Args:
        scan: a row of SCANS.
        later: another row of SCANS.
    """
    if later["started_at"] < scan["started_at"] or later["part"] != scan["part"]:
        return False
    if later["audit"] != AuditState.NOT_JUDGED and scan["scan_id"] in later["audited_scans"]:
        return True
    undated = all(row["night"] == row["started_at"].date().isoformat() for row in (later, scan))
    read = later["exit_code"] == 0 or later["documents"] or later["files_quarantined"] or later["shards_skipped"]
    came_to_its_end = later["exit_code"] in TO_THE_END and bool(read)
    did_the_night = came_to_its_end and (undated or later["night"] == scan["night"])
    if scan["part"] is not None:
        return did_the_night and bool(later["config_sha256"] == scan["config_sha256"])
    read_nothing = not scan["documents"] and not scan["files_quarantined"]
    return did_the_night and read_nothing and later["audit"] != AuditState.NOT_JUDGED


def last_scans(results: str, limit: int) -> LastScans:
    """Return the newest scans, `limit` at most, and all silent ones.

    Raises:
        Refused: there are no results.
        TableError: a table is not as it was signed.
        ScanFailed: names were erased at every attempt to read.
    """

    def question() -> LastScans:
        newest = scans(results).sort("started_at", "scan_id", descending=True).head(limit)
        judged = scans(results).select(scan_id="audited_scans").explode("scan_id")
        ids = pl.concat([scans(results).select("scan_id"), judged]).unique()
        shards_by_scan = shards(results).group_by("scan_id")
        shard_counts = shards_by_scan.agg(committed=pl.col("shard_id").n_unique().cast(pl.Int64))
        scan_totals = shards_by_scan.agg(
            began_at=pl.col("began_at").min(),
            last=pl.col("scanned_at").max(),
            shards=pl.len().cast(pl.Int64),
            documents=pl.col("documents").sum(),
        )
        ended, number, silent = pl.collect_all(
            [
                newest.join(shard_counts, on="scan_id", how="left", maintain_order="left").with_columns(
                    pl.col("committed").fill_null(0)
                ),
                scans(results).select(pl.len()),
                scan_totals.join(ids, on="scan_id", how="anti").sort("began_at", "scan_id", descending=True),
            ],
            engine="streaming",
        )
        return LastScans(ended, int(number.item()), silent)

    return ask(results, question)


def nights_to_scan_anew(results: str, marked_since: Mapping[str, date]) -> dict[str, list[str]]:
    """Return the nights that were scanned without a key that may have marked their texts.

    Args:
        results: folder or URI of results.
        marked_since: first date on which text may carry the mark of each key, by its id.

    Returns:
        Nights (dates such as 2026-11-20), oldest first, by key id. Keys without such nights are left out. So are nights
        with dropped rows, and nights that no scan finished.

    Raises:
        Refused: there are no results.
    """

    def question() -> tuple[pl.DataFrame, set[str]]:
        ended = scans(results).filter(pl.col("exit_code").is_in(TO_THE_END)).select("night", "keys").explode("keys")
        tested = ended.select("night", key_id=pl.col("keys").struct.field("key_id")).unique()
        nights_left = shards(results).filter(pl.col("dropped_at").is_null()).select("night").unique()
        pairs, nights = pl.collect_all([tested, nights_left], engine="streaming")
        return pairs, set(nights["night"])

    pairs, nights_left = ask(results, question)
    tested = set(pairs.iter_rows())
    nights = sorted({night for night, _ in tested} & nights_left)
    waiting = {
        key_id: [night for night in nights if night >= since.isoformat() and (night, key_id) not in tested]
        for key_id, since in marked_since.items()
    }
    return {key_id: nights for key_id, nights in waiting.items() if nights}


def recorded_scan(results: str, scan_id: str) -> dict[str, Any] | None:
    """Return a scan's row of SCANS. None: the scan did not end.

    Raises:
        Refused: there are no results.
    """
    rows = ask(results, lambda: scans(results).filter(pl.col("scan_id") == scan_id).collect()).to_dicts()
    return rows[0] if rows else None


def is_date(night: str | None) -> bool:
    """Return whether a night is a date in the form that scans write, such as 2026-11-21."""
    try:
        return night is not None and date.fromisoformat(night).isoformat() == night
    except ValueError:
        return False


def silent_scans(results: str, night: str, recorded: Collection[str]) -> list[dict[str, Any]]:
    """Return scans that finished shards of a night and recorded no end: they still run, or their process was killed.

    Args:
        results: folder or URI.
        night: date of the data.
        recorded: ids of the scans that recorded an end.

    Returns:
        Rows with these columns of SCANS: scan_id, night, started_at, finished_at (of the last shard), documents,
        quarantined, filtered and flagged. Nights that were dropped are left out.
    """
    counts = pl.col("documents", "quarantined", "filtered", "flagged").sum()
    times = pl.col("began_at").min().alias("started_at"), pl.col("scanned_at").max().alias("finished_at")
    row_filter = (pl.col("night") == night) & pl.col("dropped_at").is_null() & ~pl.col("scan_id").is_in(list(recorded))
    rows = ask(
        results,
        lambda: ranges_ever(results).filter(row_filter).group_by("scan_id", "night").agg(counts, *times).collect(),
    )
    return rows.sort("started_at", "scan_id").to_dicts()


def reasons_of_silent(
    silent: Iterable[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the reasons for a red and for an amber night: scans without an end that no other scan's audit covers.

    Args:
        silent: rows of `silent_scans`.
        known: all rows of SCANS.
    """
    nights, red, amber = {scan["scan_id"]: scan["night"] for scan in known}, [], []
    judged = {scan_id for scan in known if scan["audit"] != AuditState.NOT_JUDGED for scan_id in scan["audited_scans"]}
    for scan in silent:
        finished = f"scan {scan['scan_id']} finished {counted(scan['documents'], 'document')} of this night and "
        if scan["scan_id"] in nights:
            red.append(
                f"{finished}`scans` dates it {nights[scan['scan_id']]}: a `brickscan redate` was interrupted and must "
                "be run again, or somebody changed the table `scans`"
            )
        elif scan["scan_id"] not in judged:
            amber.append(
                f"{finished}did not record an end: it is still running, or its process was killed and the scan was "
                "never continued"
            )
    return red, amber


class WholeInput(NamedTuple):
    """Numbers of documents that were read, by result, and of files at fault.

    documents: all documents that were read.
    quarantined: documents that could not be scored.
    too_short: documents that were too short when scored by themselves.
    scored_in_part: documents with only a part of their text scored.
    flagged: flagged documents, without canaries' texts that were named correctly.
    filtered: documents with too few n-grams left by the filter.
    canaries: flagged texts of canaries that were named correctly. They are not in `flagged`.
    files_at_fault: files that could not be read as a whole. Their documents are in none of the counts above.
    """

    documents: int = 0
    quarantined: int = 0
    too_short: int = 0
    scored_in_part: int = 0
    flagged: int = 0
    filtered: int = 0
    canaries: int = 0
    files_at_fault: int = 0

    @classmethod
    def of(cls, counts: object) -> "WholeInput":
        """Build a whole input from counts with the same names, without files at fault."""
        return cls(**{name: getattr(counts, name) for name in SUMMED})


NOTHING_READ = WholeInput()

SUMMED = tuple(name for name in WholeInput._fields if name != "files_at_fault")
"""Counts that are sums over shards."""


def whole_input(results: str, shard_ids: Iterable[str], earlier: Iterable[str] = ()) -> WholeInput:
    """Add up the totals of finished shards, including those of nights that were dropped. Files at fault are left out.

    Args:
        results: folder or URI.
        shard_ids: ids of the finished shards.
        earlier: ids of shards of the same rows under other keys. Documents may be flagged by them too.

    Raises:
        Refused: there are no results, or no scan of this version has begun.
        ScanFailed: names were erased at every attempt to read.
    """
    shard_filter = pl.col("shard_id").is_in(list(shard_ids))
    sums = pl.col(*SUMMED).sum()
    # a shard may also have a row of another driver, until one of the two settles
    totals = ask(results, lambda: ranges_ever(results).filter(shard_filter).unique("shard_id").select(sums).collect())
    counts = WholeInput(*totals.row(0))
    earlier_ids = [*earlier]
    if not earlier_ids:
        return counts
    flag_filter, document = shard_filter | pl.col("shard_id").is_in(earlier_ids), ("path", "row")
    canary_documents = ask(
        results, lambda: flags(results).filter(flag_filter).group_by(document).agg(of_canary().all()).collect()
    )["canary"]
    return counts._replace(flagged=int((~canary_documents).sum()), canaries=int(canary_documents.sum()))


Ready = Literal["new", "there"]
"""States of a folder. `new`: some table does not exist yet. `there`: all exist."""


def readiness(results: str) -> Ready:
    """Return the state of a folder of results that a scan could use.

    For a URI, this does not check whether it can be written: only writing shows that.

    Raises:
        TableError: a table was signed and is missing.
        Refused: a table cannot be read or is of another version, or the folder cannot be written.
    """
    if not is_uri(results):
        _refuse_unwritable(Path(results))
    states = {_state(results, name) for name in TABLES}
    return "new" if "new" in states else "there"


def refuse_early_clock(results: str) -> None:
    """Refuse to scan if the clock is before rows on record. Otherwise these rows would hide the scan's findings.

    Raises:
        Refused: this machine's clock, or that of an earlier scan, is wrong.
    """
    if exist(results):
        newest = ask(results, lambda: ranges_ever(results).select(pl.col("scanned_at").max()).collect()).item()
        if newest is not None:
            refuse_clock_before(newest, results)


def _state(results: str, name: str) -> Ready:
    uri = table_uri(results, name)
    try:
        if not has_table(results, name):
            return "new"
        table = load_table(uri)
    except (DeltaError, OSError, ValueError) as error:
        raise Refused(
            f"results: table {uri} cannot be opened: {in_a_line(error)}; give a folder that can be written"
        ) from None
    refuse_other(table, name)
    return "there"


def _refuse_unwritable(folder: Path) -> None:
    """Refuse a folder in which nothing can be made.

    If it does not exist, check the nearest existing folder above it.
    """
    nearest = next(above for above in (folder, *folder.parents) if above.exists())
    if not nearest.is_dir():
        raise Refused(f"results: {nearest} is not a folder; name another folder in `results`")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Refused(
            f"results: cannot write into {nearest}; change its permissions, or name another folder in `results`"
        )


EXAMPLES_TOLD = 3


class Reason(NamedTuple):
    """A reason of schemas.words and its counts.

    reason: the reason.
    documents: number of documents in quarantine for this reason.
    files: number of whole files in quarantine for this reason.
    """

    reason: str
    documents: int
    files: int


def reasons(quarantine: pl.LazyFrame) -> tuple[Reason, ...]:
    """Count rows of schemas.tables.QUARANTINE by reason, most frequent first."""
    rows = (
        quarantine.group_by("reason")
        .agg(documents=pl.col("row").count(), files=pl.col("row").null_count())
        .sort(pl.col("documents") + pl.col("files"), "reason", descending=[True, False])
    )
    return tuple(Reason(*row) for row in rows.collect().iter_rows())


def in_words(reasons: Iterable[Reason]) -> str:
    """Return the first reasons with counts, such as `null_text 3 documents, not_parquet 1 file, …`."""
    counts = [
        f"{reason} {counted(number, noun)}"
        for reason, documents, files in reasons
        for number, noun in ((documents, "document"), (files, "file"))
        if number
    ]
    return ", ".join([*counts[:EXAMPLES_TOLD], *(["…"] if len(counts) > EXAMPLES_TOLD else [])])


By = Literal["reason", "account", "document"]

_GROUPS: Mapping[By, tuple[str, ...]] = {"reason": ("reason",), "account": ("account_id",)}


class QuarantineFilter(NamedTuple):
    """A filter for rows of quarantine. An empty field filters nothing.

    since: only rows from this time on. None: of any time.
    before: only rows before this time. None: of any time.
    reasons: reasons of schemas.words.
    accounts: ids of accounts.
    scans: ids of the scans that made the rows.
    """

    since: datetime | None = None
    before: datetime | None = None
    reasons: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    scans: tuple[str, ...] = ()

    def expression(self) -> pl.Expr:
        """Return the filter, on columns of schemas.tables.QUARANTINE."""
        columns = {"reason": self.reasons, "account_id": self.accounts, "scan_id": self.scans}
        return scanned_and_one_of(self.since, self.before, columns)


class QuarantineList(NamedTuple):
    """The rows to show, and totals of everything that matches.

    rows: see `in_quarantine`.
    entries: number of rows without the limit.
    documents: number of documents in quarantine.
    files: number of whole files in quarantine.
    """

    rows: pl.DataFrame
    entries: int
    documents: int
    files: int


def in_quarantine(results: str, wanted: QuarantineFilter, limit: int | None, by: By) -> QuarantineList:
    """Return documents and files in quarantine that no later scan resolved.

    They are added up by reason or account, the most frequent first. By document, they are listed, the newest first.

    Returns:
        Rows and totals. Columns by reason or account:
        reason (by reason), or account_id (by account; of documents with a known or a null account);
        documents, files, accounts, reasons and texts, int64. The last three are distinct counts without null;
        first and last, times of the scans.
        Columns by document: as in schemas.tables.QUARANTINE.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased at every attempt to read.
    """

    def question() -> QuarantineList:
        newest = newest_quarantine(results, wanted.expression())
        counts = newest.select(documents=pl.col("row").count(), files=pl.col("row").null_count())
        listing = _newest_first(newest, limit) if by == "document" else _summed(newest, _GROUPS[by])
        rows, totals = pl.collect_all([listing, counts])
        documents, files = totals.row(0)
        entries = documents + files if by == "document" else len(rows)
        return QuarantineList(rows.head(entries if limit is None else limit), entries, documents, files)

    return ask(results, question)


def _newest_first(newest: pl.LazyFrame, limit: int | None) -> pl.LazyFrame:
    by_age = newest.sort("scanned_at", "path", "row", descending=[True, False, False])
    return by_age if limit is None else by_age.head(limit)


def _summed(newest: pl.LazyFrame, group: tuple[str, ...]) -> pl.LazyFrame:
    distinct = {"accounts": "account_id", "reasons": "reason", "texts": "text_sha256"}
    return (
        newest.group_by(group)
        .agg(
            documents=pl.col("row").count().cast(pl.Int64),
            files=pl.col("row").null_count().cast(pl.Int64),
            **{name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()},
            first=pl.col("scanned_at").min(),
            last=pl.col("scanned_at").max(),
        )
        .sort(pl.col("documents") + pl.col("files"), *group, descending=[True, *(False for _ in group)])
    )


def with_generator(results: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Add a column `generator`, string, to rows of flags. Null: it does not matter, or the scan has not ended.

    Args:
        results: folder or URI.
        rows: with `scan_id` and `key_id`.

    Raises:
        Refused: there are no results.
    """
    scan_filter = pl.col("scan_id").is_in(rows["scan_id"].unique().to_list())
    keys = ask(results, lambda: scans(results).filter(scan_filter).select("scan_id", "keys").collect())
    generators = {
        (scan_id, key["key_id"]): generator_of(key["method"])
        for scan_id, scan_keys in keys.iter_rows()
        for key in scan_keys
    }
    values = [generators.get(scan_and_key) for scan_and_key in rows.select("scan_id", "key_id").iter_rows()]
    return rows.with_columns(pl.Series("generator", values, pl.String))

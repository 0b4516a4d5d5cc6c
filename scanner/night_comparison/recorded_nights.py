"""Counts of nights from the tables `scans`, `shards` and `text_counts`.

A document counts once a night, however often it was scanned: of a file that was written again, only the newest rows do,
and of rows that were scanned again, the newest scan. Its flags count under every key that it was scanned under.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime

import polars as pl

from scanner.night_comparison.account_sketches import estimate_accounts
from scanner.night_comparison.figures import NightCounts, TextCounts
from scanner.results.current_rows import ranges_ever
from scanner.results.queries import ask, scans
from scanner.results.scan_list import TO_THE_END, is_date
from scanner.results.transactions import has_table, read_whole
from schemas.words import OF_PASS

COUNTED_SHARE = 0.9
"""Least share of the documents of a night that workers must have counted, for figures of its texts."""


def finished_nights(results: str, ending: Mapping[date, Collection[str]]) -> dict[date, frozenset[str]]:
    """Return the nights that a scan of all of their input came to the end of, in order, with the keys tested.

    A night of today may still grow where nights are scanned as their files land, which scans of earlier nights show:
    such a night is left out until tomorrow. Raises as `ask`.
    """
    ended = pl.col("exit_code").is_in(TO_THE_END) & pl.col("part").is_null()
    columns = ("night", pl.col("keys").list.eval(pl.element().struct.field("key_id")), pl.col("documents") > 0)
    rows = ask(results, lambda: scans(results).filter(ended).select(columns).collect())
    keys: dict[date, frozenset[str]] = {}
    scans_with_documents: dict[date, int] = {}
    for night, key_ids, read in rows.iter_rows():
        if is_date(night):
            day = date.fromisoformat(night)
            keys[day] = keys.get(day, frozenset()) | frozenset(key_ids)
            scans_with_documents[day] = scans_with_documents.get(day, 0) + read
    today = datetime.now(UTC).date()
    over = [number for day, number in scans_with_documents.items() if day < today]
    lands_piecemeal = 2 * sum(number > 1 for number in over) > len(over)
    finished = {day: key_ids for day, key_ids in keys.items() if day < today or not lands_piecemeal}
    finished |= {day: keys.get(day, frozenset()) | frozenset(key_ids) for day, key_ids in ending.items()}
    return dict(sorted(finished.items()))


def read_counts(results: str, nights: Mapping[date, frozenset[str]]) -> list[NightCounts]:
    """Count nights, in their order. Raises as `ask`.

    nights: with the keys that were tested.
    """
    days = [night.isoformat() for night in nights]
    of_night = pl.col("night").is_in(days) & ~pl.col("keys").str.ends_with(OF_PASS)
    columns = ("night", "scan_id", "shard_id", "path", "first_row", "keys", "file", "scanned_at", *_SUMS)

    def question() -> tuple[pl.DataFrame, pl.DataFrame]:
        ranges = ranges_ever(results).filter(of_night).select(columns).collect()
        if not has_table(results, "text_counts") or ranges.is_empty():
            return ranges, pl.DataFrame()
        counted = pl.col("scan_id").is_in(ranges["scan_id"].unique().implode())
        return ranges, read_whole(results, "text_counts").filter(counted).collect()

    ranges, counts = ask(results, question)
    newest = ranges.sort("scanned_at", "scan_id").filter(
        (pl.col("file") == pl.col("file").last().over("night", "path")).fill_null(value=True)
    )
    by_keys = newest.unique(["night", "path", "first_row", "keys"], keep="last", maintain_order=True)
    once = by_keys.unique(["night", "path", "first_row"], keep="last", maintain_order=True)
    sums = {row["night"]: row for row in once.group_by("night").agg(pl.col(_SUMS).sum()).to_dicts()}
    texts = {} if counts.is_empty() else _text_counts(counts, once, by_keys)
    of_days = zip(days, nights.items(), strict=True)
    return [_night_counts(night, key_ids, sums.get(day), texts.get(day)) for day, (night, key_ids) in of_days]


_SUMS = ("documents", "quarantined", "too_short", "tokens")
_COUNTED = ("missing", "blank", "hidden", "garbled", "without_account")
_RUN = ["shard_id", "scan_id"]


def _night_counts(
    night: date, key_ids: frozenset[str], sums: Mapping[str, int] | None, texts: tuple[int, TextCounts] | None
) -> NightCounts:
    """Return the counts of a night; one without rows read nothing.

    texts: how many documents were counted, and their counts.
    """
    documents, quarantined, too_short, tokens = (sums[name] if sums else 0 for name in _SUMS)
    known = texts[1] if texts is not None and texts[0] >= COUNTED_SHARE * documents else None
    return NightCounts(night, documents, quarantined, too_short, tokens, key_ids, known)


def _text_counts(counts: pl.DataFrame, once: pl.DataFrame, by_keys: pl.DataFrame) -> dict[str, tuple[int, TextCounts]]:
    """Add up rows of TEXT_COUNTS by night: how many documents were counted, and their counts.

    Args:
        counts: the rows.
        once: ranges of rows, each once a night.
        by_keys: ranges of rows, each once a night and set of keys.
    """
    rows = counts.join(once.select("night", *_RUN), on=_RUN)
    flags = counts.select(*_RUN, "flags").join(by_keys.select("night", *_RUN), on=_RUN)
    sums = rows.group_by("night").agg(pl.col("documents", *_COUNTED).sum(), "accounts")
    scripts = _sums_by(rows, "scripts", "script", "texts")
    flags_by_key = _sums_by(flags, "flags", "key_id", "documents")
    return {
        row["night"]: (
            row["documents"],
            TextCounts(
                **{name: row[name] for name in _COUNTED},
                accounts=estimate_accounts(row["accounts"]),
                scripts=scripts.get(row["night"], {}),
                flags=flags_by_key.get(row["night"], {}),
            ),
        )
        for row in sums.iter_rows(named=True)
    }


def _sums_by(rows: pl.DataFrame, column: str, name: str, number: str) -> dict[str, dict[str, int]]:
    """Add up a column of lists of names and numbers, by night and name."""
    entries = rows.select("night", column).explode(column, empty_as_null=False).unnest(column)
    sums: dict[str, dict[str, int]] = {}
    for night, value, total in entries.group_by("night", name).agg(pl.col(number).sum()).iter_rows():
        sums.setdefault(night, {})[value] = total
    return sums


def nights_needed(finished: Sequence[date], asked: Collection[date], earlier: int) -> list[date]:
    """Return the nights that are read to judge some of them: these, and so many before the first."""
    places = [place for place, night in enumerate(finished) if night in asked]
    return [*finished[max(places[0] - earlier, 0) : places[-1] + 1]] if places else []

"""Results never depend on how often a scan was interrupted: a disk that fills up again and again changes no row."""

import contextlib
import errno
import itertools
import math
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from scanner.cluster import commits
from scanner.errors import ScanFailed
from scanner.signing import signature_of
from scanner.storage.locations import table_uri
from tests.support.night import Night
from tests.support.signed_tables import signed_at
from tests.support.two_keys import message_of

FILES, ROWS, ACCOUNTS = 6, 10, 5
OF_A_RUN = {
    *("scan_id", "scanned_at", "began_at", "verified_at", "audit_id", "at", "config_sha256"),
    "first_seen_at",  # a document is known to exist since the first run that met its file
}
"""Columns that tell which run wrote a row, and when."""

LOOKS = """\
variants = { normalised = true }
spans = { windows = true, segments = true }
evidence = { keep_text = true }
accounts = { nights = 1 }
"""
AUDIT = "share = 1.0\nall_messages_share = 1.0\ndecisions_share = 0.5"


@pytest.fixture
def night(tmp_path, registry, marked, plain, without_ray, monkeypatch) -> Night:
    """Posts of few accounts, who say the same things again, in some order: a tuple of tokens belongs to one post."""
    for name, value in (
        ("SHARDS_A_COMMIT", 1),
        ("SECONDS_BETWEEN_COMMITS", 0.0),
        ("LEAST_SECONDS_BETWEEN_COMMITS", 0.0),
    ):
        monkeypatch.setattr(commits, name, value)
    night = Night(tmp_path, registry)
    night.configure(more=LOOKS, columns='account = "account"\ntime = "posted"', audit=AUDIT)
    holder, draw = message_of(registry, "green", "alice"), random.Random(7)
    phrases = [plain(25, seed) for seed in range(12)] + [marked(holder, 25, seed) for seed in range(6)]
    posted = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(FILES):
        texts = ["".join(draw.sample(phrases, 3)) for _ in range(ROWS - 2)]
        accounts = [f"account-{draw.randrange(ACCOUNTS)}" for _ in range(ROWS)]
        night.write(
            f"file-{number}", [*texts, marked(holder, 60, number), b"caf\xe9"], account=accounts, posted=[posted] * ROWS
        )
    return night


def rows_of(results: str, table: str, choice: pl.Expr | bool = True) -> list[tuple[Any, ...]]:
    """Rows of a table, in no order, without what tells of a run."""
    rows = pl.from_arrow(DeltaTable(table_uri(results, table)).to_pyarrow_table())
    return rows.filter(choice).select(name for name in rows.columns if name not in OF_A_RUN).rows()


def is_same(value: Any, other: Any) -> bool:
    """Compare two values: reals to 12 digits, and small ones, such as p-values, to 12 digits of their logarithm.

    Into which pieces a shard is cut, and so in which order its sums are added up, depends on how fast the machine was.
    """
    if isinstance(value, float) and isinstance(other, float) and value > 0:
        return math.isclose(value, other, rel_tol=1e-12 * max(1, -math.log(value)))
    return repr(value) == repr(other)


def rows_without_partner(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows of both tables that are not in the other one as often."""
    alone, left = list[tuple[Any, ...]](), list(others)
    for row in rows:
        partner = next((number for number, other in enumerate(left) if all(map(is_same, row, other))), None)
        if partner is None:
            alone.append(row)
        else:
            del left[partner]
    return alone + left


def fill_the_disk(monkeypatch, after: int) -> None:
    """Let this many commits be written, and no more."""
    real, commits_left = DeltaTable.create_write_transaction, itertools.count(after, -1)

    def write(*arguments, **named):
        if next(commits_left) <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write)


def tables_of(results: str) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of all tables but `scans`, which has one for each run that ended."""
    tables = {path.parent.name for path in Path(results).glob("[!.]*/_delta_log")} - {"scans"}
    ended = pl.read_delta(table_uri(results, "scans"))["scan_id"].to_list()
    rows = {table: rows_of(results, table) for table in tables - {"audits"}}
    rows["audits"] = rows_of(results, "audits", pl.col("audit_id").is_in(ended))  # a run that was killed may have some
    # every run that ends puts the chain's head on record, which is the same
    return rows | {"verified_users": list({repr(row): row for row in rows["verified_users"]}.values())}


def assert_numbers_are_kept(results: str, registry: str) -> None:
    """The registry has the number of each table's last signature: what is put back to an earlier one is seen."""
    for entry in signed_at(registry, results):
        signature = signature_of(DeltaTable(table_uri(results, entry.table)))
        assert (entry.table, entry.number) == (entry.table, signature.number)


@pytest.mark.costly
def test_the_registry_has_the_numbers_of_all_other_tables_before_verdicts_are_committed(night, monkeypatch):
    """A flag that is taken back after the driver was killed is missed then, since its shard counts as done."""
    real, looked_at = commits.commit, list[int]()

    def commit(results, name, *others):
        if name == "verdicts":
            entries = signed_at(night.registry, night.results)
            for entry in entries:
                assert entry.number == signature_of(DeltaTable(table_uri(night.results, entry.table))).number
            looked_at.append(len(entries))
        return real(results, name, *others)

    monkeypatch.setattr(commits, "commit", commit)
    night.scan()
    assert len(looked_at) > 0
    assert min(looked_at) > 5


@pytest.mark.costly
@pytest.mark.parametrize("after", [9, pytest.param(11, marks=pytest.mark.long)])
def test_every_table_after_interruptions(night, monkeypatch, after):
    """Each run writes some commits, and is then refused the disk, wherever that hits it."""
    night.scan()
    undisturbed = tables_of(night.results)
    assert {"accounts", "account_posts", "audits", "flags", "spans"} <= undisturbed.keys()
    night.config.write_text(night.config.read_text().replace('results = "results"', 'results = "disturbed"'))
    interrupted, ended = 0, False
    while not ended:
        with monkeypatch.context() as patch, contextlib.suppress(ScanFailed):
            fill_the_disk(patch, after)
            night.scan()
            ended = True
        interrupted += not ended
        assert_numbers_are_kept(str(night.folder / "disturbed"), str(night.registry))
    assert interrupted >= 4
    disturbed = tables_of(str(night.folder / "disturbed"))
    assert disturbed.keys() == undisturbed.keys()
    for table, rows in undisturbed.items():
        assert (table, rows_without_partner(rows, disturbed[table])) == (table, [])

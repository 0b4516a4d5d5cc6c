"""The cost of signed tables: `python -m tests.bench.signatures`.

Rows of `verdicts` and `flags` as scans write them; CPU seconds of one process, by the side of the same work unsigned.
Then what a night of 50 million documents pays: its files' digests, and a check of all that evidence reads.
"""

import argparse
import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from scanner.registry import set_audit_secret
from scanner.registry.keys_file import write_registry
from scanner.results.transactions import TableEntry, Tables, commit, open_tables, read_whole
from scanner.signing import keep_signatures, sign_with, signer_of
from scanner.signing.signer import Signer
from scanner.storage.data_files import SCHEMAS, write_file
from scanner.storage.delta import logged_transactions, read
from scanner.storage.locations import table_uri
from schemas.registry import Registry
from schemas.versions import VERSION
from tests.support.rows import verdict

NIGHT = 50e6

Result = TypeVar("Result")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.signatures", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="of a file of verdicts")
    parser.add_argument("--files", type=int, default=2_000, help="of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        registry, results = Path(folder) / "registry", f"{folder}/results"
        registry.mkdir()
        write_registry(registry, Registry(version=VERSION))
        set_audit_secret(registry)
        sign_with(results, str(registry))
        open_tables(results)
        of_bytes(results, options.rows)
        of_reading(results, options.rows)
        of_files(results, options.files)


def of_bytes(results: str, rows: int) -> None:
    """Print the share of the digest in the writing of a file, and what a night's bytes take."""
    batch = pa.RecordBatch.from_pylist([posted(row) for row in range(rows)], SCHEMAS["verdicts"])
    writing, file = timed(lambda: write_file(results, "verdicts", [batch]))
    assert file is not None
    data = Path(table_uri(results, "verdicts"), file.name).read_bytes()
    hashing, _ = timed(lambda: hashlib.sha256(data).hexdigest())
    night = NIGHT / rows
    print(f"verdicts: {file.size / rows:.0f} bytes a row; {file.size * night / 1e9:.1f} GB a night")
    print(f"digest of a file: {hashing / writing:.4f} of writing it; {hashing * night:.1f} CPU s a night")


def of_reading(results: str, rows: int) -> None:
    """Print what a reader of `flags` pays for the check."""
    flagged = [posted(row) | {"flagged": True, "user_id": f"user-{row}", "keys": "k"} for row in range(rows)]
    batch = pa.RecordBatch.from_pylist(flagged, SCHEMAS["flags"])
    file = write_file(results, "flags", [batch])
    commit(results, "flags", [TableEntry("t", (file,) if file else ())])
    keep_signatures(results)
    table = DeltaTable(table_uri(results, "flags"))
    plain, _ = timed(lambda: some(read(table)))
    checked, _ = timed(lambda: some(read_whole(results, "flags")))
    print(f"flags of {rows:,} rows: plain {plain:.3f}, checked {checked:.3f} CPU s; ratio {checked / plain:.2f}")


def some(rows: pl.LazyFrame) -> pl.DataFrame:
    return rows.filter(pl.col("log10_p_global") < -8.99).select("path", "row", "user_id", "log10_p_global").collect()


def of_files(results: str, files: int) -> None:
    """Print what a table of so many files, and as many transactions, costs to check, and a commit to it."""
    batch = pa.RecordBatch.from_pylist([posted(0)], SCHEMAS["verdicts"])
    made = [write_file(results, "verdicts", [batch]) for _ in range(files)]
    commit(results, "verdicts", [TableEntry(f"t{number}", (file,)) for number, file in enumerate(made) if file])
    keep_signatures(results)

    def opened() -> tuple[Signer, DeltaTable]:
        sign_with(results, "")  # so that nothing is remembered
        sign_with(results, f"{Path(results).parent}/registry")
        signer = signer_of(results)
        assert signer is not None
        return signer, DeltaTable(table_uri(results, "verdicts"))

    def check(signer: Signer, table: DeltaTable) -> bool:
        transactions = signer.sum_transactions(table, "verdicts", logged_transactions(table))
        return signer.is_signed(table, "verdicts", transactions)

    opening, (signer, table) = timed(opened)
    reading, _ = timed(lambda: signer.is_signed(table, "verdicts"))
    checking, _ = timed(lambda: check(*opened()))
    signing, _ = timed(lambda: signer.sign(table, "verdicts", [], [], {}))
    tables, numbers = Tables(results), iter(range(files, 2 * files))
    tables.now("verdicts")

    following, _ = timed(lambda: commit(tables, "verdicts", [TableEntry(f"t{next(numbers)}", ())]))
    about = f"opened in {opening:.4f}, checked for a reader in {reading:.4f}, with transactions in {checking:.4f}"
    print(f"a table of {files:,} files and transactions, CPU s: {about}, signed in {signing:.5f}")
    print(f"a commit to it by a driver that has it open, with its check: {following:.4f}")


def posted(row: int) -> dict[str, object]:
    digest = secrets.token_bytes(32)
    about = {"account_id": f"account-{row % 9973}", "doc_id": f"post-{row:09}", "log10_p_global": -9.0 - row % 3}
    return verdict(
        row, f"/platform/posts/part-{row // 20_000:05}.parquet", text_id=digest[:16], text_sha256=digest, **about
    )


def timed(work: Callable[[], Result], times: int = 5) -> tuple[float, Result]:
    """Least CPU seconds of a few runs, and the last result."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return min(seconds), result


if __name__ == "__main__":
    main()

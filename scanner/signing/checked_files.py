"""Read rows of files and check each file's content against its name, in the same bytes that are decoded."""

import io
from collections.abc import Iterator, Sequence

import polars as pl
from polars.io.plugins import register_io_source

from scanner.errors import ScanFailed, TableError, in_a_line
from scanner.storage.data_files import SCHEMAS, read_file, sha256_in
from scanner.storage.locations import table_uri


def checked_rows(results: str, name: str, file_names: Sequence[str]) -> pl.LazyFrame:
    """Return the rows of a table's files. Each file is checked against its name in the same bytes that are decoded.

    Checking one read and decoding another would let somebody replace the file in between.

    Args:
        results: folder or URI.
        name: of the table.
        file_names: files to read, from the log of a signed table.

    Returns:
        A lazy frame that raises when it is collected. TableError: the content of a file was changed. ScanFailed: a file
        cannot be read.
    """
    schema = pl.Schema(SCHEMAS[name])

    def read_files(
        columns: list[str] | None, predicate: pl.Expr | None, max_rows: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        left = max_rows  # polars wants the first rows of the source, and filters them afterwards
        yield pl.DataFrame(schema=schema).select(columns or schema.names())  # so that a table without files has columns
        for file_name in file_names:
            if left == 0:
                return
            location = f"{table_uri(results, name)}/{file_name}"
            if sha256_in(file_name) is None:
                raise TableError(f"results: {location}: brickscan did not write this file")
            try:
                content = read_file(results, name, file_name)
            except OSError as error:
                raise ScanFailed(
                    f"results: {location} cannot be read: {in_a_line(error)}; restore it from a copy"
                ) from None
            rows = pl.read_parquet(
                io.BytesIO(content), columns=columns, schema=schema, missing_columns="insert", use_statistics=False
            )
            rows = rows if left is None else rows.head(left)
            left = None if left is None else left - len(rows)
            yield rows if predicate is None else rows.filter(predicate)

    return register_io_source(read_files, schema=schema)

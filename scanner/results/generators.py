"""The generator whose random numbers made a flag's mark, for stacks that draw others on another device."""

import polars as pl

from scanner.results.queries import ask, scans
from scanner.watermark.formats import generator_of


def with_generator(results: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of flags with a column `generator`, string: null where it does not matter, or the scan has not ended.

    Args:
        results: folder or URI.
        rows: rows with `scan_id` and `key_id`.

    Raises:
        Refused: there are no results.
    """
    of_rows = pl.col("scan_id").is_in(rows["scan_id"].unique().to_list())
    keys = ask(results, lambda: scans(results).filter(of_rows).select("scan_id", "keys").collect())
    made = {
        (scan_id, key["key_id"]): generator_of(key["method"])
        for scan_id, several in keys.iter_rows()
        for key in several
    }
    found = [made.get(of_row) for of_row in rows.select("scan_id", "key_id").iter_rows()]
    return rows.with_columns(pl.Series("generator", found, pl.String))

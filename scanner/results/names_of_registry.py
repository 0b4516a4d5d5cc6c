"""Names of flags are shown only where the registry had the users by which the row's scan named.

Two copies of a registry have one audit secret, so that both sign the same results, and they may give one message to two
users. Each scan writes down the head of its users' hash chain: rows of a scan whose head this registry never had name
nobody here.
"""

import polars as pl

from scanner.registry import numbers_of_heads
from scanner.results.transactions import read_whole
from scanner.signing import registry_of
from scanner.storage.data_files import SCHEMAS
from schemas.tables import NAMED_LISTS
from schemas.words import OF_REGISTRY, Naming


def without_foreign_names(results: str, name: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows of which those name nobody whose scan had other users than the registry of this process.

    Args:
        results: folder or URI. Where this process cannot check them, rows are returned as they are.
        name: of the table that has the columns of the rows.
        rows: rows with these columns.

    Raises:
        Refused: there are no results.
    """
    registry = registry_of(results)
    if registry is None:
        return rows
    scans = read_whole(results, "scans").select("scan_id", "users_head").drop_nulls().collect()
    heads = numbers_of_heads(registry, scans["users_head"].unique().to_list())
    foreign = scans.filter(~pl.col("users_head").is_in(list(heads)))["scan_id"]
    if foreign.is_empty():
        return rows
    is_foreign = pl.col("scan_id").is_in(foreign.implode())
    names = [column for column in ("user_id", "held_since", *NAMED_LISTS) if column in SCHEMAS[name].names]
    other = pl.lit(Naming.OTHER_REGISTRY, pl.String)
    return rows.with_columns(
        *(pl.when(~is_foreign).then(column).alias(column) for column in names),
        naming=pl.when(is_foreign & pl.col("naming").is_in(list(OF_REGISTRY))).then(other).otherwise("naming"),
    )

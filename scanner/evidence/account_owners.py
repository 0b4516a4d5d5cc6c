"""Read which users own an account, from the platform's own record: a table that the operator names.

An account with the same name as a user proves nothing, because anybody can take a name. Pages recommend `confirmed`
only by this record.
"""

import io
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from scanner.errors import Refused
from scanner.storage.locations import MOST_LIST, read_named

COLUMNS = ("account_id", "user_id")

Owners = Mapping[str, frozenset[str]]
"""Users of each account on record."""


def read_owners(path: Path) -> Owners:
    """Read the record: a .csv or .parquet file with the columns account_id and user_id, a line for each pair.

    Raises:
        Refused: the file cannot be read, or lacks a column.
    """
    where = f"evidence.account_owners {path}"
    try:
        data = read_named(path, MOST_LIST)
        frame = (
            pl.read_parquet(io.BytesIO(data)) if path.suffix == ".parquet" else pl.read_csv(data, infer_schema=False)
        )
    except OSError as error:
        raise Refused(f"{where}: cannot be read ({error.strerror}); name a .csv or .parquet file") from None
    except pl.exceptions.PolarsError as error:
        raise Refused(f"{where}: is not a .csv or .parquet file ({str(error).splitlines()[0]})") from None
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise Refused(f"{where}: has no column {missing[0]!r}; it has {', '.join(map(repr, frame.columns[:20]))}")
    pairs = frame.select(pl.col(name).cast(pl.String) for name in COLUMNS).drop_nulls()
    users_of = pairs.group_by("account_id").agg("user_id")
    return {account: frozenset(users) for account, users in users_of.iter_rows()}

"""Scan what is new, and ask polars whose marked texts were found.

    python docs/examples/scan_and_query.py demo/scan.toml

The configuration is any that `brickscan init` or `make demo` made. docs/guides/results.md has more questions.
"""

import sys
from pathlib import Path

import brickscan
import polars as pl

JUDGED = (0, 3, 5)
"""Exit codes of scans that came to their end: 3 means act on no flag, 5 that canaries were lost."""


def main(config: Path) -> None:
    """Scan, then tell who was named and what was not scored."""
    # the same as `brickscan scan CONFIG`: what is committed already is not scanned again
    code = brickscan.scan(config).exit_code
    if code not in JUDGED:
        sys.exit(code)
    tables = brickscan.results(config)
    print("user  distinct texts  log10 of the smallest p")
    for row in users_found(tables).iter_rows():
        print(row)  # as Python shows it, since strangers write ids
    lost = tables.quarantine.group_by("reason").len().sort("reason").collect()
    print("not scored:", dict(lost.iter_rows()))


def users_found(tables: brickscan.ResultTables) -> pl.DataFrame:
    """Users by how many distinct texts are marked for them."""
    named = tables.flagged.filter(pl.col("naming") == "named")
    users = named.group_by("user_id").agg(
        texts=pl.col("text_sha256").n_unique(), smallest=pl.col("log10_p_global").min().round(1)
    )
    return users.sort("texts", "user_id", descending=[True, False]).collect()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

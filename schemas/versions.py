"""Versions of tables, registry, scan.toml and detector.toml: which are read, and what came with each."""

from collections.abc import Mapping

VERSION = 2
"""Version of what this brickscan writes."""

FIRST_VERSION = 2
"""The version of 0.1.0. Smaller ones were never published, and are not read."""

NEW_COLUMNS: Mapping[int, Mapping[str, tuple[str, ...]]] = {}
"""Columns that a version gave to tables, by version and table: nullable, and empty in rows of earlier versions.

Example:
    Version 3 gave verdicts a column: `{3: {"verdicts": ("language",)}}`.
"""

MADE_BEFORE = "was made before 0.1.0"
"""Words for what has no version or a smaller one than the first, and is not read."""


def new_columns(table: str, after: int) -> tuple[str, ...]:
    """Return the columns that later versions than one gave to a table, oldest first."""
    return tuple(
        column for version in sorted(NEW_COLUMNS) if version > after for column in NEW_COLUMNS[version].get(table, ())
    )

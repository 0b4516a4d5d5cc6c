"""Move tables of results from an earlier version to this one: change columns and properties, but no row and no file.

A version only ever adds nullable columns (schemas.versions.NEW_COLUMNS). They are empty in the rows of earlier files.
Two commits to its log are therefore enough for a table of any size. Its signature stays the same, because it covers
only the files.
"""

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.results.transactions import fields_of, has_table, open_checked, refuse_other_form
from scanner.results.upkeep import existing_tables
from scanner.signing import signer_of
from scanner.storage.data_files import SCHEMAS
from scanner.storage.delta import TABLE_VERSION, attempts, load_table, sync_commit, version_of
from scanner.storage.locations import refuse_links_of_table, table_uri
from schemas.versions import VERSION

_ONCE = CommitProperties(max_commit_retries=0)


def migrate(results: str) -> dict[str, int]:
    """Move the tables of results on to the version that this brickscan writes.

    A second call continues where an interrupted one stopped.

    Returns:
        The version that each table had, by its name.

    Raises:
        Refused: there are no results. No table is changed then.
        TableError: a table was signed and is gone, was made before 0.1.0 or by a newer version, or was changed by
            another program. No table is changed then.
        ScanFailed: a table cannot be read or written, or other processes kept committing first.
    """
    existing = existing_tables(results)
    names = [name for name in SCHEMAS if name in existing or has_table(results, name)]  # refuses one that is gone
    versions = {name: _checked_table(results, name)[1] for name in names}
    for name, version in versions.items():
        if version != VERSION:
            _move_on(results, name)
    return versions


def _checked_table(results: str, name: str) -> tuple[DeltaTable, int]:
    """Return a table as it is now, and its version. Raises TableError: another program than brickscan changed it."""
    signer = signer_of(results)

    def check(table: DeltaTable) -> int:
        version = version_of(table)
        refuse_other_form(table, name, version)
        if signer is not None:
            signer.is_signed(table, name)
        return version

    return open_checked(lambda: load_table(table_uri(results, name)), check)


def _move_on(results: str, name: str) -> None:
    uri = table_uri(results, name)
    for _ in attempts(f"commits to {uri}"):
        table, version = _checked_table(results, name)
        if version == VERSION:
            return
        present = {field.name for field in table.schema().fields}
        added = pa.schema([field for field in fields_of(name, VERSION) if field.name not in present])
        refuse_links_of_table(uri)
        try:
            # the columns first: a table that says its version has them
            if added.names:
                table.alter.add_columns(list(deltalake.Schema.from_arrow(added).fields), commit_properties=_ONCE)
                sync_commit(table, table.version())
            properties = {TABLE_VERSION: str(VERSION)}
            table.alter.set_table_properties(properties, raise_if_not_exists=False, commit_properties=_ONCE)
            sync_commit(table, table.version())
            return
        except (DeltaError, OSError) as error:
            if load_table(uri).version() == table.version():  # nobody else committed
                raise ScanFailed(f"results: table {uri} cannot be written: {in_a_line(error)}") from None

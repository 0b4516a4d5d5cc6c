"""Tables of results that a test changes by hand, and has read again."""

import shutil
from pathlib import Path

from deltalake import DeltaTable

from scanner.registry.signed_tables import SignedTable, append_signed_tables, read_signed_tables
from scanner.results.upkeep import existing_tables
from scanner.signing import opened_signers
from scanner.storage.locations import named_location, table_uri
from tests.support.command_line import call
from tests.support.night import Night


def drop_table(results: str, registry: Path | str, name: str) -> None:
    """Delete a table, and have the registry forget that it was signed."""
    shutil.rmtree(table_uri(results, name), ignore_errors=True)
    _give_up(registry, [entry for entry in signed_at(registry, results) if entry.table == name])
    opened_signers._signers.pop(results, None)


def delete_results(results: str, registry: Path | str) -> None:
    """Delete all tables, and give them up."""
    shutil.rmtree(results)
    _give_up(registry, signed_at(registry, results))
    opened_signers._signers.pop(results, None)


def signed_at(registry: Path | str, results: str) -> list[SignedTable]:
    """Return the newest signature of each table of the results at a place."""
    signed = read_signed_tables(str(registry))
    here = signed.results_at(named_location(results))
    return [] if here is None else signed.tables_of(here)


def _give_up(registry: Path | str, signed: list[SignedTable]) -> None:
    append_signed_tables(str(registry), [entry._replace(event="given up", number=entry.number + 1) for entry in signed])


def sign_as_it_is(night: Night) -> None:
    """Have what was changed by hand believed from now on, and leave no file that is no part of its table."""
    opened_signers._signers.pop(night.results, None)
    code, _, err = call("sign", Path(night.config), "--yes")
    assert code == 0, err
    for name in existing_tables(night.results):
        folder = Path(table_uri(night.results, name))
        parts = {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
        for file in folder.glob("*.parquet"):
            if file.name not in parts:
                file.unlink()

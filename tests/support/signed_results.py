"""What tests of signed results do with a registry, a folder and a table of it."""

from pathlib import Path

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction

from scanner.registry import set_audit_secret
from scanner.registry.keys_file import write_registry
from scanner.results.queries import ask
from scanner.results.sign_anew import faults_of_tables, give_up, sign_anew
from scanner.results.transactions import read_whole
from scanner.signing import keep_signatures, opened_signers, sign_with
from scanner.storage.data_files import SCHEMAS
from scanner.storage.locations import table_uri
from schemas.registry import Registry
from schemas.versions import VERSION

NOT_CHECKED = (
    "signatures of tables were not checked: no registry was named: name the scan's configuration instead of its results"
)
"""What lists say of results that are named without a configuration."""


def new_registry(folder: Path) -> Path:
    """A registry of no keys, with an audit secret."""
    folder.mkdir()
    write_registry(folder, Registry(version=VERSION))
    set_audit_secret(folder)
    return folder


def reopen(folder: str, registry: Path) -> None:
    """Forget what this process remembers of results, as the next process does."""
    opened_signers._signers.pop(folder, None)
    sign_with(folder, str(registry))


def forget_within(folder: Path) -> None:
    """Forget what this process remembers of all results within a folder, and with which registry it signs them."""
    for remembered in (opened_signers._signers, opened_signers._registries):
        for results in [results for results in remembered if results.startswith(f"{folder}/")]:
            del remembered[results]


def consent(folder: str, *names: str) -> int:
    """Sign or give up tables that are not as they were signed, or those of these names. Return files written anew."""
    written = 0
    for name, fault in faults_of_tables(folder).items():
        if fault is not None and (not names or name in names):
            if fault.is_gone:
                give_up(folder, name)
            else:
                written += sign_anew(folder, name, fault.state)
    return written


def take_as_it_is(folder: str, registry: Path) -> None:
    """Say at a place that its tables are the right ones, as `brickscan sign` does."""
    reopen(folder, registry)
    consent(folder)
    assert keep_signatures(folder) is None
    assert set(faults_of_tables(folder).values()) == {None}


def rows(folder: str, name: str = "flags") -> pl.DataFrame:
    return ask(folder, lambda: read_whole(folder, name).collect())


def files(folder: str, name: str = "flags") -> list[Path]:
    return sorted(Path(table_uri(folder, name)).glob("part-*.parquet"))


def commit_transaction(folder: str, name: str, app_id: str, version: int, last_updated: int | None = None) -> None:
    properties = CommitProperties(app_transactions=[Transaction(app_id, version, last_updated)])
    table = DeltaTable(table_uri(folder, name))
    table.create_write_transaction([], "append", SCHEMAS[name], commit_properties=properties)

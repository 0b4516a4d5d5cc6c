"""Whether a scan could write its tables into a folder of results. Nothing is made or changed for that."""

import os
from pathlib import Path
from typing import Literal

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import Refused, in_a_line
from scanner.results.data_files import TABLES
from scanner.results.queries import of_trial
from scanner.results.tables import refuse_other
from scanner.storage.delta import table_uri
from scanner.storage.locations import is_uri

Ready = Literal["new", "there"]
"""States of a folder: some table does not exist yet; all exist."""


def readiness(results: str) -> Ready:
    """State of a folder of results that a scan could use.

    Whether a URI can be written is unknown: only writing shows it.

    Raises:
        Refused: a table cannot be read or is of another version, or the folder cannot be written.
    """
    if not is_uri(results):
        _refuse_unwritable(Path(results))
    states = {_state(table_uri(results, name), name) for name in TABLES}
    return "new" if "new" in states else "there"


def refuse_mixed(results: str, *, trial: bool) -> None:
    """Refuse to write what a trial finds beside real results, or real results beside a trial's.

    Raises:
        Refused: the folder holds the other kind.
    """
    there = of_trial(results)
    if there is not None and there != trial:
        kinds = ("results of real keys", "results of a trial")
        raise Refused(
            f"results: {results} holds {kinds[there]}, and this registry gives {kinds[trial]}; name another folder in "
            "`results`"
        )


def _state(uri: str, name: str) -> Ready:
    try:
        if not DeltaTable.is_deltatable(uri):
            return "new"
        table = DeltaTable(uri)
    except (DeltaError, OSError, ValueError) as error:
        raise Refused(
            f"results: table {uri} cannot be opened: {in_a_line(error)}; give a folder that can be written"
        ) from None
    refuse_other(table, name)
    return "there"


def _refuse_unwritable(folder: Path) -> None:
    """Refuse a folder, or the nearest existing one above it, in which nothing can be made."""
    there = next(above for above in (folder, *folder.parents) if above.exists())
    if not there.is_dir():
        raise Refused(f"results: {there} is no folder; name another folder in `results`")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Refused(f"results: nothing can be written in {there}; change who may, or name another in `results`")

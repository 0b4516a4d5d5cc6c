"""Whether a scan could write its tables into a folder of results. Nothing is made or changed for that."""

import os
from pathlib import Path
from typing import Literal

import deltalake
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import Refused, in_a_line
from scanner.results.data_files import SCHEMAS, TABLES
from scanner.results.queries import of_trial
from scanner.results.tables import allows_null
from scanner.storage.delta import table_uri
from scanner.storage.locations import is_uri

Ready = Literal["new", "older", "there"]
"""States of a folder: no table exists yet; tables of an older version, to which the next scan adds new columns; all
exist.
"""


def readiness(results: str) -> Ready:
    """State of a folder of results that a scan could use.

    Whether a URI can be written is unknown: only writing shows it.

    Raises:
        Refused: a table cannot be read or is of another version, or the folder cannot be written.
    """
    if not is_uri(results):
        _refuse_unwritable(Path(results))
    states = {name: _state(table_uri(results, name), name) for name in TABLES}
    if set(states.values()) == {"new"}:
        return "new"
    return "older" if set(states.values()) != {"there"} else "there"


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
        found, wanted = DeltaTable(uri).schema().fields, deltalake.Schema.from_arrow(SCHEMAS[name]).fields
    except (DeltaError, OSError, ValueError) as error:
        raise Refused(
            f"results: table {uri} cannot be opened: {in_a_line(error)}; give a folder that can be written"
        ) from None
    known = wanted[: len(found)]
    if len(known) < len(found) or not all(map(allows_null, found, known)):
        raise Refused(f"results: table {uri} has other columns than this version writes; give another folder")
    return "there" if found == wanted else "older"


def _refuse_unwritable(folder: Path) -> None:
    """Refuse a folder, or the nearest existing one above it, in which nothing can be made."""
    there = next(above for above in (folder, *folder.parents) if above.exists())
    if not there.is_dir():
        raise Refused(f"results: {there} is no folder; name another folder in `results`")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Refused(f"results: nothing can be written in {there}; change who may, or name another in `results`")

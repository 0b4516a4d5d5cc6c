"""Names taken out of verdicts and flags, for those who ask to be forgotten: the rows stay, and name no one."""

from collections.abc import Sequence

import polars as pl
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.results.tables import ORPHANS_AFTER_HOURS
from scanner.storage.delta import attempts, open_table, read, table_uri


def erase_user(results: str, user_ids: Sequence[str]) -> int:
    """Erase names from flags and verdicts: the rows read `removed`. Returns how many verdicts were changed.

    The rows are addressed by key and message, since Delta's log keeps a change's predicate; the files that held the
    names are deleted, and so is what failed attempts left a day ago or earlier. What is younger may be a running scan's
    and is left for scanner.results.upkeep.vacuum.

    Raises:
        Refused: there are no results.
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    if not user_ids:
        return 0
    changed = _erase_from(table_uri(results, "verdicts"), user_ids)
    if DeltaTable.is_deltatable(table_uri(results, "flags")):  # earlier versions wrote none
        _erase_from(table_uri(results, "flags"), user_ids)
    return changed


def _erase_from(uri: str, user_ids: Sequence[str]) -> int:
    changed = 0
    for _ in attempts(f"attempts to erase names in {uri}"):
        table = open_table(uri)
        try:
            changed += _erase(table, user_ids)
            # also where no name was left: an erasure may have died before this
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            table.vacuum(ORPHANS_AFTER_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        except CommitFailedError:
            pass
        except (DeltaError, OSError, pl.exceptions.PolarsError) as error:
            # files of an outdated snapshot may be gone, when another name was erased
            if open_table(uri).version() == table.version():
                raise ScanFailed(f"results: names in {uri} cannot be erased: {in_a_line(error)}") from None
        else:
            break
    return changed


def _erase(table: DeltaTable, user_ids: Sequence[str]) -> int:
    """Put null for the users, in the rows of their messages. Returns how many were changed."""
    named = read(table).filter(pl.col("user_id").is_in(list(user_ids)))
    messages = named.select("key_id", "message").unique().group_by("key_id").agg("message").collect()
    if messages.is_empty():
        return 0
    predicate = " OR ".join(
        f"(key_id = '{key_id}' AND message IN ({', '.join(map(str, numbers))}))"
        for key_id, numbers in messages.iter_rows()
    )
    done = table.update(
        {"user_id": "NULL", "naming": "'removed'"},
        predicate=f"user_id IS NOT NULL AND ({predicate})",
        commit_properties=CommitProperties(max_commit_retries=0),  # who merged these files meanwhile wrote names anew
    )
    return int(done["num_updated_rows"])

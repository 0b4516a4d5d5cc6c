"""Signing tables anew: as they are, where something else than brickscan changed them, or under another audit secret."""

import hashlib
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import Refused, ScanFailed
from scanner.results.transactions import additions, faults_named, has_table, refuse_other, try_to_commit
from scanner.results.upkeep import existing_tables
from scanner.signing import keep_signatures, signature_of, signer_of, unchecked, use_signer
from scanner.signing.signer import Signer
from scanner.storage.data_files import SCHEMAS, sha256_in, write_file
from scanner.storage.delta import KeptTable, attempts, files_of, logged_transactions
from scanner.storage.locations import read_whole_file, table_uri


def faults_of_tables(results: str) -> Mapping[str, str | None]:
    """Return why each table is not as it was signed; None: it is. The content of its files is read too.

    Raises:
        Refused: there are no results, and none were signed, or no audit secret can be read.
    """
    signer = _signer(results)
    faults: dict[str, str | None] = dict.fromkeys(signer.missing_tables(), GONE)
    if len(faults) == len(signer.signed_tables()) > 0:
        return faults
    faults |= {
        name: f"{GONE}: it lay at {entry.location}, and did not come along: put it here, or go on without it for good"
        for name, entry in signer.left_behind().items()
    }
    # all that were signed: one may be taken away while they are listed
    there = {*existing_tables(results), *signer.signed_tables()} - faults.keys()
    for name in (name for name in SCHEMAS if name in there):
        try:
            faults[name] = _fault_of(results, name, signer)
        except ScanFailed as error:
            faults[name] = f"{error}: put its folder back from a copy"
    return faults


def _fault_of(results: str, name: str, signer: Signer) -> str | None:
    """Return why a table is not as it was signed. Raises ScanFailed: its log cannot be read."""
    table = KeptTable(table_uri(results, name)).now()
    try:
        transactions = signer.sum_transactions(table, name, logged_transactions(table))
        refuse_other(table, name)
        signer.is_signed(table, name, transactions)
        unsigned = "nobody signed it" if name in signer.unsigned else None
        if unsigned is None and name in signer.off_record:
            unsigned = "the registry does not know it at this place, so that it may not be the newest"
    except Refused as error:
        unsigned = str(error)
    changed = _files_to_write(results, name, table)
    lost = [file_name for file_name in changed if _rows_of(results, name, file_name) is None]
    if changed and unsigned is None:
        unsigned = f"the content of {changed[0]} is not what was written"
    if lost:
        rows = f"the rows of {len(lost)} of its files, as {lost[0]}, cannot be read, and are given up for good"
        unsigned = f"{unsigned}; {rows}: put the files back from a copy, or scan the input again elsewhere"
    return unsigned


GONE = "was signed, and is gone"
"""Beginning of the fault of a table that is given up where others are signed as they are."""


def give_up(results: str, name: str) -> None:
    """Give up a table that is gone: whatever was signed there is refused from then on, and a new one may be made.

    One that results had at another place alone is no table of this place, so that nothing is to be done.

    Raises:
        Refused: no audit secret can be read, or the table is there.
    """
    signer = _signer(results)
    if name not in {*signer.missing_tables(), *signer.left_behind()}:
        raise Refused(f"results: table {table_uri(results, name)}: is there again, and is not given up")
    signer.give_up(name)


def sign_anew(results: str, name: str) -> int:
    """Sign a table as it is, whoever changed it. Files whose names do not state their content are written anew.

    Files that are lost or damaged leave the table.

    Returns:
        The number of files that were written anew, or left.

    Raises:
        Refused: no audit secret can be read, the folder of a file cannot be, or the table is of another form.
        ScanFailed: the table is gone, others kept committing first, or it cannot be written.
    """
    signer, kept_table = _signer(results), KeptTable(table_uri(results, name))
    for _ in attempts(f"commits to {table_uri(results, name)}"):
        table, actions = kept_table.now(), list[AddAction | RemoveAction]()
        refuse_other(table, name)
        files = _files_to_write(results, name, table)
        if not files and signer.take(table, name, signer.sum_transactions(table, name, kept_table.logged())):
            return 0
        for file_name in files:
            written = write_file(results, name, _rows_of(results, name, file_name) or [])
            actions += [RemoveAction(file_name, False, 0), *additions([written] if written else [], changes=False)]
        if try_to_commit(results, table, name, actions, [], anew=kept_table.logged()):
            return len(files)
    return 0


def sign_under(results: str, registry: str, secret: bytes) -> int:
    """Sign all tables of results under another audit secret. A second call goes on where an interrupted one stopped.

    Args:
        results: folder or URI.
        registry: folder or URI of the registry.
        secret: the audit secret that takes the place of the one that the tables are signed under.

    Returns:
        The number of tables.

    Raises:
        Refused: a table is not as it was signed.
        ScanFailed: others kept committing first, or a table or the registry cannot be written.
    """
    earlier, later, names = _signer(results), Signer(results, registry, secret), _tables_of(results)
    tables = {name: KeptTable(table_uri(results, name)) for name in names}
    signed = [name for name, table in tables.items() if _is_left(earlier, later, table, name)]
    use_signer(results, later)  # not before all tables were looked at: one that was changed leaves all as they are
    for name in signed:
        for _ in attempts(f"commits to {table_uri(results, name)}"):
            if not _is_left(earlier, later, tables[name], name):
                break
            transactions, table = tables[name].logged(), tables[name].table  # the very ones that were checked
            before = signature_of(table)
            if try_to_commit(results, table, name, [], [], anew=transactions, follows=before.number if before else 0):
                break
    if (why := keep_signatures(results)) is not None:
        raise Refused(why)
    return len(names)


def refuse_changed_under(results: str, registry: str, secret: bytes) -> None:
    """Refuse results of which a table is as it was signed neither under their secret nor under the one that follows.

    So an interrupted `sign_under` is told from a change. Arguments as there.

    Raises:
        Refused: somebody changed a table, or took it away.
        ScanFailed: a log cannot be read.
    """
    earlier, later = _signer(results), Signer(results, registry, secret)
    with faults_named(results):
        for name in _tables_of(results):
            _is_left(earlier, later, KeptTable(table_uri(results, name)), name)


def _tables_of(results: str) -> list[str]:
    """Return the names of the tables there. Raises Refused: one is a link, or was signed and is gone."""
    existing_tables(results)
    return [name for name in SCHEMAS if has_table(results, name)]


def _is_left(earlier: Signer, later: Signer, kept_table: KeptTable, name: str) -> bool:
    """Return whether a table is now signed under the earlier secret. Raises Refused: it is not as it was signed."""
    table = kept_table.now()
    signature = signature_of(table)
    signer = later if signature is not None and later.has_signed(signature) else earlier
    signer.is_signed(table, name, signer.sum_transactions(table, name, kept_table.logged()))
    return signature is not None and signer is earlier


def _signer(results: str) -> Signer:
    signer = signer_of(results)
    if signer is None:
        raise Refused(f"results: tables of {results} cannot be signed: {unchecked(results)}")
    return signer


def _files_to_write(results: str, name: str, table: DeltaTable) -> list[str]:
    """Return the files of a table whose names do not state their content."""
    return [
        file_name
        for file_name in files_of(table)["path"]
        if sha256_in(file_name) != hashlib.sha256(_content(results, name, file_name) or b"").hexdigest()
    ]


def _rows_of(results: str, name: str, file_name: str) -> list[pa.RecordBatch] | None:
    """Return the rows of a file; None: it is lost or damaged."""
    content = _content(results, name, file_name)
    if content is None:
        return None
    try:
        rows: list[pa.RecordBatch] = pq.read_table(pa.BufferReader(content), schema=SCHEMAS[name]).to_batches()
    except (OSError, pa.ArrowException):
        return None
    return rows


def _content(results: str, name: str, file_name: str) -> pa.Buffer | None:
    """Return the content of a file; None: there is no such file. Raises Refused: it cannot be read."""
    location = f"{table_uri(results, name)}/{file_name}"
    try:
        return read_whole_file(location)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"results: {location} cannot be read ({error}): put it back from a copy first") from None

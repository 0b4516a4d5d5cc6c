"""Sign tables anew: as they are, if another program than brickscan changed them, or under another audit secret."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import Refused, ScanFailed, TableError
from scanner.printable import counted
from scanner.results.transactions import additions, faults_named, has_table, refuse_other, try_to_commit
from scanner.results.upkeep import existing_tables
from scanner.signing import keep_signatures, signature_of, signer_of, unchecked, use_signer
from scanner.signing.signature import facts_of_files, id_of
from scanner.signing.signer import Signer
from scanner.storage.data_files import SCHEMAS, sha256_in, write_file
from scanner.storage.delta import KeptTable, attempts, files_of
from scanner.storage.locations import read_whole_file, table_uri


class Fault(NamedTuple):
    """The reason why a table is not as it was signed.

    why: the reason in words.
    is_gone: whether the table is missing. Then consent gives it up. Otherwise consent signs it as it is.
    state: digest of the table when it was checked. Empty: it is gone, or cannot be read.
    """

    why: str
    is_gone: bool = False
    state: str = ""


def faults_of_tables(results: str) -> Mapping[str, Fault | None]:
    """Return why each table is not as it was signed. None: it is as signed. The content of its files is checked too.

    Raises:
        Refused: there are no results and none were signed, or no audit secret can be read.
    """
    signer = _signer(results)
    missing, gone = signer.missing_tables(), "was signed but no longer exists"
    if missing and missing == signer.signed_tables():
        if signer.lie_here():
            gone += (
                ": if you moved these results, first run `brickscan sign` at their new place, or they will be refused"
            )
        return dict.fromkeys(missing, Fault(gone, is_gone=True))
    faults: dict[str, Fault | None] = dict.fromkeys(missing, Fault(gone, is_gone=True))
    # include all signed tables: one may be taken away while they are listed
    present = {*existing_tables(results), *signer.signed_tables()} - faults.keys()
    there = [name for name in SCHEMAS if name in present]
    for name in there:
        try:
            tells_place = name == there[-1] and not any(faults.values())  # consent to another fault notes the place too
            faults[name] = _fault_of(results, name, signer, tells_place=tells_place)
        except ScanFailed as error:
            faults[name] = Fault(f"{error}: restore its folder from a copy")
    return faults


def _fault_of(results: str, name: str, signer: Signer, *, tells_place: bool) -> Fault | None:
    """Return all faults of a table together, so that none hides another.

    tells_place: also report that the results were moved. This is done for one table only.

    Raises:
        ScanFailed: the log cannot be read.
    """
    kept_table = KeptTable(table_uri(results, name))
    table = kept_table.now()
    state, changed = _state_of(results, name, kept_table, signer)
    transactions = signer.sum_transactions(table, name, kept_table.logged())
    faults = list[str]()

    # 1. check the table's form, and compare it with the registry
    signature = signature_of(table)
    ours = signature if signature is not None and signer.has_signed(signature) else None
    try:
        refuse_other(table, name)
        signer.is_signed(table, name, transactions)
        if name in signer.unsigned:
            faults.append("nobody signed it")
    except (Refused, TableError) as error:
        faults.append(str(error))
    if name in signer.off_record:
        faults.append("the registry has no record of these results, so it may not be the newest")

    if tells_place and (place := signer.last_place()) is not None:
        faults.append(f"these results were last signed at {place}; from now on their place is here")

    # 2. compare its files and transactions with the signature
    wrong = () if ours is None else signer.wrong_digests(table, name, ours, transactions)
    faults += [each for each in wrong if each not in " ".join(faults)]

    # 3. check the content of its files
    if changed:
        faults.append(
            f"the content of {counted(len(changed), 'file')}, for example {next(iter(changed))}, was changed after it "
            "was written"
        )
    lost = [file_name for file_name in changed if _rows_in(name, _content(results, name, file_name)) is None]
    if lost:
        faults.append(
            f"the rows of {len(lost)} of its files, for example {lost[0]}, cannot be read, and signing gives them up "
            "for good: restore the files from a copy, or scan the input again elsewhere"
        )
    return Fault("; ".join(faults), state=state) if faults else None


def _state_of(results: str, name: str, kept_table: KeptTable, signer: Signer) -> tuple[str, dict[str, str | None]]:
    """Return a digest of everything that consent to a table signs, and the SHA-256 of the files that are written anew.

    Files are written anew if their names do not state their content. SHA-256 None: the file is lost.
    """
    table = kept_table.table
    contents = {file_name: _sha256(_content(results, name, file_name)) for file_name in files_of(table)["path"]}
    changed = {file_name: digest for file_name, digest in contents.items() if digest != sha256_in(file_name)}
    logged = sorted((app_id, *transaction) for app_id, transaction in kept_table.logged().items())
    form = id_of(table), signer.joined_results(table), table.schema().to_json()
    facts = form, sorted(map(repr, facts_of_files(table))), logged, changed
    return hashlib.sha256(repr(facts).encode()).hexdigest(), changed


def give_up(results: str, name: str) -> None:
    """Give up a table that is gone. Everything that was signed there is refused from now on, and a new one may be made.

    If the results continued at another place, they leave this place and are not given up elsewhere.

    Raises:
        Refused: no audit secret can be read, or the table exists.
    """
    signer = _signer(results)
    if signer.signed_tables() and name not in signer.missing_tables():
        raise Refused(f"results: table {table_uri(results, name)}: exists again, so it is not given up")
    signer.give_up(name)


def sign_anew(results: str, name: str, state: str) -> int:
    """Sign a table in the state in which it was checked, even if somebody else changed it.

    Files whose names do not state their content are written anew. Lost and damaged files are removed from the table.

    Args:
        results: folder or URI.
        name: name of the table.
        state: `state` of the fault that a person consented to.

    Returns:
        The number of files that were written anew or removed.

    Raises:
        Refused: no audit secret or no folder of a file can be read. Or the table has another form, or changed since it
            was checked.
        ScanFailed: the table is gone or cannot be written, or other processes kept committing first.
    """
    signer, kept_table = _signer(results), KeptTable(table_uri(results, name))
    changed_since = TableError(
        f"results: table {table_uri(results, name)}: was changed since it was checked: run `brickscan sign --dry-run` "
        "again to see what you consent to"
    )
    for _ in attempts(f"commits to {table_uri(results, name)}"):
        table, actions = kept_table.now(), list[AddAction | RemoveAction]()
        refuse_other(table, name)
        state_now, files = _state_of(results, name, kept_table, signer)
        if state_now != state:
            raise changed_since
        if not files and signer.take(table, name, signer.sum_transactions(table, name, kept_table.logged())):
            return 0
        for file_name, digest in files.items():
            content = _content(results, name, file_name)
            if _sha256(content) != digest:
                raise changed_since
            written = write_file(results, name, _rows_in(name, content) or [])
            actions += [RemoveAction(file_name, False, 0), *additions([written] if written else [], changes=False)]
        if try_to_commit(results, table, name, actions, [], anew=kept_table.logged()):
            return len(files)
    return 0


def sign_under(results: str, registry: str, secret: bytes) -> int:
    """Sign all tables of results under another audit secret. A second call continues where an interrupted one stopped.

    Args:
        results: folder or URI.
        registry: folder or URI of the registry.
        secret: the audit secret that replaces the one that signed the tables.

    Returns:
        The number of tables.

    Raises:
        TableError: a table is not as it was signed.
        ScanFailed: other processes kept committing first, or a table or the registry cannot be written.
    """
    earlier, later, names = _signer(results), Signer(results, registry, secret), _tables_of(results)
    tables = {name: KeptTable(table_uri(results, name)) for name in names}
    signed = [name for name, table in tables.items() if _is_left(earlier, later, table, name)]
    use_signer(results, later)  # only after all tables are checked: if one was changed, all stay as they are
    for name in signed:
        for _ in attempts(f"commits to {table_uri(results, name)}"):
            if not _is_left(earlier, later, tables[name], name):
                break
            transactions, table = tables[name].logged(), tables[name].table  # the same state that was checked
            before = signature_of(table)
            if try_to_commit(results, table, name, [], [], anew=transactions, follows=before.number if before else 0):
                break
    if (why := keep_signatures(results)) is not None:
        raise Refused(why)
    return len(names)


def refuse_changed_under(results: str, registry: str, secret: bytes) -> None:
    """Raise TableError if a table fits neither its own audit secret nor the one that follows.

    A table may fit either of them after an interrupted `sign_under`, and that is no change. Arguments as for
    `sign_under`.

    Raises:
        TableError: somebody changed a table, or took it away.
        ScanFailed: a log cannot be read.
    """
    earlier, later = _signer(results), Signer(results, registry, secret)
    with faults_named(results):
        for name in _tables_of(results):
            _is_left(earlier, later, KeptTable(table_uri(results, name)), name)


def _tables_of(results: str) -> list[str]:
    """Return the names of the existing tables. Raises TableError: one is a link, or was signed and is gone."""
    existing_tables(results)
    return [name for name in SCHEMAS if has_table(results, name)]


def _is_left(earlier: Signer, later: Signer, kept_table: KeptTable, name: str) -> bool:
    """Return whether a table is still signed under the earlier secret.

    Raises TableError: it is not as it was signed.
    """
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


def _rows_in(name: str, content: pa.Buffer | None) -> list[pa.RecordBatch] | None:
    """Return the rows of a file's content. None: it is lost or damaged."""
    if content is None:
        return None
    try:
        rows: list[pa.RecordBatch] = pq.read_table(pa.BufferReader(content), schema=SCHEMAS[name]).to_batches()
    except (OSError, pa.ArrowException):
        return None
    return rows


def _sha256(content: pa.Buffer | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _content(results: str, name: str, file_name: str) -> pa.Buffer | None:
    """Return the content of a file. None: there is no such file. Raises Refused: it cannot be read."""
    location = f"{table_uri(results, name)}/{file_name}"
    try:
        return read_whole_file(location)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"results: {location} cannot be read ({error}): restore it from a copy first") from None

"""One flagged document found again, with its row, scan, text and filter, and the flags beside it.

A text whose input file is gone or was changed is one that a scan kept of its flags (`[evidence] keep_text`).

Flags beside one are those of its user, account or text. Whoever strings runs of others' marked text together is flagged
for their mark, so earlier posts that it may have copied are found by their sketches. A run that is short beside its
posts may be missed: the share is a lower bound.
"""

import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from numpy.typing import NDArray

from scanner.detection.rows import TextIds
from scanner.detection.rules import NO_FILTER, Filter
from scanner.detection.sketches import SKETCH_PLACES
from scanner.errors import FileFault, Refused, ScanFailed
from scanner.input.columns import Columns
from scanner.input.documents import Reader, Unreadable
from scanner.input.files import InputFile, InputTables
from scanner.input.inspector import Inspector
from scanner.input.shards import MAX_ROWS, key_set
from scanner.printable import printable
from scanner.registry import read_secret
from scanner.results import flagged
from scanner.results.current_rows import ranges_ever
from scanner.results.filters import open_filter
from scanner.results.flags import WantedFlags, sums
from scanner.results.pieces_of_evidence import EVIDENCE_COLUMNS, pieces_of_evidence, sizes_of
from scanner.results.queries import ask, flags_at_rate, verdicts
from scanner.results.scan_list import recorded_scan
from scanner.results.transactions import read_whole
from scanner.storage.locations import table_uri
from schemas.registry import MAX_MESSAGES, Registry
from schemas.words import Naming

OF_FILE = {"doc_id": "id", "account_id": "account", "created_at": "time"}
"""Columns that stand beside the text, by their name in a configuration."""

_SHOWN = 10
_NUMBERS = ("score", "log10_p", "log10_p_global", "messages_tested", "correction")  # of every flagged row


@dataclass(frozen=True)
class FlagCase:
    """A flagged document: a row of schemas.tables.VERDICTS with `audit`, and its scan's row of SCANS, if that ended."""

    row: Mapping[str, Any]
    scan: Mapping[str, Any] | None

    @property
    def where(self) -> str:
        """File and row, as a document is named to commands."""
        return f"{self.row['path']}:{self.row['row']}"


def find_case(results: str, rate: float, document: str) -> FlagCase:
    """Find a flagged document by `PATH:ROW`, or by its id where no place of that name is flagged.

    Raises:
        Refused: no flagged document has this name, or several have; says which, or whether it was read at all.
    """
    wanted = _named(document)
    rows = ask(results, lambda: flagged(results, rate, wanted, canaries=True).collect())
    if not len(rows):
        read_at_all = ask(results, lambda: verdicts(results).filter(wanted).head(1).collect())
        unread = "no document of that name was read, or its night was dropped"
        why = "it was read and is not flagged" if len(read_at_all) else unread
        raise Refused(
            f"document {document!r}: {why}; name one by its id or as PATH:ROW (`brickscan flagged` lists them)"
        )
    place = rows.filter(pl.concat_str("path", pl.lit(":"), "row") == document)
    rows = place if len(place) else rows  # whoever may choose an id must not keep another's flag from being found
    if len(rows) > 1:
        where = ", ".join(f"{row['path']}:{row['row']}" for row in rows.head(_SHOWN).iter_rows(named=True))
        raise Refused(f"document {document!r}: {len(rows)} flagged documents have this id; choose one: {where}")
    row = rows.row(0, named=True)
    refuse_impossible(row)
    scan = recorded_scan(results, row["scan_id"])
    return FlagCase(row, scan and _under_its_keys(results, row, scan))


def refuse_impossible(row: Mapping[str, Any]) -> None:
    """Raise Refused for a flagged row with a value that no scan writes: somebody changed it, and nothing stands by it.

    Its message alone may be missing: it is not shown where naming is undecided.
    """
    wrong = [name for name in _NUMBERS if row[name] is None or not math.isfinite(row[name])]
    wrong += [name for name in ("messages_tested", "correction") if row[name] is not None and not row[name] >= 1]
    wrong += [name for name in ("key_id", "text_sha256") if row[name] is None]
    if not 0 <= (row["message"] or 0) < MAX_MESSAGES:
        wrong.append("message")
    rank = row.get("p_rank")
    if rank is not None and not math.isnan(rank) and not 0 < rank <= 1:
        wrong.append("p_rank")
    if wrong:
        where = printable(f"{row['path']}:{row['row']}")
        raise Refused(
            f"{where}: its flag has {wrong[0]} = {printable(str(row[wrong[0]]))}, as no scan writes it. Somebody "
            "changed the results: restore the table `flags` from a backup before anything is decided by it"
        )


def _under_its_keys(results: str, row: Mapping[str, Any], scan: dict[str, Any]) -> dict[str, Any]:
    """A scan's row with only the keys that looked at a document: older ones may have done so before."""
    ours = (pl.col("shard_id") == row["shard_id"]) & (pl.col("scan_id") == row["scan_id"])
    digests = ask(results, lambda: ranges_ever(results).filter(ours).select("keys").unique().collect())["keys"]
    keys = scan["keys"]
    for begin, end in combinations(range(len(keys) + 1), 2):
        if key_set(key["key_id"] for key in keys[begin:end]) in digests:
            return scan | {"keys": keys[begin:end]}
    return scan


def _named(document: str) -> pl.Expr:
    path, _, row = document.rpartition(":")
    by_id = pl.col("doc_id") == document
    if not path or not (row.isascii() and row.isdigit()) or len(row) > 18:
        return by_id
    return by_id | ((pl.col("path") == path) & (pl.col("row") == int(row)))


class MovedRow(Refused):
    """A row of a file that is as it was scanned, in which another text stands than the row says."""


class StoredText(NamedTuple):
    """A text, byte for byte the one that was scanned.

    row: its row of schemas.tables.DOCUMENTS, as its file holds it today; None if the text is the one that the scan
    kept, for the reason `not_from_file`.
    """

    text: bytes
    row: Mapping[str, Any] | None
    not_from_file: str | None = None


class StoredTexts:
    """Texts of flags as their files hold them today, or as the scan kept them where the file is gone or was changed.

    A file's footer is read by a process of its own first, as in a scan: since then the file may have become one whose
    footer ends the process that reads it. A caller who asks in the order of paths and rows has no file inspected twice,
    and no rows decoded again.
    locations: paths of the input; options in a URI of theirs open a file under it too. text_id: keyed digest of a
    text's SHA-256, for documents that are not flagged; None: there are none.
    """

    def __init__(
        self, columns: Columns, locations: Sequence[str], results: str, text_id: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._text_id = text_id
        self._columns, self._locations, self._results, self._kept = columns, locations, results, KeptTexts(results)
        self._tables = InputTables(locations)
        self._reader, self._inspector = Reader(), Inspector()
        self._sound: InputFile | None = None  # the file that was inspected last
        weakref.finalize(self, self._inspector.close)

    def of(self, case: FlagCase) -> StoredText:
        """The text of a flag.

        Raises:
            MovedRow: no scan can have read the text there.
            Refused: the file or the row is gone, cannot be read, or holds another text than was scanned, and no scan
                kept the text.
        """
        try:
            row = self._in_its_file(case)
            return StoredText(bytes(row["text"]), row)
        except MovedRow:
            raise
        except Refused as error:
            text = self._kept.of(case.row)
            if text is None or not self._is_the_scanned(text, case):
                raise
            return StoredText(text, None, str(error))

    def _in_its_file(self, case: FlagCase) -> Mapping[str, Any]:
        try:
            part = self._read(_with_options(case.row["path"], self._locations), case.row["row"])
        except FileFault as fault:
            raise Refused(f"{case.where}: the text cannot be read any more ({fault.detail})") from None
        except (Refused, ScanFailed) as error:
            raise Refused(f"{case.where}: the text cannot be read any more ({error})") from None
        if isinstance(part, Unreadable):
            raise Refused(f"{case.where}: the text cannot be read any more ({part.detail})")
        found: Mapping[str, Any] = part.to_pylist()[0]
        if not self._is_the_scanned(found["text"], case):
            if self._is_as_scanned(case):
                raise MovedRow(
                    f"{case.where}: another text stands there than the row says, in a file of the size and time that "
                    "it had when it was scanned"
                )
            raise Refused(f"{case.where}: another text stands there now than the one that was scanned")
        return found

    def _is_the_scanned(self, text: bytes | None, case: FlagCase) -> bool:
        if text is None:
            return False
        digest = hashlib.sha256(text).digest()
        if self._text_id is not None and case.row["text_sha256"] is None:  # not flagged
            return bool(self._text_id(digest) == case.row["text_id"])
        return bool(digest == case.row["text_sha256"])

    def _is_as_scanned(self, case: FlagCase) -> bool:
        """Whether the file that was read last has the size and time that it had for the row's scan, or for any."""
        of_file = pl.col("path") == case.row["path"]
        read = ask(
            self._results, lambda: ranges_ever(self._results).filter(of_file).select("scan_id", "file").collect()
        )
        of_scan = read.filter(scan_id=case.row.get("scan_id", ""))  # a post beside a flag is known by its place alone
        mark = self._sound and self._sound.stamp
        return mark in (read if of_scan.is_empty() else of_scan)["file"].to_list()

    def _read(self, path: str, row: int) -> pa.RecordBatch | Unreadable:
        file = self._tables.find(path)
        if file != self._sound:
            self._inspector.inspect(file, self._columns)
            self._sound = file
        (part,) = self._reader.read(file, self._columns, row, row + 1)
        return part


def _with_options(path: str, locations: Sequence[str]) -> str:
    """A path as tables have it, with the options of the URI that it was found under."""
    for location in locations:
        if "://" in location and path.startswith(urlsplit(location)._replace(query="").geturl()):
            query = urlsplit(location).query
            return f"{path}?{query}" if query else path
    return path


class KeptTexts:
    """Finds kept texts. A caller who asks in the order of paths and rows has the texts of a shard read once."""

    def __init__(self, results: str) -> None:
        self._results = results
        self._path, self._rows = "", range(0)  # the shard that was read last
        self._texts: Mapping[bytes, bytes] = {}

    def of(self, row: Mapping[str, Any]) -> bytes | None:
        """The text of a row of FLAGS, as its file held it; None: no scan kept it, or it was erased."""
        if row["path"] != self._path or row["row"] not in self._rows:
            self._path, self._rows = row["path"], range(row["row"], row["row"] + MAX_ROWS)
            self._texts = ask(self._results, self._read)
        return self._texts.get(row["text_sha256"])

    def _read(self) -> Mapping[bytes, bytes]:
        """Texts by their digests, so that the text is the one that was scanned, whichever scan kept it."""
        if not DeltaTable.is_deltatable(table_uri(self._results, "flag_texts")):
            return {}
        near = (pl.col("path") == self._path) & pl.col("row").is_between(self._rows.start, self._rows.stop - 1)
        rows = read_whole(self._results, "flag_texts", pl.Series([self._path])).filter(near)
        return dict(rows.select("text_sha256", "text").collect().iter_rows())


def surprise_of(results: str, case: FlagCase) -> NDArray[np.uint8]:
    """Steps of surprise of each character of a flag's text (scanner.watermark.level_laws), uint8[C].

    Raises:
        Refused: it is not on record any more, several are, or it is of another model than the scan's.
    """
    row = case.row

    def readings() -> pl.DataFrame:
        ours = (pl.col(name) == row[name] for name in ("scan_id", "shard_id", "row", "text_sha256"))
        of_file = read_whole(results, "flag_readings", pl.Series([row["path"]])).filter(*ours)
        return of_file.select("reader_sha256", "surprise").unique().collect()

    found = ask(results, readings)
    if found.is_empty():
        raise Refused(
            f"{case.where}: what the model expected of the text is not on record: it was erased with a "
            "name, or its night was dropped; scan the file again, with the same [weights_by], into new results"
        )
    of_scan = case.scan is None or found["reader_sha256"].to_list() == [case.scan["reader_sha256"]]
    if len(found) > 1 or not of_scan:
        raise Refused(
            f"{case.where}: what is on record is not what the scan's model expected of the text, once. Somebody "
            "changed the results: restore the table `flag_readings` from a backup"
        )
    return np.frombuffer(found["surprise"][0], np.uint8)


def filter_of(results: str, folder: str, registry: Registry, case: FlagCase) -> Filter:
    """The filter under which a verdict was given; none where its scan did not end, or had none.

    Raises:
        Refused: the filter is gone, or the registry has no audit secret, or another; SecretError.
    """
    sha256 = (case.scan or {}).get("filter_sha256")
    if sha256 is None:
        return NO_FILTER
    return open_filter(results, sha256, text_ids_of(folder, registry).ngram_secret())


def text_ids_of(folder: str, registry: Registry) -> TextIds:
    """Digests under the audit secret of a registry. Raises Refused: it has none; SecretError."""
    if registry.audit_secret is None:
        raise Refused(f"registry {folder!r} has no audit secret, which filters and digests of texts need; restore it")
    return TextIds(read_secret(registry.audit_secret, folder))


MESSAGE, ACCOUNT, TEXT = ("key_id", "message"), ("account_id",), ("text_sha256",)


class GroupCounts(NamedTuple):
    """Flagged documents, distinct texts among them, and distinct accounts that posted them, as far as they are told."""

    documents: int
    texts: int
    accounts: int


def equal_in(
    results: str, rate: float, rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]
) -> dict[tuple[Any, ...], GroupCounts]:
    """Flags that equal a row in these columns, by their values; null equals nothing. Raises Refused: no results."""
    values = {name: {row[name] for row in rows} - {None} for name in columns}
    wanted = pl.all_horizontal(*(pl.col(name).is_in(list(found)) for name, found in values.items()))
    accounts = pl.col("account_id").drop_nulls().n_unique().alias("accounts")
    counts = [pl.len().alias("documents"), pl.col("text_sha256").n_unique().alias("texts"), accounts]
    same = [pl.col(name).alias(f"same_{name}") for name in columns]
    found = ask(results, lambda: flags_at_rate(results, rate, wanted).group_by(same).agg(counts).collect())
    return {row[:-3]: GroupCounts(*row[-3:]) for row in found.iter_rows()}


def naming_users(results: str, rate: float, rows: Sequence[Mapping[str, Any]]) -> dict[str | None, GroupCounts]:
    """Flags that name a user of these rows, be it first or beside others, by user. Raises Refused: no results."""
    users = tuple({row["user_id"] for row in rows if row["naming"] == Naming.NAMED} - {None})
    if not users:
        return {}
    counts = sums(results, rate, WantedFlags(users=users), None, "user").rows.filter(naming=Naming.NAMED)
    return {
        user: GroupCounts(*of) for user, *of in counts.select("user_id", "documents", "texts", "accounts").iter_rows()
    }


def alike_with(results: str, rate: float, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], GroupCounts]:
    """Flags that are one piece of evidence with a row, by EVIDENCE_COLUMNS. Raises Refused: no results."""
    keys, messages = ({row[name] for row in rows} for name in MESSAGE)
    of_messages = pl.col("message").is_in(list(messages - {None}))
    unshown = pl.col("message").is_null() & (None in messages)

    def of_these() -> pl.DataFrame:
        flags = flags_at_rate(results, rate, pl.col("key_id").is_in(list(keys)) & (of_messages | unshown))
        groups = pieces_of_evidence(flags)
        schema = {name: groups.schema[name] for name in EVIDENCE_COLUMNS}
        flagged = pl.DataFrame([{name: row[name] for name in EVIDENCE_COLUMNS} for row in rows], schema).unique()
        mine = groups.join(flagged, on=EVIDENCE_COLUMNS, how="semi", nulls_equal=True).drop_nulls("piece")
        sizes = sizes_of(flags, groups.filter(pl.col("piece").is_in(mine["piece"].implode())))
        return mine.join(sizes, on="piece").select(
            *EVIDENCE_COLUMNS, "piece_documents", "piece_texts", "piece_accounts"
        )

    found = ask(results, of_these) if rows else pl.DataFrame()
    return {row[:-3]: GroupCounts(*row[-3:]) for row in found.iter_rows()}


EARLIER_POSTS_READ = 10
"""Earlier posts that are read for a flag, the most alike ones."""

SKETCHES_HELD = 200_000
"""Flags whose sketches are held; where more have the messages that are asked for, nothing is told."""

COPIED_RUN = 5
"""Least tokens of a run that counts as copied: shorter ones stand in unrelated texts too."""

PathAndRow = tuple[str, int]

_COLUMNS = ("path", "row", *MESSAGE, "account_id", "text_sha256", "variant", "scan_id", "sketch")


class CopiedShare(NamedTuple):
    """What a text shares with earlier flagged posts of other accounts.

    share: of its runs that end in a scored token, from 0 to 1; posts, accounts: those that hold some of them; path,
    row: of the post that holds most, None: none holds any.
    """

    share: float
    posts: int
    accounts: int
    path: str | None = None
    row: int | None = None


class EarlierPost(NamedTuple):
    """An earlier post: who posted it, where it stands, and its tokens, uint32[T]."""

    account_id: str
    path: str
    row: int
    ids: NDArray[np.uint32]


def earlier_of_others(
    results: str, rate: float, rows: Sequence[Mapping[str, Any]]
) -> dict[PathAndRow, Sequence[Mapping[str, Any]]]:
    """Earlier flagged posts of other accounts, for the same key and message, that share n-grams with flagged documents.

    rate: false-positive rate of the flags.

    Returns:
        By path and row of a document: rows of flags, one a text, EARLIER_POSTS_READ at most, the most alike first. A
        document without an account or a message has none.

    Raises:
        Refused: there are no results.
    """
    keys, messages = ({row[name] for row in rows} - {None} for name in MESSAGE)
    wanted = pl.col("key_id").is_in(list(keys)) & pl.col("message").is_in(list(messages))
    comparable = wanted & pl.col("account_id").is_not_null()
    posted = pl.coalesce("created_at", "scanned_at").alias("posted")

    def flags() -> pl.DataFrame:
        rows = flags_at_rate(results, rate, comparable).filter(pl.col("sketch").is_not_null())
        return rows.select(*_COLUMNS, posted).head(SKETCHES_HELD + 1).collect()

    if not messages or len(found := ask(results, flags)) > SKETCHES_HELD:
        return {}
    places = np.frombuffer(b"".join(found["sketch"]), "<u4").reshape(len(found), SKETCH_PLACES)
    numbered = found.drop("sketch").with_row_index("number")
    of_place = {(path, row): number for number, path, row in numbered.select("number", "path", "row").iter_rows()}
    addresses = ((row["path"], row["row"]) for row in rows)
    return {place: _most_similar(numbered, places, of_place[place]) for place in addresses if place in of_place}


def _most_similar(numbered: pl.DataFrame, places: NDArray[np.uint32], number: int) -> Sequence[Mapping[str, Any]]:
    """Earlier posts of other accounts that have a place of their sketch in common with one flag."""
    row = numbered.row(number, named=True)
    earlier = numbered.filter(
        *(pl.col(name) == row[name] for name in MESSAGE),
        pl.col("account_id") != row["account_id"],
        pl.col("posted") < row["posted"],
    )
    equal = (places[earlier["number"].to_numpy()] == places[number]).sum(axis=1)
    near = earlier.with_columns(equal=pl.Series(equal)).filter(pl.col("equal") > 0)
    by_likeness = near.sort("equal", "posted", "path", "row", descending=[True, False, False, False])
    ordered = by_likeness.unique("text_sha256", keep="first", maintain_order=True)
    return ordered.head(EARLIER_POSTS_READ).to_dicts()


def copied_share(
    ids: NDArray[np.uint32], scored: NDArray[np.int64], reach: int, posts: Iterable[EarlierPost]
) -> CopiedShare:
    """What a text shares with posts.

    ids: its tokens, uint32[T]. reach: how many previous tokens decide a token's draw; a run has one token more, and
    COPIED_RUN at least. posts: the earlier posts, the most alike first.
    """
    length = max(reach + 1, COPIED_RUN)
    ends = set(scored.tolist())
    flagged_runs = [run for end, run in enumerate(_runs(ids, length), length - 1) if end in ends]
    copied, holding = np.zeros(len(flagged_runs), bool), list[tuple[int, EarlierPost]]()
    for post in posts:
        runs = set(_runs(post.ids, length))
        shared = np.array([run in runs for run in flagged_runs], bool)
        copied |= shared
        holding += [(int(shared.sum()), post)] if shared.any() else []
    if not holding:
        return CopiedShare(0.0, 0, 0)
    _, most = max(holding, key=lambda one: one[0])  # of equal ones the first, which is the most alike
    accounts = {post.account_id for _, post in holding}
    return CopiedShare(float(copied.mean()), len(holding), len(accounts), most.path, most.row)


def _runs(ids: NDArray[np.uint32], length: int) -> list[bytes]:
    data = np.ascontiguousarray(ids, "<u4").tobytes()
    return [data[4 * at : 4 * (at + length)] for at in range(len(ids) - length + 1)]

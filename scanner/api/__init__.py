"""Define the contents of `import brickscan`: an opened registry, which scores and marks texts, a scan, and its tables.

The package itself is in brickscan/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from scanner import results as queries
from scanner.errors import Refused
from scanner.registry import Holders, find_key, load_registry, verified_rows, verified_users, verify_since
from scanner.registry.keys import open_key_to_mark
from scanner.results.transactions import ResultsPath
from scanner.storage.locations import is_uri

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from scanner.cluster.scan import ScanOutcome
    from scanner.evidence.explanation import Explanation
    from scanner.watermark import Watermark


@dataclass(frozen=True)
class TextVerdict:
    """The verdict on one text, as in schemas.tables.VERDICTS.

    status: scored, scored_in_part, too_short or filtered.
    users: users for whom the text is marked, the strongest evidence first. Empty: no user is named, and `naming` says
        why.
    log10_p: of the key with the smallest p, corrected for all messages of all keys. None: there is no p-value.
    key_id: key of that p.
    message: message of that p.
    scored: number of scored tokens.
    proof: how a flag was computed a second time. None: there is no flag.
    """

    status: str
    flagged: bool
    users: tuple[str, ...]
    naming: str
    log10_p: float | None
    key_id: str | None
    message: int | None
    tokens: int
    scored: int
    proof: str | None

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "TextVerdict":
        """Make the verdict from a row."""
        users = (entry["user_id"] for entry in row["named"] or ())
        shared: dict[str, Any] = {name: row[name] for name in cls.__annotations__ if name not in ("users", "log10_p")}
        return cls(users=tuple(user for user in users if user is not None), log10_p=row["log10_p_global"], **shared)


@dataclass(frozen=True)
class TextVerdicts(Sequence[TextVerdict]):
    """Verdicts in the order of their texts.

    rows: rows as in schemas.tables.VERDICTS, exact. `row` is the place of the text.
    """

    rows: "pa.RecordBatch"

    @cached_property
    def frame(self) -> "pl.DataFrame":
        """Return a frame of polars, one row a text, with the columns of schemas.tables.VERDICTS."""
        import polars as pl

        return pl.DataFrame(self.rows)

    @cached_property
    def _verdicts(self) -> tuple[TextVerdict, ...]:
        return tuple(map(TextVerdict.of_row, self.rows.to_pylist()))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> TextVerdict: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TextVerdict, ...]: ...
    def __getitem__(self, index: int | slice) -> TextVerdict | tuple[TextVerdict, ...]:
        return self._verdicts[index]

    def __iter__(self) -> Iterator[TextVerdict]:
        return iter(self._verdicts)


class OpenedRegistry:
    """The keys of a registry, opened once, for a program that checks or marks many texts. See `open`."""

    def __init__(self, registry: Path | str, keys: Sequence[str], false_positive_rate: float) -> None:
        from scanner.detection.one_text import OpenedCheck, TextCheck  # late: reading tables needs no kernel
        from scanner.results.registry_record import refuse_lost_events_beside, users_beside

        self._folder = registry
        check = TextCheck.of_registry(registry, tuple(keys), false_positive_rate)
        # verify here, not when a user is named: libraries of tables end a process that was forked since
        self._record = verify_since(registry, users_beside(registry))
        refuse_lost_events_beside(registry, check.keys)
        users = partial(verified_users, registry, self._record)
        holders = Holders(registry, [key.key_id for key in check.keys], users(), users)
        self._check = OpenedCheck(check, holders, reader="program")

    @overload
    def check(self, texts: str) -> TextVerdict: ...
    @overload
    def check(self, texts: list[str] | tuple[str, ...]) -> TextVerdicts: ...
    def check(self, texts: str | list[str] | tuple[str, ...]) -> TextVerdict | TextVerdicts:
        """Check a text, or several, as a scan with these keys does under the scan.toml of `brickscan init`.

        The text is checked as it is, normalised, and in parts. Nothing is written.

        A user is named even if they got their message after the text was written, because a text does not show its age.

        Returns:
            The verdict on one text. For several texts, a sequence with a frame. A text with half of a surrogate pair,
            which is no character, is scored without it, with the status `scored_in_part`.

        Raises:
            Refused: the argument is neither a text nor a list of texts.
        """
        several = [texts] if isinstance(texts, str) else _listed("texts", texts)
        found = self._check.score_batch([text.encode("utf-8", "surrogatepass") for text in several])
        verdicts = TextVerdicts(found.verdicts)
        return verdicts[0] if isinstance(texts, str) else verdicts

    def mark(self, key_id: str) -> "Watermark":
        """Return the mark of a key, for a logits processor. Its repr hides the secret, and it cannot be pickled.

        Raises:
            Refused: the registry has no such key. Or, for a key of version 3, the registry cannot be written, so nobody
                who makes a claim would know of this mark.
            SecretError: the secret of the key cannot be read.
        """
        return open_key_to_mark(self._folder, find_key(load_registry(self._folder), key_id))

    def messages(self, key_id: str, users: Sequence[str]) -> dict[str, int]:
        """Return the messages of users under a key. Users without a message are left out.

        Raises:
            Refused: the registry has no such key, `users` is no list of ids, or another program than brickscan changed
                the registry's users.
        """
        find_key(load_registry(self._folder), key_id)
        ids = _listed("users", users)
        rows = verified_rows(self._folder, self._record, lambda users: users.rows_of_users(ids, [key_id]))
        return dict(rows.filter(rows["removed_at"].is_null())["user_id", "message"].iter_rows())


def open(registry: Path | str, keys: Sequence[str] = (), false_positive_rate: float = 1e-6) -> OpenedRegistry:  # noqa: A001
    """Open the keys of a registry, its tokenizers and users.

    Args:
        registry: its folder or URI.
        keys: ids of the keys to check. Empty: all keys that are under test. p-values are corrected for all of them.
        false_positive_rate: share of unmarked texts that may be flagged.

    Raises:
        Refused: there is no registry, or no such key, or an argument cannot be right.
        SecretError: the secret of a key cannot be read.
        TokenizerError: the tokenizer of a key cannot be opened.
    """
    if not isinstance(false_positive_rate, float | int) or not 0.0 < false_positive_rate < 1.0:
        raise Refused(f"false_positive_rate: {false_positive_rate!r}: give a rate between 0 and 1, such as 1e-6")
    if not isinstance(registry, str | Path):
        raise Refused(f"registry: {type(registry).__name__}: give the folder or URI of a registry, as text or a Path")
    # absolute, because the program may change its working folder, and the registry is read again each minute
    path = registry if is_uri(str(registry)) else Path(registry).absolute()
    return OpenedRegistry(path, _listed("keys", keys), false_positive_rate)


def _listed(name: str, values: Sequence[str]) -> Sequence[str]:
    """Return values that are a list or tuple of texts.

    Raises:
        Refused: they are something else. For example, a single text would be taken for the list of its letters.
    """
    if not isinstance(values, list | tuple):
        raise Refused(f"{name}: {type(values).__name__}: give a list of texts (of a column of polars: its to_list())")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise Refused(f"{name}: entry {index} is of type {type(value).__name__}; each must be a text (str)")
    return values


class ResultTables:
    """The tables of results as lazy frames of polars, with the newest state of each document. See `results`."""

    def __init__(self, path: ResultsPath) -> None:
        self._path = path

    @property
    def verdicts(self) -> "pl.LazyFrame":
        """Return one row for each document that was read."""
        return queries.verdicts(self._path)

    @property
    def flagged(self) -> "pl.LazyFrame":
        """Return flagged documents, newest first, with exact p-values, names and the state of their audit."""
        return queries.flagged(self._path)

    @property
    def spans(self) -> "pl.LazyFrame":
        """Return parts of texts that are marked by themselves."""
        return queries.spans(self._path)

    @property
    def accounts(self) -> "pl.LazyFrame":
        """Return accounts whose posts together are marked."""
        return queries.accounts(self._path)

    @property
    def quarantine(self) -> "pl.LazyFrame":
        """Return rows that could not be scored, with the reasons."""
        return queries.quarantine(self._path)

    @property
    def nights(self) -> "pl.LazyFrame":
        """Return totals by the date of the data, newest first."""
        return queries.nights(self._path)

    @property
    def scans(self) -> "pl.LazyFrame":
        """Return all scans, oldest first."""
        return queries.scans(self._path)

    @property
    def audits(self) -> "pl.LazyFrame":
        """Return audits of the false-positive rate."""
        return queries.audits(self._path)

    @property
    def decisions(self) -> "pl.LazyFrame":
        """Return people's decisions on flags, oldest first."""
        return queries.decisions(self._path)


def results(path: ResultsPath) -> ResultTables:
    """Return the tables of results. A table that no scan has written raises Refused when it is used.

    Args:
        path: folder or URI of the results, or the file of the scan's configuration.
    """
    return ResultTables(path)


def scan(config: Path | str, night: date | None = None) -> "ScanOutcome":
    """Scan the configured input, without documents that are committed already, as `brickscan scan` does, on Ray.

    Args:
        config: the file of the scan's configuration.
        night: replaces `{date}` in it.

    Returns:
        The outcome of the scan. Its `exit_code` is that of the command.

    Raises:
        Refused: the configuration or input cannot be right.
        TableError: a table of results is not as it was signed.
        ScanFailed: the work had to stop. Everything committed stays.
    """
    from scanner.cluster.scan import run_scan
    from scanner.scan_plan import make_plan

    return run_scan(make_plan(Path(config), night), lambda work, totals: None)


def explain(path: Path | str, document: str) -> "Explanation":
    """Explain one flag: the evidence, its place in the text, and the registry's record.

    Args:
        path: the file of the scan's configuration. Or a folder or URI of results. The text is then not shown.
        document: id of a document, or PATH:ROW.

    Raises:
        Refused: there is no such flag.
    """
    from scanner.evidence.explainer import Explainer

    return Explainer(Path(path) if Path(path).is_file() else path).explain(document)

"""Define types that the detector shares with its callers, and lead from a message to a user.

Three questions lead there: which text counts, which users its messages name, and since when the document existed.

A message that a user got after a document existed was not marked for that user. A document's own time may be wrong, and
a scan of today meets documents of years ago. So the earliest of these times counts:

- the document's own time, or that of its file if it has none
- the time when a scan first had this file
- the time when a scan first flagged this text, in whichever place

The time of another copy does not count, because a person who posts a copy may choose it.

Two messages of one user are one user (SPEC_3 §4). A text can be under two keys of one user, for example where one key
replaces another. Then it names that user. This also holds under keys of version 1, where several messages that pass
name no user.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.registry import NamedUser
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.format import LeavesOut
from scanner.watermark.parts import Parts, Span
from scanner.watermark.rule import Decision, KeyFindings, decide, replace_findings
from schemas.registry import MasterKey
from schemas.words import Naming

if TYPE_CHECKING:
    from scanner.text import Tokenizer  # late: reading results needs no tokenizer


class NamesUsers(Protocol):
    """An object that tells who holds a message, as scanner.registry.Holders does."""

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """Return the user whom a message names, for a document that existed at `at`."""


class BatchOrigin(NamedTuple):
    """The origin of a batch, as in each of its rows."""

    scan_id: str
    shard_id: str
    path: str


def stay_on_cpu(mark: Watermark) -> Watermark:
    """Score a watermark on the CPU."""
    return mark


@dataclass(frozen=True)
class OpenedKey:
    """A key of the registry, opened, with its tokenizer and the function that moves its watermark to its device.

    shown: buckets whose positions are left out because their seeds were shown, int64 in ascending order.
    """

    key: MasterKey
    watermark: Watermark
    tokenizer: "Tokenizer"
    to_device: Callable[[Watermark], Watermark] = stay_on_cpu
    shown: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False)

    def leave_out(self, shown: NDArray[np.int64]) -> "OpenedKey":
        """Return this key without the positions of shown buckets, int64 in ascending order.

        They include all that were shown before.
        """
        mark = self.watermark.leave_out(shown) if isinstance(self.watermark, LeavesOut) else self.watermark
        return replace(self, watermark=mark, shown=shown)

    def under(self, mark: Watermark) -> "OpenedKey":
        """Return this key with another mark, a decoy's. The mark leaves out the same buckets as this one."""
        mark = mark.leave_out(self.shown) if isinstance(mark, LeavesOut) else mark
        return replace(self, watermark=self.to_device(mark))

    @functools.cached_property
    def basis(self) -> str:
        """Return the basis of its p-values, as tables have it."""
        return str(self.watermark.basis)

    @functools.cached_property
    def log10_reach(self) -> float:
        """Return log10 of the smallest p-value that it may state.

        Its admission sets it if its law is assumed, else it is −∞.
        """
        admission = self.key.admission
        return math.log10(admission.holds_down_to) if self.watermark.basis.assumed and admission else -math.inf


class KeyPositions(NamedTuple):
    """The positions that one key scores in D documents of a batch, and the places of these documents, int64[D].

    spans: spans in these documents, where they are looked for.
    parts: the tested parts. None: none.
    """

    opened_key: OpenedKey
    tokens: Tokens
    positions: Positions
    documents: NDArray[np.int64]
    spans: list[Span] = []  # noqa: RUF012 - nobody changes it
    parts: Parts | None = None

    @property
    def has_parts(self) -> NDArray[np.bool_]:
        """Return which documents of the batch have parts that are tested: bool[all]."""
        has_parts = np.zeros(len(self.tokens.offsets) - 1, np.bool_)
        if self.parts is not None:
            has_parts[self.documents] = self.parts.exist_in(self.positions.scored)
        return has_parts


class BatchResult(NamedTuple):
    """VERDICTS and QUARANTINE of a batch.

    Together they have one row for every document, each in the order of the batch.

    Verdicts are exact, without text_id and p_class. scanner.detection.rows turns them into the rows of tables.

    lengths: int64 columns about each verdict's text as written: row, tokens, scored and shown, under the first key that
        scored it, else the first key. They depend on no score. For each key with shown seeds, `scored:KEY` and
        `shown:KEY` have the same under that key.
    spans: rows of schemas.tables.SPANS, with `keys` left empty.
    """

    verdicts: pa.RecordBatch
    quarantine: pa.RecordBatch
    lengths: pa.RecordBatch
    spans: pa.RecordBatch


class ScoreObserver(Protocol):
    """An object that is shown the scores while they are made, as the controls of a scan are (scanner.controls)."""

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Take a batch: SHA-256 of its texts, the scores of each key, and the texts as they were read, by place.

        For accounts, each account counts as a text: SHA-256 of its name, and all of its posts as one text.
        """


class DocumentSpan(NamedTuple):
    """A span of a document of a batch: the place of its key, and its first and last scored token in the document."""

    document: int
    key: int
    first: int
    last: int
    span: Span

    def characters(self, token_characters: NDArray[np.int64]) -> tuple[int, int]:
        """Return the first character and the one after the last.

        token_characters: these two for each token of the document, int64[N, 2].
        """
        return int(token_characters[self.first, 0]), int(token_characters[self.last, 1])


class EarlierScans(NamedTuple):
    """Times that a scan knows when it begins.

    began: when it began, before it listed its files.
    files: for each path, when an earlier scan had the same file.
    texts: for each SHA-256, when an earlier scan flagged the text.
    """

    began: datetime
    files: Mapping[str, datetime]
    texts: Mapping[bytes, datetime]


class FileHistory(NamedTuple):
    """Times that are known about a file's documents, without their own times.

    began, texts: as in EarlierScans.
    first_scanned: when an earlier scan had the file. None: never.
    written: when the file was modified. None: its filesystem does not tell.
    """

    began: datetime
    texts: Mapping[bytes, datetime]
    first_scanned: datetime | None
    written: datetime | None

    def existed_by(self, created_at: datetime | None, text: bytes) -> datetime | None:
        """Return the earliest time at which a document is known to have existed.

        None: nothing shows that it existed before the scan began.
        """
        times = (self.written if created_at is None else created_at, self.first_scanned, self.texts.get(text))
        first = min((time for time in times if time is not None), default=self.began)
        return first if first < self.began else None


class NamedMessage(NamedTuple):
    """A message that may be named: its key's id, its corrected log10 p, and the user whom it names."""

    key_id: str
    message: int
    log10_p_global: float
    user: NamedUser

    def row(self) -> dict[str, Any]:
        """Return it as in schemas.tables.NAMED."""
        ids = {"key_id": self.key_id, "message": self.message, "log10_p_global": self.log10_p_global}
        return ids | {"user_id": self.user.user_id, "naming": self.user.naming}


class NameColumns(NamedTuple):
    """Columns of VERDICTS of D documents, object[D] each."""

    naming: NDArray[np.object_]
    user_id: NDArray[np.object_]
    first_seen_at: NDArray[np.object_]
    held_since: NDArray[np.object_]
    named: NDArray[np.object_]
    further_messages: NDArray[np.object_]

    @classmethod
    def of_nobody(cls, naming: NDArray[np.object_]) -> "NameColumns":
        """Make the columns in which no user is named yet."""
        return cls(naming.copy(), *(np.full(len(naming), None) for _ in cls._fields[1:]))

    @property
    def first_row(self) -> dict[str, Any]:
        """Return the columns of the first document."""
        return {column: values[0] for column, values in self._asdict().items()}

    def name_users(
        self, document: int, entries: Sequence[NamedMessage], existed_by: datetime | None, began: datetime
    ) -> None:
        """Name users for a document.

        entries: entries of the document, the verdict's own first.
        existed_by: time by which it existed. None: it is not known to exist before the scan.
        """
        user = entries[0].user
        later = began if user.naming == Naming.HELD_LATER else None
        # replaces the rule's own word, which is `undecided` where an account is named
        self.naming[document], self.user_id[document], self.held_since[document] = user
        self.first_seen_at[document] = existed_by or later
        self.named[document], self.further_messages[document] = each_user_once(entries)


def each_user_once(
    entries: Iterable[NamedMessage],
    first_before: Iterable[dict[str, Any]] = (),
    further_before: Iterable[dict[str, Any]] = (),
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return `named` and `further_messages` of VERDICTS: the first entry of each user, and further ones.

    `further_messages` is None if there are no further ones.

    first_before, further_before: entries that come before these.
    """
    first, further = [*first_before], [*further_before]
    users = {row["user_id"] for row in first}
    for entry in entries:
        user = entry.user.user_id  # two messages that name no user may belong to two
        (further if user is not None and user in users else first).append(entry.row())
        users.add(user)
    return first, further or None


class TextOutcomes(NamedTuple):
    """For each of D documents: the text that counts, as written or normalised, its findings, and the decision.

    conflicting: bool[D], whether another message passes in the other text, so that no user is named.
    """

    findings: Sequence[KeyFindings]
    decision: Decision
    normalised: NDArray[np.bool_]
    conflicting: NDArray[np.bool_]

    @classmethod
    def of_stored_texts(cls, key_findings: Sequence[KeyFindings], rates: tuple[float, float]) -> "TextOutcomes":
        """Judge the texts as they are written.

        rates: a p at or below the first flags a text, at or below the second names its user.
        """
        nowhere = np.zeros(len(key_findings[0].scored), np.bool_)
        return cls(key_findings, decide(key_findings, *rates), nowhere, nowhere)

    def with_normalised(
        self, others: Sequence[KeyFindings], rows: NDArray[np.int64], rates: tuple[float, float]
    ) -> "TextOutcomes":
        """Choose for each document the text with the smaller p.

        A key whose law is assumed has no say on normalised texts, because it was not audited on them.

        Args:
            others: findings of each key in the normalised texts of V documents.
            rows: int64[V], the places of these documents among the D.
            rates: as for `of_stored_texts`.
        """
        others = [findings.of_nothing() if findings.basis.assumed else findings for findings in others]
        smaller = _smallest(others) < _smallest(self.findings)[rows]
        chosen = [
            replace_findings(first, other, rows, smaller) for first, other in zip(self.findings, others, strict=True)
        ]
        decision, of_others = decide(chosen, *rates), TextOutcomes.of_stored_texts(others, rates)
        normalised, conflicting = self.normalised.copy(), self.conflicting.copy()
        normalised[rows] = smaller
        for place, row in enumerate(rows.tolist()):
            if (
                self.decision.flagged[row]
                and of_others.decision.flagged[place]
                and not chosen[decision.key[row]].independent
            ):
                conflicting[row] = len(self.messages(row) | of_others.messages(place)) > 1
        ambiguous = conflicting & (decision.naming == Naming.NAMED)
        naming = np.where(ambiguous, Naming.AMBIGUOUS, decision.naming)
        return TextOutcomes(chosen, decision._replace(naming=naming), normalised, conflicting)

    def messages(self, document: int) -> set[tuple[int, int]]:
        """Return the messages of a document that pass, each with the place of its key."""
        return {
            (key, int(findings.message[document, c]))
            for key, (findings, passing) in enumerate(zip(self.findings, self.decision.passing, strict=True))
            for c in np.flatnonzero(passing[document])
        }

    def entries(self, document: int, naming: Naming, user_of: "UserOfMessage") -> list[NamedMessage]:
        """Return the users whom a document is named for: by the messages that the rule names, or by all that pass.

        The verdict's message comes first. All messages that pass are named only if one user had all of them in time,
        and each of their keys may name users.

        Args:
            document: its place.
            naming: naming of the document, by its decision and its proof.
            user_of: returns key id and named user for the place of a key and a message.
        """
        best = int(self.decision.key[document]), int(self.decision.candidate[document])
        if naming == Naming.NAMED:
            return name_candidates(self.findings, self.decision.named, document, best, user_of)
        if naming != Naming.AMBIGUOUS or self.conflicting[document]:
            return []
        key_outcomes = zip(self.findings, self.decision.passing, strict=True)
        if any(findings.basis.assumed and passing[document].any() for findings, passing in key_outcomes):
            return []
        entries = name_candidates(self.findings, self.decision.passing, document, best, user_of)
        return entries if of_one_user(entries) else []


def _smallest(key_findings: Sequence[KeyFindings]) -> NDArray[np.float64]:
    """Return the smallest corrected log10 p of D documents under any key, float64[D]. ∞ where there is none."""
    p = np.stack(
        [np.where(findings.message[:, 0] >= 0, findings.log10_p_global[:, 0], np.nan) for findings in key_findings]
    )
    return np.asarray(np.where(np.isnan(p), np.inf, p).min(axis=0), np.float64)


UserOfMessage = Callable[[int, int], tuple[str, NamedUser]]
"""A function that returns the id of a key and the user whom a message names, for the key's place and the message."""


def name_candidates(
    key_findings: Sequence[KeyFindings],
    chosen: Sequence[NDArray[np.bool_]],
    document: int,
    best: tuple[int, int],
    user_of: UserOfMessage,
) -> list[NamedMessage]:
    """Return some candidates of a document as entries: the verdict's first, then the others by p, smallest first.

    Args:
        key_findings: findings of each key.
        chosen: candidates of each key, bool[D, C].
        document: its place.
        best: key, by its place, and candidate of the verdict.
        user_of: returns key id and named user for the place of a key and a message.
    """
    # False sorts before True, so the verdict's candidate comes first
    candidates = sorted(
        ((key, c) != best, float(findings.log10_p_global[document, c]), key, c)
        for key, (findings, is_chosen) in enumerate(zip(key_findings, chosen, strict=True))
        for c in np.flatnonzero(is_chosen[document]).tolist()
    )
    entries = []
    for _, log10_p, key, c in candidates:
        message = int(key_findings[key].message[document, c])
        key_id, named = user_of(key, message)
        entries.append(NamedMessage(key_id, message, log10_p, named))
    return entries


def users_at(keys: Sequence[OpenedKey], holders: NamesUsers, at: datetime) -> UserOfMessage:
    """Return a function that names users for a document that existed at `at`.

    For the place of a key and a message it returns the key id and the named user.
    """

    def user_of(key: int, message: int) -> tuple[str, NamedUser]:
        master_key = keys[key].key
        named = holders.naming(master_key.key_id, message, at)
        if master_key.messages == 1 and named.naming == Naming.UNALLOCATED:
            named = named._replace(naming=Naming.EVERYBODY)
        return master_key.key_id, named

    return user_of


def of_one_user(entries: Sequence[NamedMessage]) -> bool:
    """Return whether all messages belong to one user, who had them in time."""
    return all(entry.user.naming == Naming.NAMED for entry in entries) and (
        len({entry.user.user_id for entry in entries}) == 1
    )

"""Make rows of verdicts: exact columns from the findings of keys, and the rows that tables show to everybody.

A person who knows texts and their exact scores learns the key. The difference of two sums over nearly the same n-grams
is a draw. At h = 0 enough sums are equations whose solution is the green list. The best key or message of a text also
reveals some of it. So rows of `verdicts` state only flags and their users, and otherwise a class of p that few unmarked
texts leave. A public digest of a short post would reveal whether a guessed post was there, so rows have a keyed digest.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.detection.attribution import BatchOrigin, OpenedKey, TextOutcomes
from scanner.input.documents import Identity
from scanner.watermark.rule import KeyFindings, corrected
from schemas.registry import Canary
from schemas.tables import DECADES, FLAG_TEXTS, FLAGS, QUARANTINE, SPANS, VERDICTS
from schemas.words import Naming

_STATUSES = np.array(["scored", "scored_in_part", "filtered", "too_short"], object)


def verdict_columns(
    keys: Sequence[OpenedKey],
    lengths: NDArray[np.int64],
    shown: NDArray[np.int64],
    outcomes: TextOutcomes,
    reason: pa.Array,
    whole_is_enough: NDArray[np.bool_],
) -> dict[str, Any]:
    """Return columns of VERDICTS on D texts, without the columns of ids, spans and flags.

    In `naming`, `named` means that a message is to be named (`decide`).

    Args:
        keys: the keys under test.
        lengths: tokens under each key, int64[keys, D].
        shown: positions that each key left out because their seeds were shown, int64[keys, D].
        outcomes: the texts that count, and the findings of keys in them.
        reason: reason why only a part was scored.
        whole_is_enough: bool[D], whether a text is long enough for a key if nothing is left out.
    """
    key_findings, decision, normalised = outcomes.findings, outcomes.decision, outcomes.normalised
    chosen, naming, rows = decision.key, decision.naming, np.arange(len(decision.key))
    runner_up = np.where(decision.candidate == 0, 1, 0)

    # a key with fewer candidates in every document is never chosen for such a place
    places = [np.minimum(decision.candidate, findings.message.shape[1] - 1) for findings in key_findings]

    def choose_key(values: Iterable[NDArray[Any]]) -> NDArray[Any]:
        first, *others = values
        return np.stack([first, *others])[chosen, rows] if others else first

    def choose_candidate(values: Iterable[NDArray[Any]]) -> NDArray[Any]:
        return choose_key(values_of_key[rows, place] for values_of_key, place in zip(values, places, strict=True))

    tested = choose_key(findings.correction for findings in key_findings)
    reach = np.array([opened_key.log10_reach for opened_key in keys], np.float64)[chosen]
    reach_global = corrected(reach, 1, tested) if np.isfinite(reach).any() else reach

    message = choose_candidate(findings.message for findings in key_findings)
    scored, in_part = message >= 0, reason.is_valid().to_numpy(zero_copy_only=False)
    return {
        "status": _STATUSES[np.where(scored, in_part, np.where(whole_is_enough, 2, 3))],
        "tokens": choose_key(lengths),
        "scored": choose_key(findings.scored for findings in key_findings),
        "shown": np.where(scored, choose_key(shown), shown.max(axis=0)),
        "key_id": np.array([opened_key.key.key_id for opened_key in keys], object)[chosen],
        # undecided: no message is shown, because the best may be a stranger's
        "message": pa.array(message, mask=~scored | (naming == Naming.UNDECIDED)),
        "naming": naming,
        "score": choose_candidate(findings.score for findings in key_findings),
        # p = 1 for texts that are not scored
        "log10_p": _p_values(
            np.where(scored, choose_candidate(findings.log10_p for findings in key_findings), 0.0), reach
        ),
        "log10_p_global": _p_values(
            np.where(scored, choose_candidate(findings.log10_p_global for findings in key_findings), 0.0), reach_global
        ),
        "runner_up_log10_p": _p_values(
            choose_key(findings.log10_p[rows, runner_up] for findings in key_findings), reach
        ),
        "runner_up_log10_p_global": _p_values(
            choose_key(findings.log10_p_global[rows, runner_up] for findings in key_findings), reach_global
        ),
        "messages_tested": np.array([opened_key.key.messages for opened_key in keys])[chosen],
        "correction": tested,
        "flagged": decision.flagged,
        "basis": np.array([opened_key.basis for opened_key in keys], object)[chosen],
        "p_rank": _p_values(choose_candidate(findings.p_rank for findings in key_findings)),
        "variant": pa.array(np.full(len(chosen), "normalised"), mask=~normalised),
    }


def plain_lengths(
    keys: Sequence[OpenedKey], rows: pa.Array, sizes: NDArray[np.int64], key_findings: Sequence[KeyFindings]
) -> pa.RecordBatch:
    """Return `lengths` of BatchResult, of D rows and their tokens and `shown` under all keys, int64[2, keys, D]."""
    is_scored = np.stack([findings.message[:, 0] >= 0 for findings in key_findings])
    first, scored = np.argmax(is_scored, axis=0), np.stack([findings.scored for findings in key_findings])
    (lengths, shown), place = sizes, (first, np.arange(len(first)))
    columns = {
        "row": rows,
        "tokens": lengths[place],
        "scored": scored[place],
        "shown": np.where(is_scored.any(axis=0), shown[place], shown.max(axis=0)),
    }
    for number, opened_key in enumerate(keys):
        if len(opened_key.shown):
            key_id = opened_key.key.key_id
            columns |= {f"scored:{key_id}": scored[number], f"shown:{key_id}": shown[number]}
    return pa.RecordBatch.from_pydict(columns)


def table_of(
    schema: pa.Schema, documents: pa.RecordBatch, origin: BatchOrigin, now: datetime, columns: dict[str, Any]
) -> pa.RecordBatch:
    """Return rows of a schema: given columns, the documents' columns, and values shared by all rows.

    Others are null.
    """
    count, types = len(documents), dict(zip(schema.names, schema.types, strict=True))
    values = dict.fromkeys(types) | dict(zip(documents.schema.names, documents.columns, strict=True)) | columns
    for name, shared in zip((*origin._fields, "scanned_at"), (*origin, now), strict=True):
        values[name] = pa.repeat(pa.scalar(shared, types[name]), count)
    arrays = []
    for name, data_type in types.items():
        value = values[name]
        if value is None:
            value = pa.nulls(count, data_type)
        arrays.append(value if isinstance(value, pa.Array) else pa.array(value, data_type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _p_values(log10_p: NDArray[np.float64], reach: NDArray[np.float64] | float = -np.inf) -> pa.Array:
    """Return p-values as tables have them: null where there is none, and none smaller than a key's reach."""
    return pa.array(np.maximum(log10_p, reach), mask=np.isnan(log10_p))


EXACT_COLUMNS = (
    "text_sha256",
    "sketch",
    "score",
    "log10_p",
    "log10_p_global",
    "runner_up_log10_p",
    "runner_up_log10_p_global",
    "p_rank",
)
"""Columns that are null in `verdicts`."""

OF_FLAGS = ("key_id", "message", "messages_tested", "correction", "basis", "variant", "look")
"""Columns that are null in `verdicts` unless the row is flagged. They reveal which score was the best."""


class TextIds:
    """Keyed digests of texts. It holds the audit secret, which no repr shows, and refuses to be pickled.

    secret: 16 to 64 bytes.
    lasting: the registry's first audit secret, for comparisons with earlier nights. None: `secret`.
    """

    def __init__(self, secret: bytes, lasting: bytes | None = None) -> None:
        self._secret, self._lasting = secret, secret if lasting is None else lasting

    def __reduce__(self) -> str:
        raise TypeError("what holds the audit secret is not pickled: open it where it is needed")

    def of(self, sha256: pa.Array) -> pa.Array:
        """Return 16 bytes for each SHA-256 of a text. The same text has the same bytes in every scan."""
        return pa.array(self._digests(sha256, b"text-id-v1"), pa.binary())

    def for_audit(self, sha256: pa.Array) -> list[bytes]:
        """Return digests under another key, so that rows of an audit cannot be joined with verdicts."""
        return list(self._digests(sha256, b"text-audit-v1"))

    def for_model_pass(self, digests: Sequence[bytes]) -> NDArray[np.float64]:
        """Return a number from 0 to 1 for each text, by its SHA-256: float64[D].

        If it is below the share, a model may read the text.
        """
        drawn = b"".join(self._digests(pa.array(digests, pa.binary()), b"text-weighed-v1"))
        return np.frombuffer(drawn, "<u8")[::2] / 2.0**64

    def for_filter(self, text: bytes) -> bytes:
        """Return 16 bytes by which a stored text is drawn for a filter of n-grams.

        A copy of the text has the same bytes.
        """
        return hashlib.blake2b(text, key=self._lasting, digest_size=16, person=b"filter-text-v1").digest()

    def ngram_secret(self) -> bytes:
        """Return the secret under which a filter hashes n-grams (scanner.ngram_filter.common_ngrams): 32 bytes."""
        return hashlib.blake2b(b"", key=self._lasting, digest_size=32, person=b"ngram-filter-v1").digest()

    def of_accounts(self, account_ids: pa.Array) -> pa.Array:
        """Return int64 digests of accounts, spread evenly.

        Accounts cannot choose ids with digests that come together.
        """
        accounts = pa.array([account.encode() for account in account_ids.to_pylist()])
        made = self._digests(accounts, b"accounts-v1", self._lasting)
        return pa.array([int.from_bytes(digest[:8], "little", signed=True) for digest in made], pa.int64())

    def _digests(self, sha256: pa.Array, person: bytes, key: bytes | None = None) -> Iterator[bytes]:
        for digest in sha256.to_pylist():
            yield hashlib.blake2b(digest, key=key or self._secret, digest_size=16, person=person).digest()


def p_class(log10_p: pa.Array) -> pa.Array:
    """Return classes of p, int64: k where 10^(-DECADES·(k+1)) < p ≤ 10^(-DECADES·k). Null where p is null."""
    p, absent = log10_p.to_numpy(zero_copy_only=False), log10_p.is_null().to_numpy(zero_copy_only=False)
    return pa.array(np.floor(np.abs(np.where(absent, 0.0, p)) / DECADES).astype(np.int64), mask=absent)


def with_canaries(exact: pa.RecordBatch, canaries: Collection[Canary]) -> pa.RecordBatch:
    """Fill `canary` in exact rows of VERDICTS.

    It tells whether a flagged text belongs to a canary of the registry, under its own account and named right.
    """
    marks = {(canary.key_id, canary.message, canary.account_id, canary.account_id) for canary in canaries}
    rows = exact.select(["key_id", "message", "user_id", "account_id"]).to_pylist()
    are = [tuple(row.values()) in marks for row in rows]
    return _replaced(exact, {"canary": pc.if_else(exact["flagged"], pa.array(are, pa.bool_()), None)})


def with_ids(exact: pa.RecordBatch, ids: TextIds) -> pa.RecordBatch:
    """Fill text_id and p_class in exact rows of VERDICTS."""
    return _replaced(exact, {"text_id": ids.of(exact["text_sha256"]), "p_class": p_class(exact["log10_p_global"])})


def for_everybody(exact: pa.RecordBatch, lengths: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of VERDICTS from which no key can be learned.

    lengths: lengths of their texts, as scanner.detection.attribution.BatchResult has them.
    """
    flagged = exact["flagged"]
    changed = {name: pa.nulls(len(exact), VERDICTS.field(name).type) for name in EXACT_COLUMNS}
    changed |= {name: pc.if_else(flagged, exact[name], None) for name in OF_FLAGS}
    changed |= {name: pc.if_else(flagged, exact[name], lengths[name]) for name in ("tokens", "scored", "shown")}
    # a count by `flagged` then equals that of all lists; `flags` keeps the row, and `canary` says what it is
    changed["flagged"] = pc.and_not_kleene(flagged, pc.fill_null(exact["canary"], False))
    some_named = [name for name in ("named", "further_messages") if exact[name].null_count < len(exact)]
    changed |= {name: _without_p(exact[name]) for name in some_named}
    return _replaced(exact, changed)


def flagged_rows(exact: pa.RecordBatch, keys: str) -> pa.RecordBatch:
    """Return rows of FLAGS: the flagged rows of `with_ids`.

    keys: as in schemas.tables.SHARDS.
    """
    rows = exact.filter(exact["flagged"])
    return pa.RecordBatch.from_arrays([pa.repeat(keys, len(rows)), *rows.columns], schema=FLAGS)


def span_rows(spans: pa.RecordBatch, keys: str) -> pa.RecordBatch:
    """Return rows of SPANS with the keys that were under test.

    keys: as in schemas.tables.SHARDS.
    """
    return spans.set_column(0, SPANS.field("keys"), pa.array([keys] * len(spans), pa.string()))


def texts_of_flags(documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of FLAG_TEXTS.

    verdicts: exact rows of VERDICTS on some of the documents, in their order.
    """
    flags = verdicts.filter(verdicts["flagged"])
    named = flags.select(["user_id", "named", "further_messages"]).to_pylist()
    columns = {name: flags[name] for name in FLAG_TEXTS.names if name in flags.schema.names}
    columns["user_ids"] = pa.array(map(_who, named), FLAG_TEXTS.field("user_ids").type)
    columns["text"] = documents.filter(pc.is_in(documents["row"], flags["row"]))["text"]
    return pa.RecordBatch.from_arrays([columns[name] for name in FLAG_TEXTS.names], schema=FLAG_TEXTS)


def quarantine_rows(
    origin: BatchOrigin, rows: Iterable[tuple[int | None, Identity]], reason: str, detail: str
) -> pa.RecordBatch:
    """Return rows of QUARANTINE that share a reason, each with its identity. A row of None means the whole file.

    Workers call it for rows that they read, and the driver for files at fault and documents that no worker survived.
    """
    shared = origin._asdict() | {"reason": reason, "detail": detail, "scanned_at": datetime.now(UTC)}
    return pa.RecordBatch.from_pylist(
        [shared | {"row": row} | identity._asdict() for row, identity in rows], QUARANTINE
    )


def _without_p(named: pa.Array) -> pa.Array:
    rows = [
        users_of_row and [user | {"log10_p_global": None} for user in users_of_row]
        for users_of_row in named.to_pylist()
    ]
    return pa.array(rows, named.type)


def _replaced(rows: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns.get(name, rows[name]) for name in rows.schema.names], schema=rows.schema)


def _who(row: Mapping[str, Any]) -> list[str]:
    also = {entry["user_id"] for name in ("named", "further_messages") for entry in row[name] or ()}
    return sorted((also | {row["user_id"]}) - {None})

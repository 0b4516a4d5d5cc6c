"""Spans of a batch: where they lie, which of them name somebody, their rows of SPANS, and what they change in verdicts.

A document is flagged by its spans too, which have their own share of its error. If it was not flagged as a whole, or
names nobody, its verdict becomes that of its best span, and `look` says so. Users of further spans stand beside it,
each named by the evidence of its own part. If a span, or the whole, differs when it is computed again, the verdict says
so and the document names nobody.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import (
    DocumentSpan,
    FileHistory,
    KeyPositions,
    NameColumns,
    NamedMessage,
    UserOfMessage,
    each_user_once,
)
from scanner.detection.proving import Prover
from scanner.detection.sketches import sketch
from scanner.text import HuggingFaceTokenizer
from scanner.text.quoting import parts_of, segments_of
from scanner.watermark.positions import reach_of
from scanner.watermark.rule import passes
from schemas.registry import MasterKey
from schemas.tables import SPANS, VERDICTS
from schemas.words import Naming, Proof


def namings(
    document_spans: Sequence[DocumentSpan],
    characters: Sequence[tuple[int, int]],
    misnaming_rate: float,
) -> list[Naming]:
    """Which spans of one document name their user, each by its own evidence: `named`, or why not.

    A span names its message if the message passes on what it shares with no other. Where one message's mark raises the
    scores of others, it names unless another message has a span in the same place: an overlap of at least half of the
    shorter span.
    characters: first character of each span, and the one after its last; misnaming_rate: largest p, on what a span
    shares with no other, at which it names.
    """
    whose = [(one.key, one.span.message) for one in document_spans]
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(whose))}
    messages = np.array([numbers[pair] for pair in whose], np.int64)
    begins, ends = np.array(characters, np.int64).reshape(-1, 2).T
    names = []
    for number, one in enumerate(document_spans):
        if not passes(one.span.log10_p_own, misnaming_rate):
            names.append(Naming.UNDECIDED)
        elif not one.span.independent and bool(
            (_in_one_place(begins, ends, number) & (messages != messages[number])).any()
        ):
            names.append(Naming.AMBIGUOUS)
        else:
            names.append(Naming.NAMED)
    return names


def _in_one_place(begins: NDArray[np.int64], ends: NDArray[np.int64], number: int) -> NDArray[np.bool_]:
    """Which of S places share at least half of the shorter place with a given one, by its number: bool[S]."""
    common = np.minimum(ends, ends[number]) - np.maximum(begins, begins[number])
    lengths = ends - begins
    return np.asarray(2 * common >= np.maximum(1, np.minimum(lengths, lengths[number])), np.bool_)


def quoted_shares(text: str, characters: Sequence[tuple[int, int]]) -> list[float]:
    """Share of the characters at some places of a text that are quotations by their form."""
    parts = [(part.begin, part.end) for part in parts_of(text) if part.kind == "quoted"]
    begins, ends = np.array(parts, np.int64).reshape(-1, 2).T
    sums = np.append(0, np.cumsum(ends - begins))

    def before(at: NDArray[np.int64]) -> NDArray[np.int64]:
        begun = np.searchsorted(begins, at)
        beyond = np.maximum(np.append(0, ends)[begun] - at, 0)
        return np.asarray(sums[begun] - beyond, np.int64)

    first, last = np.array(characters, np.int64).reshape(-1, 2).T
    shares: list[float] = ((before(last) - before(first)) / np.maximum(last - first, 1)).tolist()
    return shares


def located_spans(scores: Sequence[KeyPositions]) -> list[DocumentSpan]:
    """Every span that keys found in a batch, with the place of its tokens."""
    found = []
    for key, of_key in enumerate(scores):
        offsets, index = of_key.positions.offsets, of_key.positions.index
        for span in of_key.spans:
            document, begin = int(of_key.documents[span.document]), int(offsets[span.document])
            first, last = index[begin + span.begin], index[begin + span.end - 1]
            at = of_key.tokens.offsets[document]
            found.append(DocumentSpan(document, key, int(first - at), int(last - at), span))
    return found


@dataclass(frozen=True)
class ScoredBatch:
    """The documents of a batch by place, and the keys by place.

    scores: the scores of each key; documents: with their digests and times; text_of: gives a text as it stands; known:
    what is known of their file; users_at: gives key id and named user, by place of the key and message, for a document
    that existed then; prover: computes spans again, None: spans are not proved.
    """

    scores: Sequence[KeyPositions]
    documents: pa.RecordBatch
    text_of: Callable[[int], str]
    known: FileHistory
    users_at: Callable[[datetime], UserOfMessage]
    prover: Prover | None

    def existed_by(self, place: int) -> datetime | None:
        """Time by which a document existed; None: not known to exist before the scan."""
        latest, digest = (self.documents[name][place].as_py() for name in ("created_at_latest", "text_sha256"))
        return self.known.existed_by(latest, digest)

    def user_of(self, existed_by: datetime | None) -> UserOfMessage:
        """The named user by place of the key and message, in a document that existed then."""
        return self.users_at(existed_by or self.known.began)

    def sketch(self, place: int, key: int) -> bytes | None:
        """Sketch by which near-duplicates of a document are recognised."""
        tokens = self.scores[key].tokens
        ids = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]]
        return sketch(ids, reach_of(self.scores[key].opened_key.watermark.rule))

    def lengths(self, place: int, key: int) -> tuple[int, int]:
        """Tokens of a document, and how many are scored."""
        of_key = self.scores[key]
        scored = of_key.positions.scored[int(np.searchsorted(of_key.documents, place))]
        return int(of_key.tokens.offsets[place + 1] - of_key.tokens.offsets[place]), int(scored)

    def drawn(self, document_spans: Sequence[DocumentSpan], salt: bytes) -> set[int]:
        """Documents whose spans are computed again; salt: the batch's, as for Prover.prove."""
        if self.prover is None:
            return set()
        sizes: dict[int, int] = {}
        for place, key in {(one.document, one.key) for one in document_spans}:
            sizes[place] = sizes.get(place, 0) + self.lengths(place, key)[0]
        return self.prover.drawn(((place, self.text_of(place), size) for place, size in sizes.items()), salt)

    def prove(self, text: str, key: int, of_text: Sequence[DocumentSpan], drawn: Collection[int]) -> Proof | None:
        """Result of computing spans of one key in a text again; None: spans are not proved."""
        if self.prover is None:
            return None
        return self.prover.prove_spans(text, key, of_text) if of_text[0].document in drawn else Proof.NOT_DRAWN


SPAN = "span"
"""Value of `look` for a verdict that comes from its best span."""

WINDOW = "window"
"""Value of `form` for a span that is no segment of its text; others have the segment's form (scanner.text.quoting)."""


class SpanKey(NamedTuple):
    """Columns of rows that come from a key: the key, its tokenizer, K of its spans, its basis."""

    key: MasterKey
    tokenizer: HuggingFaceTokenizer
    correction: float
    basis: str


class SpanFindings(NamedTuple):
    """A span as its row shows it: its place, its form, its user, and whether it was confirmed.

    message: None where it does not pass on what it shares with no other, since the best may be a stranger there.
    """

    document_span: DocumentSpan
    characters: tuple[int, int]
    message: int | None
    naming: Naming
    proof: Proof | None
    quoted: float
    form: str


def with_spans(
    verdicts: pa.RecordBatch,
    keys: Sequence[SpanKey],
    batch: ScoredBatch,
    misnaming_rate: float,
    salt: bytes,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Verdicts with the changes of spans in them, and rows of SPANS.

    verdicts: exact rows of VERDICTS, of all documents of the batch; misnaming_rate: largest p, on what a span shares
    with no other, at which it names; salt: the batch's salt, as for Prover.prove.
    """
    document_spans = located_spans(batch.scores)
    drawn = batch.drawn(document_spans, salt)
    rows: list[dict[str, Any]] = []
    changed: dict[int, dict[str, Any]] = {}
    for place, of_document in groupby(sorted(document_spans, key=_best_first), key=lambda one: one.document):
        verdict = verdicts.slice(place, 1).to_pylist()[0]
        findings = _tell(list(of_document), keys, batch, misnaming_rate, verdict["proof"], drawn)
        existed_by = batch.existed_by(place)
        user_of = batch.user_of(existed_by)
        rows += [_row(verdict, one, keys[one.document_span.key], user_of) for one in findings]
        # each message's span of smallest p, best first
        of_message = {_message(one): one for one in reversed(findings) if one.naming == Naming.NAMED}
        entries = [_entry(one, user_of) for one in findings if of_message.get(_message(one)) is one]
        differing = next((one for one in findings if one.proof == Proof.DIFFERS), None)
        if differing and verdict["flagged"]:
            changed[place] = NameColumns.of_nobody(np.array([Naming.UNPROVED], object)).first_row | {
                "proof": Proof.DIFFERS
            }
        elif verdict["named"] is not None:
            changed[place] = _more_names(verdict, entries)
        elif entries or not verdict["flagged"]:
            best = differing or next((one for one in findings if one.naming == Naming.NAMED), findings[0])
            changed[place] = _replaced_spans(best, entries, keys[best.document_span.key], batch, existed_by)
    return _amended(verdicts, changed), pa.RecordBatch.from_pylist(rows, SPANS)


def _best_first(one: DocumentSpan) -> tuple[int, float, int, int, int]:
    return one.document, one.span.log10_p_global, one.key, one.span.begin, one.span.message


def _tell(
    of_document: Sequence[DocumentSpan],
    keys: Sequence[SpanKey],
    batch: ScoredBatch,
    misnaming_rate: float,
    whole: Proof | None,
    drawn: Collection[int],
) -> list[SpanFindings]:
    """All spans of a document, the smallest p first, those `drawn` computed again; nameless where its proof differs."""
    text = batch.text_of(of_document[0].document)
    found = {one.key for one in of_document}
    token_characters = {key: keys[key].tokenizer.encode_with_offsets(text)[1] for key in found}
    proofs = {key: batch.prove(text, key, [one for one in of_document if one.key == key], drawn) for key in found}
    characters = [one.characters(token_characters[one.key]) for one in of_document]
    named = namings(of_document, characters, misnaming_rate)
    quoted = quoted_shares(text, characters)
    differs = Proof.DIFFERS in (whole, *proofs.values())
    wanted = {one.span.segment for one in of_document} - {-1}
    form_of = {at: one.form for at, one in enumerate(segments_of(text)) if at in wanted} if wanted else {}
    forms = [form_of.get(one.span.segment, WINDOW) for one in of_document]
    messages = [
        None if naming == Naming.UNDECIDED else one.span.message for one, naming in zip(of_document, named, strict=True)
    ]
    return [
        SpanFindings(one, where, message, Naming.UNPROVED if differs else naming, proofs[one.key], share, form)
        for one, where, message, naming, share, form in zip(
            of_document, characters, messages, named, quoted, forms, strict=True
        )
    ]


def _message(findings: SpanFindings) -> tuple[int, int]:
    return findings.document_span.key, findings.document_span.span.message


def _entry(findings: SpanFindings, user_of: UserOfMessage) -> NamedMessage:
    span = findings.document_span.span
    key_id, named = user_of(findings.document_span.key, span.message)
    return NamedMessage(key_id, span.message, span.log10_p_global, named)


def _row(verdict: Mapping[str, Any], findings: SpanFindings, key: SpanKey, user_of: UserOfMessage) -> dict[str, Any]:
    """A row of SPANS without `keys`, which the scan's plan knows."""
    span, document_span = findings.document_span.span, findings.document_span
    named = _entry(findings, user_of).user if findings.naming == Naming.NAMED else None
    return {
        **{name: verdict[name] for name in ("scan_id", "shard_id", "path", "row", "doc_id", "scanned_at")},
        "keys": "",
        "char_from": findings.characters[0],
        "char_to": findings.characters[1],
        "tokens": document_span.last - document_span.first + 1,
        "scored": span.end - span.begin,
        "quoted": findings.quoted,
        "key_id": key.key.key_id,
        "message": findings.message,
        "user_id": None if named is None else named.user_id,
        "naming": findings.naming if named is None else named.naming,
        "proof": findings.proof,
        "form": findings.form,
        **{name: getattr(span, name) for name in ("score", "log10_p", "log10_p_in_document", "log10_p_global")},
    }


def _more_names(verdict: Mapping[str, Any], entries: Sequence[NamedMessage]) -> dict[str, Any]:
    """Users of spans whom a verdict that names somebody does not name yet."""
    named_before, further_messages = verdict["named"], verdict["further_messages"] or []
    known = {(one["key_id"], one["message"]) for one in (*named_before, *further_messages)}
    new = (entry for entry in entries if (entry.key_id, entry.message) not in known)
    named, further_messages = each_user_once(new, named_before, further_messages)
    return {"named": named, "further_messages": further_messages}


def _replaced_spans(
    best: SpanFindings,
    entries: Sequence[NamedMessage],
    key: SpanKey,
    batch: ScoredBatch,
    existed_by: datetime | None,
) -> dict[str, Any]:
    """Columns of a verdict that comes from its best span, the first entry; spans beside it have rows of their own."""
    span, place = best.document_span.span, best.document_span.document
    names = NameColumns.of_nobody(np.array([best.naming], object))
    if entries:
        names.name_users(0, entries, existed_by, batch.known.began)
    tokens, scored = batch.lengths(place, best.document_span.key)
    return {
        **names.first_row,
        "tokens": tokens,
        "scored": scored,
        "key_id": key.key.key_id,
        "message": best.message,
        **{name: getattr(span, name) for name in ("score", "log10_p", "log10_p_global")},
        **dict.fromkeys(("runner_up_log10_p", "runner_up_log10_p_global", "p_rank", "variant")),
        "messages_tested": key.key.messages,
        "correction": key.correction,
        "flagged": True,
        "basis": key.basis,
        "proof": best.proof,
        "sketch": batch.sketch(place, best.document_span.key),
        "look": SPAN,
    }


def _amended(verdicts: pa.RecordBatch, changed: Mapping[int, Mapping[str, Any]]) -> pa.RecordBatch:
    if not changed:
        return verdicts
    columns = dict(zip(VERDICTS.names, verdicts.columns, strict=True))
    for name in sorted({name for values in changed.values() for name in values}):
        findings = columns[name].to_pylist()
        for place, values in changed.items():
            if name in values:
                findings[place] = values[name]
        columns[name] = pa.array(findings, VERDICTS.field(name).type)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=VERDICTS)

"""Turn the spans of a batch into rows of SPANS and changes of verdicts: their places, and which of them name users.

A document is also flagged by its spans, which have their own share of its error. If it was not flagged as a whole, or
is named for no user, its verdict becomes that of its best span, and `look` says so. Users of further spans are added,
each named by the evidence of its own part. If a span, or the whole, differs when it is computed again, the verdict says
so and the document is named for no user.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import (
    DocumentSpan,
    KeyPositions,
    NameColumns,
    NamedMessage,
    UserOfMessage,
    each_user_once,
)
from scanner.detection.scored_batch import ScoredBatch, SpanKey
from scanner.detection.sketches import sketch
from scanner.looks.parts.segments import segments_of
from scanner.text.quoting import parts_of
from scanner.watermark.positions import reach_of
from scanner.watermark.rule import passes
from schemas.tables import SPANS, VERDICTS
from schemas.words import SPAN, Naming, Proof


def namings(
    document_spans: Sequence[DocumentSpan],
    characters: Sequence[tuple[int, int]],
    misnaming_rate: float,
) -> list[Naming]:
    """Return for each span of one document whether it names its user by its own evidence.

    The result is `named`, or the reason why not.

    A span names its message if the message passes by its user evidence. If one message's mark raises the scores of
    others, a span does not name if another message has a span in the same place: an overlap of at least half of the
    shorter span.

    Args:
        document_spans: spans of the document, under all keys.
        characters: first character of each span, and the one after its last.
        misnaming_rate: largest p of a span's user evidence at which it names.
    """
    pairs = [(document_span.key, document_span.span.message) for document_span in document_spans]
    number_of_pair = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    messages = np.array([number_of_pair[pair] for pair in pairs], np.int64)
    begins, ends = np.array(characters, np.int64).reshape(-1, 2).T
    namings_of_spans = []
    for number, document_span in enumerate(document_spans):
        span = document_span.span
        if not passes(span.log10_p_own, misnaming_rate):
            namings_of_spans.append(Naming.UNDECIDED)
        elif not span.independent and bool(
            (_in_one_place(begins, ends, number) & (messages != messages[number])).any()
        ):
            namings_of_spans.append(Naming.AMBIGUOUS)
        else:
            namings_of_spans.append(Naming.NAMED)
    return namings_of_spans


def _in_one_place(begins: NDArray[np.int64], ends: NDArray[np.int64], number: int) -> NDArray[np.bool_]:
    """Return which of S places share at least half of the shorter place with a given place: bool[S]."""
    common = np.minimum(ends, ends[number]) - np.maximum(begins, begins[number])
    lengths = ends - begins
    return np.asarray(2 * common >= np.maximum(1, np.minimum(lengths, lengths[number])), np.bool_)


def quoted_shares(text: str, characters: Sequence[tuple[int, int]]) -> list[float]:
    """Return the share of the characters at each place of a text that are quotations by their form."""
    parts = [(part.begin, part.end) for part in parts_of(text) if part.kind == "quoted"]
    begins, ends = np.array(parts, np.int64).reshape(-1, 2).T
    sums = np.append(0, np.cumsum(ends - begins))

    def count_quoted(end: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the quoted characters from the text's begin to each end."""
        begun = np.searchsorted(begins, end)
        beyond = np.maximum(np.append(0, ends)[begun] - end, 0)
        return np.asarray(sums[begun] - beyond, np.int64)

    first, last = np.array(characters, np.int64).reshape(-1, 2).T
    shares: list[float] = ((count_quoted(last) - count_quoted(first)) / np.maximum(last - first, 1)).tolist()
    return shares


def locate_spans(scores: Sequence[KeyPositions]) -> list[DocumentSpan]:
    """Return every span that passes under a key in a batch, with the place of its tokens."""
    document_spans = []
    for key, scored in enumerate(scores):
        offsets, index = scored.positions.offsets, scored.positions.index
        for span in scored.spans:
            document, begin = int(scored.documents[span.document]), int(offsets[span.document])
            first, last = index[begin + span.begin], index[begin + span.end - 1]
            first_token = scored.tokens.offsets[document]
            document_spans.append(DocumentSpan(document, key, int(first - first_token), int(last - first_token), span))
    return document_spans


WINDOW = "window"
"""Value of `form` for a span that is no segment of its text. Others have the segment's form (scanner.text.quoting)."""


class SpanFindings(NamedTuple):
    """A span as its row shows it.

    document_span: the span, and the place of its tokens.
    characters: its first character, and the one after its last.
    message: None if it does not pass by its user evidence, because the best message may then be a stranger's.
    naming: whether it names a user, or the reason why not.
    proof: proof of the spans of its key in its document. None: spans are not proved.
    quoted: share of its characters that are quotations by their form.
    form: WINDOW, or the form of its segment.
    """

    document_span: DocumentSpan
    characters: tuple[int, int]
    message: int | None
    naming: Naming
    proof: Proof | None
    quoted: float
    form: str

    @property
    def names(self) -> bool:
        """Return whether it names a user."""
        return self.naming == Naming.NAMED


def with_spans(
    verdicts: pa.RecordBatch,
    keys: Sequence[SpanKey],
    batch: ScoredBatch,
    misnaming_rate: float,
    salt: bytes,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return verdicts with the changes of spans in them, and rows of SPANS.

    Arguments and results are as in scanner.looks.text_parts.PartsLook.
    """
    document_spans = locate_spans(batch.scores)
    drawn = _draw(batch, document_spans, salt)
    rows: list[dict[str, Any]] = []
    changed: dict[int, dict[str, Any]] = {}
    for place, group in groupby(sorted(document_spans, key=_best_first), key=lambda span: span.document):
        verdict = verdicts.slice(place, 1).to_pylist()[0]
        findings = _tell(list(group), keys, batch, misnaming_rate, verdict["proof"], drawn)
        existed_by = batch.existed_by(place)
        user_of = batch.user_of(existed_by)
        rows += [_row(verdict, finding, keys[finding.document_span.key], user_of) for finding in findings]
        # each message's span of smallest p, best first
        best_of_message = {_message(finding): finding for finding in reversed(findings) if finding.names}
        naming = [finding for finding in findings if best_of_message.get(_message(finding)) is finding]
        entries = [_entry(finding, user_of) for finding in naming]
        differing = next((finding for finding in findings if finding.proof == Proof.DIFFERS), None)
        if differing and verdict["flagged"]:
            changed[place] = NameColumns.of_nobody(np.array([Naming.UNPROVED], object)).first_row | {
                "proof": Proof.DIFFERS
            }
        elif verdict["named"] is not None:
            changed[place] = _more_names(verdict, entries)
        elif entries or not verdict["flagged"]:
            best = differing or next((finding for finding in findings if finding.names), findings[0])
            changed[place] = _columns_of_span(best, entries, keys[best.document_span.key], batch, existed_by)
    return _amended(verdicts, changed), pa.RecordBatch.from_pylist(rows, SPANS)


def _best_first(document_span: DocumentSpan) -> tuple[int, float, int, int, int]:
    span = document_span.span
    return document_span.document, span.log10_p_global, document_span.key, span.begin, span.message


def _tell(
    document_spans: Sequence[DocumentSpan],
    keys: Sequence[SpanKey],
    batch: ScoredBatch,
    misnaming_rate: float,
    proof_of_whole: Proof | None,
    drawn: Collection[int],
) -> list[SpanFindings]:
    """Return the findings on the spans of a document for their rows, best first. If a proof differs, none names a user.

    Args:
        document_spans: spans of the document.
        keys: each key's columns for rows.
        batch: the documents and their scores.
        misnaming_rate: largest p of a span's user evidence at which it names.
        proof_of_whole: proof of the document as a whole. None: it has none.
        drawn: documents whose spans are computed again.
    """
    text = batch.text_of(document_spans[0].document)
    token_characters, proofs = {}, {}
    for key in {document_span.key for document_span in document_spans}:
        token_characters[key] = keys[key].tokenizer.encode_with_offsets(text)[1]
        proofs[key] = _prove(batch, text, key, [span for span in document_spans if span.key == key], drawn)
    characters = [span.characters(token_characters[span.key]) for span in document_spans]
    differs = Proof.DIFFERS in (proof_of_whole, *proofs.values())
    segments = [*segments_of(text)] if any(span.span.segment >= 0 for span in document_spans) else []
    return [
        SpanFindings(
            document_span,
            place,
            None if naming == Naming.UNDECIDED else document_span.span.message,
            Naming.UNPROVED if differs else naming,
            proofs[document_span.key],
            quoted,
            segments[document_span.span.segment].form if document_span.span.segment >= 0 else WINDOW,
        )
        for document_span, place, naming, quoted in zip(
            document_spans,
            characters,
            namings(document_spans, characters, misnaming_rate),
            quoted_shares(text, characters),
            strict=True,
        )
    ]


def _sketch(batch: ScoredBatch, place: int, key: int) -> bytes | None:
    """Return the sketch by which near-duplicates of a document are recognised."""
    tokens = batch.scores[key].tokens
    ids = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]]
    return sketch(ids, reach_of(batch.scores[key].opened_key.watermark.rule))


def _lengths(batch: ScoredBatch, place: int, key: int) -> tuple[int, int]:
    """Return the number of tokens of a document, and of scored ones."""
    scores = batch.scores[key]
    scored = scores.positions.scored[int(np.searchsorted(scores.documents, place))]
    return int(scores.tokens.offsets[place + 1] - scores.tokens.offsets[place]), int(scored)


def _draw(batch: ScoredBatch, document_spans: Sequence[DocumentSpan], salt: bytes) -> set[int]:
    """Draw the documents whose spans are computed again.

    salt: salt of the batch, as for Prover.prove.
    """
    if batch.prover is None:
        return set()
    sizes: dict[int, int] = {}
    for place, key in {(document_span.document, document_span.key) for document_span in document_spans}:
        sizes[place] = sizes.get(place, 0) + _lengths(batch, place, key)[0]
    return batch.prover.draw(((place, batch.text_of(place), size) for place, size in sizes.items()), salt)


def _prove(
    batch: ScoredBatch, text: str, key: int, document_spans: Sequence[DocumentSpan], drawn: Collection[int]
) -> Proof | None:
    """Compute spans of one key in a text again. None: spans are not proved."""
    if batch.prover is None:
        return None
    if document_spans[0].document not in drawn:
        return Proof.NOT_DRAWN
    return batch.prover.prove_spans(text, key, document_spans)


def _message(findings: SpanFindings) -> tuple[int, int]:
    return findings.document_span.key, findings.document_span.span.message


def _entry(findings: SpanFindings, user_of: UserOfMessage) -> NamedMessage:
    span = findings.document_span.span
    key_id, named = user_of(findings.document_span.key, span.message)
    return NamedMessage(key_id, span.message, span.log10_p_global, named)


def _row(verdict: Mapping[str, Any], findings: SpanFindings, key: SpanKey, user_of: UserOfMessage) -> dict[str, Any]:
    """Return a row of SPANS without `keys`, which only the scan's plan knows."""
    span, document_span = findings.document_span.span, findings.document_span
    named = _entry(findings, user_of).user if findings.names else None
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
    """Return the columns of a verdict that names users, together with users of spans whom it does not name yet."""
    named, further_messages = verdict["named"], verdict["further_messages"] or []
    messages = {(row["key_id"], row["message"]) for row in (*named, *further_messages)}
    new = (entry for entry in entries if (entry.key_id, entry.message) not in messages)
    named, further_messages = each_user_once(new, named, further_messages)
    return {"named": named, "further_messages": further_messages}


def _columns_of_span(
    best: SpanFindings,
    entries: Sequence[NamedMessage],
    key: SpanKey,
    batch: ScoredBatch,
    existed_by: datetime | None,
) -> dict[str, Any]:
    """Return the columns of a verdict that comes from its best span.

    Args:
        best: the span.
        entries: its user, then those of other spans.
        key: key of the span.
        batch: the documents and their scores.
        existed_by: time by which the document existed. None: unknown.
    """
    span, place = best.document_span.span, best.document_span.document
    names = NameColumns.of_nobody(np.array([best.naming], object))
    if entries:
        names.name_users(0, entries, existed_by, batch.history.began)
    tokens, scored = _lengths(batch, place, best.document_span.key)
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
        "sketch": _sketch(batch, place, best.document_span.key),
        "look": SPAN,
    }


def _amended(verdicts: pa.RecordBatch, changed: Mapping[int, Mapping[str, Any]]) -> pa.RecordBatch:
    if not changed:
        return verdicts
    columns = dict(zip(VERDICTS.names, verdicts.columns, strict=True))
    for name in sorted({name for values in changed.values() for name in values}):
        column = columns[name].to_pylist()
        for place, values in changed.items():
            if name in values:
                column[place] = values[name]
        columns[name] = pa.array(column, VERDICTS.field(name).type)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=VERDICTS)

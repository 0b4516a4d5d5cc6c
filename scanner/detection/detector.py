"""Documents and keys in, verdicts out: one Arrow batch in, a batch of verdicts and a batch for quarantine out.

The texts of a batch are read, hashed and tokenised a few at a time, so that they stay in the cache. A document is
tokenised once per tokenizer and scored under every key. The key with the smallest corrected p-value gives
the verdict, or the best of those who are named (SPEC §3, §4; SPEC_2 §3).
"""

import copy
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import (
    BatchOrigin,
    BatchResult,
    FileHistory,
    KeyPositions,
    NameColumns,
    NamesUsers,
    OpenedKey,
    ScoreObserver,
    TextOutcomes,
    users_at,
)
from scanner.detection.left_out import counted_positions
from scanner.detection.proving import Prover
from scanner.detection.rows import plain_lengths, table_of, verdict_columns
from scanner.detection.rules import Rules
from scanner.detection.sketches import sketch
from scanner.detection.spans import ScoredBatch, SpanKey, with_spans
from scanner.error_shares import AS_WRITTEN, NORMALISED
from scanner.input.documents import decode_text, read_text
from scanner.printable import has_manifest, without_manifests
from scanner.text import TokenOffsets
from scanner.text.normal_form import normal_forms, normalise
from scanner.text.quoting import Utf8, segments_of_texts
from scanner.watermark import Positions, Tokens, Watermark, join_batches
from scanner.watermark.format import ScoresParts, SearchesWindows
from scanner.watermark.formats import format_of
from scanner.watermark.positions import PositionRule, reach_of
from scanner.watermark.rule import KeyFindings, long_enough, most_ranked, ranked, search
from scanner.watermark.span_search import Limit, Parts, Segments, joined_segments, of_positions, search_parts
from schemas.registry import MasterKey
from schemas.tables import QUARANTINE, SPANS, VERDICTS
from schemas.words import Naming, Proof

FEW_BYTES = 2**19
"""Bytes of text that are worked on at a time. Decoded and tokenised, they take several times as much of a cache; fewer
pay more often for each call of a tokenizer, which short texts and their normal forms feel.
"""


class TokenisedTexts(NamedTuple):
    """D stored texts, R of which can be read, as a whole or in part.

    readable: bool[D]; manifests: bool[D], texts whose C2PA manifests are cut off; digests: SHA-256 of each of D stored
    texts, None where nothing is stored; tokens: of R documents, by tokenizer; faults: by document, reason and detail of
    texts that cannot be read, by schemas.words.DOCUMENT_REASONS, and of texts that are read in part, by PART_REASONS.
    segments: of R documents, by tokenizer, by their tokens; nothing where nobody asks for them. differing: int64[V],
    which of the R documents are others when normalised; normalised: tokens of these, by tokenizer.
    """

    readable: NDArray[np.bool_]
    manifests: NDArray[np.bool_]
    digests: list[bytes | None]
    tokens: dict[str, Tokens]
    faults: dict[int, tuple[str, str]]
    differing: NDArray[np.int64]
    normalised: dict[str, Tokens]
    segments: dict[str, Segments]


def read_texts(
    stored: pa.LargeBinaryArray,
    tokenise: Callable[[Sequence[str]], Mapping[str, Tokens]],
    *,
    normalised: bool = False,
    token_offsets: Mapping[str, TokenOffsets] | None = None,
) -> TokenisedTexts:
    """Read texts as they are stored; `tokenise` gives the tokens of every tokenizer, by its name.

    normalised: whether to give the tokens of normalised texts too, where these differ; token_offsets: by which
    to give segments too, of each tokenizer.
    """
    readable, manifests = np.ones(len(stored), np.bool_), np.zeros(len(stored), np.bool_)
    digests: list[bytes | None] = []
    faults: dict[int, tuple[str, str]] = {}
    parts: list[Mapping[str, Tokens]] = []
    segments: list[dict[str, Segments]] = []
    differing, others = list[int](), list[Mapping[str, Tokens]]()
    read = 0
    for begin, few in _few_at_a_time(stored):
        texts: list[str] = []
        as_stored = True
        for row, raw in enumerate(few.to_pylist(), begin):
            text, reason, detail = decode_text(raw)
            digests.append(None if raw is None else hashlib.sha256(raw).digest())
            if reason:
                faults[row] = reason, detail
            if text is None:
                readable[row] = False
            else:
                texts.append(without_manifests(text))
                manifests[row] = texts[-1] != text and has_manifest(text)
            as_stored = as_stored and not reason and (text is None or texts[-1] == text)
        parts.append(tokenise(texts))
        as_scored = few if as_stored else pa.array([*map(str.encode, texts)], pa.large_binary())
        if token_offsets is not None:
            segments.append(segments_of_stored(as_scored, parts[-1], token_offsets))
        if normalised:
            plain = normal_forms(texts, _utf8(as_scored))
            differing += [read + i for i in plain]
            others += [tokenise([*plain.values()])] if plain else []
        read += len(texts)
    return TokenisedTexts(
        readable,
        manifests,
        digests,
        _joined(parts),
        faults,
        np.array(differing, np.int64),
        _joined(others),
        {name: joined_segments([one[name] for one in segments]) for name in (segments[0] if segments else ())},
    )


def segments_of_stored(
    stored: pa.LargeBinaryArray, tokens: Mapping[str, Tokens], token_offsets: Mapping[str, TokenOffsets]
) -> dict[str, Segments]:
    """Segments of texts that are stored as they are scored, by tokenizer: a segment has the tokens that begin in it."""
    texts = _utf8(stored)
    by_bytes = segments_of_texts(texts)
    return {name: of_tokenizer.by_tokens(texts, tokens[name], by_bytes) for name, of_tokenizer in token_offsets.items()}


def _utf8(stored: pa.LargeBinaryArray) -> Utf8:
    """Bytes of stored texts where they lie; they are not copied."""
    _, offsets, data = stored.buffers()
    views = np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[stored.offset :][: len(stored) + 1]
    for view in views:
        view.setflags(write=False)  # as kernels are compiled for, whoever made the buffer
    return Utf8(*views)


def _joined(parts: Sequence[Mapping[str, Tokens]]) -> dict[str, Tokens]:
    return {name: join_batches([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _few_at_a_time(stored: pa.LargeBinaryArray) -> Iterator[tuple[int, pa.LargeBinaryArray]]:
    """Slices of equally many rows, each with its first row; one slice where there are no rows."""
    rows = max(len(stored) * FEW_BYTES // max(stored.nbytes, 1), 1)
    for begin in range(0, max(len(stored), 1), rows):
        yield begin, stored[begin : begin + rows]


_NO_SPANS, _NONE_REFUSED = (pa.RecordBatch.from_pylist([], schema) for schema in (SPANS, QUARANTINE))

MOST_COMPILED_WITH = 2**16
"""Most tokens that are scored to compile kernels. If min_scored is larger, none are scored, which compiles the same."""


class KeyTerms(NamedTuple):
    """Numbers of a key that are fixed before any text.

    of_texts: K of whole texts, float64[variant, has_normal_form, has_parts] (ErrorShares.corrections); of_spans: K of
    spans, None: they are not tested; most_ranked: scored positions of the longest text that is ranked.
    """

    of_texts: NDArray[np.float64]
    of_spans: float | None
    most_ranked: int

    @classmethod
    def of(cls, key: MasterKey, rules: Rules) -> "KeyTerms":
        """The numbers of a key under the rules of a scan."""
        weights, tested = rules.weights, rules.keys_tested
        of_texts = weights.corrections(key, tested)
        most = most_ranked(format_of(key).seconds(key.messages))
        return cls(of_texts, weights.correction_of_spans(key, tested), most)


class Detector:
    """Scores documents under a fixed list of keys.

    keys: every key that is scored, in the registry's order; rules: rates, repeats, shares, the filter. prover: computes
    flags again, with the same keys in the same order; None: no flag is proved.
    """

    def __init__(
        self, keys: Sequence[OpenedKey], holders: NamesUsers, rules: Rules, prover: Prover | None = None
    ) -> None:
        self._keys = tuple(keys)
        self._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in self._keys}
        self._holders, self._rules, self._prover = holders, rules, prover
        self._ranked_rate = rules.false_positive_rate
        self._terms = [KeyTerms.of(opened_key.key, rules) for opened_key in self._keys]
        self._token_offsets = (
            {name: TokenOffsets(tokenizer.reference) for name, tokenizer in self._tokenizers.items()}
            if rules.weights.segments
            else None
        )
        self.tokenising = self.proving = 0.0  # wall seconds so far

    @property
    def searches_windows(self) -> bool:
        """Whether every key looks for messages in all windows of a document at once."""
        return all(isinstance(opened_key.watermark, SearchesWindows) for opened_key in self._keys)

    def score_batch(
        self,
        documents: pa.RecordBatch,
        origin: BatchOrigin,
        observer: ScoreObserver | None = None,
        known: FileHistory | None = None,
    ) -> BatchResult:
        """Score a batch of schemas.tables.DOCUMENTS, and show it to an observer.

        known: what is known of their file; None: nothing, and the scan begins now.
        """
        now, salt = datetime.now(UTC), origin.shard_id.encode()
        texts = read_texts(
            documents.column("text"),
            self._tokenise,
            normalised=self._rules.weights.normalised is not None,
            token_offsets=self._token_offsets,
        )
        kept, refused = _by_readable(documents, texts)
        stored, rows = documents["text"], np.flatnonzero(texts.readable).tolist()

        def stored_text(place: int) -> str:
            return read_text(stored[rows[place]].as_py())[0] or ""

        found, scores, whole_is_enough = self._score(texts.tokens, texts.segments, texts.differing)
        if observer is not None:
            observer.observe(kept["text_sha256"].to_pylist(), scores, stored_text)
        outcomes = TextOutcomes.of_stored_texts(found, self._rules.rates)
        if len(texts.differing):
            others = self._score(texts.normalised, {}, texts.differing, scores_of_stored=scores)[0]
            outcomes = outcomes.with_normalised(others, texts.differing, self._rules.rates)
        known = known or FileHistory(now, {}, None, None)
        batch = ScoredBatch(
            scores, kept, stored_text, known, partial(users_at, self._keys, self._holders), self._prover
        )
        lengths = stored_lengths = np.stack([np.diff(of_key.tokens.offsets) for of_key in scores])
        if outcomes.normalised.any():
            lengths = self._lengths_of_outcomes(stored_lengths, texts, outcomes.normalised)
        columns = verdict_columns(self._keys, lengths, outcomes, kept["reason"], whole_is_enough)
        if outcomes.decision.flagged.any():
            columns |= self._proved(outcomes, lengths, stored_text, salt)
            columns |= self._named(columns["naming"], outcomes, batch) | {"sketch": self._sketches(texts, outcomes)}
        table, spans = table_of(VERDICTS, kept, origin, now, columns), _NO_SPANS
        if any(of_key.spans for of_key in scores):
            table, spans = self._with_spans(table, batch, salt)
        quarantine = table_of(QUARANTINE, refused, origin, now, {}) if len(refused) else _NONE_REFUSED
        return BatchResult(table, quarantine, plain_lengths(kept["row"], stored_lengths, found), spans)

    def under(self, marks: Mapping[str, Watermark], holders: NamesUsers, rate: float) -> "Detector":
        """The same rules under other marks: of the keys by whose ids they stand, and of no other key.

        Corrections and ranks stay those of this detector. No flag is proved.
        rate: false-positive and misnaming rate.
        """
        places = [place for place, opened_key in enumerate(self._keys) if opened_key.key.key_id in marks]
        other = copy.copy(self)
        other._keys = tuple(
            dataclasses.replace(opened_key, watermark=opened_key.to_device(marks[opened_key.key.key_id]))
            for opened_key in (self._keys[place] for place in places)
        )
        other._terms = [self._terms[place] for place in places]
        other._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in other._keys}
        if self._token_offsets is not None:
            other._token_offsets = {name: self._token_offsets[name] for name in other._tokenizers}
        other._holders, other._prover = holders, None
        other._rules = dataclasses.replace(self._rules, false_positive_rate=rate, misnaming_rate=rate)
        return other

    def _with_spans(
        self, verdicts: pa.RecordBatch, batch: ScoredBatch, salt: bytes
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Verdicts with the changes that spans make in them, and rows of SPANS; salt: as for Prover.prove."""
        keys = [
            SpanKey(opened_key.key, opened_key.tokenizer.reference, terms.of_spans or math.nan, opened_key.basis)
            for opened_key, terms in zip(self._keys, self._terms, strict=True)
        ]
        return with_spans(verdicts, keys, batch, self._rules.rates[1], salt)

    def compile(self, observer: ScoreObserver | None = None) -> None:
        """Score random tokens as those of a text and of one too short, so that documents find every kernel compiled.

        It scores tokens, not texts, since a tokenizer judges its backend by the first texts that it sees.
        """
        scores = []
        for opened_key, terms in zip(self._keys, self._terms, strict=True):
            length = min(2 * self._rules.min_scored, MOST_COMPILED_WITH) + opened_key.watermark.rule.context
            ids = np.random.default_rng(0).integers(opened_key.tokenizer.vocab_size, size=length + 1, dtype=np.uint32)
            tokens = Tokens(ids, np.array([0, length, length + 1], np.int64))
            name, rule = opened_key.key.tokenizer.sha256, opened_key.watermark.rule
            positions = counted_positions(self._rules.ngram_filter, name, rule, tokens, self._rules.dedup)
            segments = None
            if self._token_offsets is not None:
                blank = pa.array([b" ", b" "], pa.large_binary())
                segments = segments_of_stored(blank, {name: tokens}, {name: self._token_offsets[name]})[name]
            scores.append(self._score_key(opened_key, terms, tokens, positions, segments, np.zeros(2, np.bool_))[1])
        if observer is not None:
            observer.observe([bytes(32), b"1" * 32], scores, lambda _: "")
        normalise("a text")  # a proof looks whether a text is its own normal form

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tokens]:
        began = time.perf_counter()
        tokens = {name: tokenizer.encode(texts) for name, tokenizer in self._tokenizers.items()}
        self.tokenising += time.perf_counter() - began
        return tokens

    def _score(
        self,
        tokens: Mapping[str, Tokens],
        segments: Mapping[str, Segments],
        differing: NDArray[np.int64],
        scores_of_stored: Sequence[KeyPositions] = (),
    ) -> tuple[list[KeyFindings], list[KeyPositions], NDArray[np.bool_]]:
        """Findings of each key in D texts, and bool[D]: which are long enough for a key if no n-gram is left out."""
        # differing: places of texts that are others when normalised, scores_of_stored: of all as they stand
        positions: dict[tuple[str, PositionRule], Positions] = {}
        found, scores, enough = [], [], np.zeros(len(next(iter(tokens.values())).offsets) - 1, np.bool_)
        has_normal_form = np.full(len(enough), bool(scores_of_stored))
        if not scores_of_stored:
            has_normal_form[differing] = True
        for place, (opened_key, terms) in enumerate(zip(self._keys, self._terms, strict=True)):
            name, rule = opened_key.key.tokenizer.sha256, opened_key.watermark.rule
            if (name, rule) not in positions:
                whole = rule.positions(tokens[name], self._rules.dedup)
                enough |= whole.scored >= self._rules.min_scored
                common = self._rules.ngram_filter.of(name, rule)
                positions[name, rule] = common.without(tokens[name], whole) if common else whole
            has_parts = scores_of_stored[place].has_parts[differing] if scores_of_stored else None
            of_texts = tokens[name], positions[name, rule], segments.get(name)
            of_look = terms._replace(of_spans=None) if scores_of_stored else terms
            findings, of_key = self._score_key(opened_key, of_look, *of_texts, has_normal_form, has_parts)
            found.append(findings)
            scores.append(of_key)
        return found, scores, enough

    def _lengths_of_outcomes(
        self, stored_lengths: NDArray[np.int64], texts: TokenisedTexts, normalised: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        lengths = stored_lengths.copy()
        of_differing = [np.diff(texts.normalised[one.key.tokenizer.sha256].offsets) for one in self._keys]
        lengths[:, normalised] = np.stack(of_differing)[:, normalised[texts.differing]]
        return lengths

    def _proved(
        self, outcomes: TextOutcomes, lengths: NDArray[np.int64], stored_text: Callable[[int], str], salt: bytes
    ) -> dict[str, NDArray[np.object_]]:
        """Columns of VERDICTS with the proofs of flags, and the naming by them; nothing where none is proved."""
        if self._prover is None:
            return {}
        began = time.perf_counter()
        proof = self._prover.prove(
            stored_text, list(lengths), outcomes.findings, outcomes.decision, salt, outcomes.normalised
        )
        self.proving += time.perf_counter() - began
        return {"proof": proof, "naming": np.where(proof == Proof.DIFFERS, Naming.UNPROVED, outcomes.decision.naming)}

    def _score_key(
        self,
        opened_key: OpenedKey,
        terms: KeyTerms,
        tokens: Tokens,
        positions: Positions,
        segments: Segments | None,
        has_normal_form: NDArray[np.bool_],
        has_parts: NDArray[np.bool_] | None = None,
    ) -> tuple[KeyFindings, KeyPositions]:
        """Findings of one key in D texts; without K of spans in terms, these are not tested."""
        # has_normal_form: bool[D], whose normalised text is another one; has_parts: of normalised texts, bool[D]: which
        # have parts as they stand, None: these are texts as they stand
        documents, kept = long_enough(positions, self._rules.min_scored)
        mark, messages = opened_key.watermark, opened_key.key.messages
        scores = KeyPositions(opened_key, tokens, kept, documents)
        if terms.of_spans is not None and isinstance(mark, ScoresParts) and mark.law is not None:
            at = Segments.none(len(documents)) if segments is None else of_positions(segments, tokens, kept, documents)
            scores = scores._replace(parts=Parts(self._rules.weights.windows, at))
        variant = AS_WRITTEN if has_parts is None else NORMALISED
        if has_parts is None:
            has_parts = np.zeros_like(has_normal_form) if scores.parts is None else scores.has_parts
        corrections = terms.of_texts[variant, has_normal_form.astype(np.intp), has_parts.astype(np.intp)]
        if terms.of_spans is None or scores.parts is None:
            found = search(mark, tokens, kept, messages, corrections[documents])
        else:
            limit = Limit(self._rules.false_positive_rate, messages, terms.of_spans)
            found, spans = search_parts(mark, tokens, kept, messages, corrections[documents], limit, scores.parts)
            scores = scores._replace(spans=spans)
        found = ranked(found, mark, tokens, kept, messages, self._ranked_rate, terms.most_ranked)
        if len(documents) < len(has_normal_form):
            found = found.of_batch(documents, positions.scored, corrections)
        return found, scores

    def _named(
        self, naming: NDArray[np.object_], outcomes: TextOutcomes, batch: ScoredBatch
    ) -> dict[str, NDArray[np.object_]]:
        """Columns of VERDICTS with the users of the messages that the rule names, or the one user of all that pass."""
        names = NameColumns.of_nobody(naming)
        for i in np.flatnonzero(outcomes.decision.flagged).tolist():
            existed = batch.existed_by(i)
            entries = outcomes.entries(i, naming[i], batch.user_of(existed))
            if entries:
                names.name_users(i, entries, existed, batch.known.began)
        return names._asdict()

    def _sketches(self, texts: TokenisedTexts, outcomes: TextOutcomes) -> NDArray[np.object_]:
        """Sketches of the flagged texts among D, as they were scored: object[D]; None for others."""
        decided, sketches = outcomes.decision, np.full(len(outcomes.normalised), None, object)
        of_differing = {int(row): place for place, row in enumerate(texts.differing)}
        for row in np.flatnonzero(decided.flagged).tolist():
            opened_key, normalised = self._keys[decided.key[row]], outcomes.normalised[row]
            tokens = (texts.normalised if normalised else texts.tokens)[opened_key.key.tokenizer.sha256]
            place = of_differing[row] if normalised else row
            ids = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]]
            sketches[row] = sketch(ids, reach_of(opened_key.watermark.rule))
        return sketches


def _by_readable(documents: pa.RecordBatch, texts: TokenisedTexts) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Documents that can be read and others, with digests and faults in place of their texts, which stay uncopied."""
    count = len(documents)
    columns = dict(zip(documents.schema.names, documents.columns, strict=True))
    del columns["text"]
    columns |= {name: pa.nulls(count, pa.string()) for name in ("manifest", "reason", "detail")}
    columns["text_sha256"] = pa.array(texts.digests, pa.binary())
    if texts.manifests.any():
        columns["manifest"] = pa.array(np.full(count, "c2pa"), pa.string(), mask=~texts.manifests)
    if texts.faults:
        fault_of_row = [texts.faults.get(row, (None, None)) for row in range(count)]
        columns["reason"], columns["detail"] = (pa.array(each, pa.string()) for each in zip(*fault_of_row, strict=True))
    every = pa.RecordBatch.from_pydict(columns)
    if texts.readable.all():
        return every, every.slice(0, 0)
    return every.filter(pa.array(texts.readable)), every.filter(pa.array(~texts.readable))

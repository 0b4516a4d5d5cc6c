"""Turn documents and keys into verdicts: from one Arrow batch, make a batch of verdicts and a batch for quarantine.

A document is tokenised once for each tokenizer and scored under every key. The key with the smallest corrected p-value
gives the verdict, or the best of the keys with a named candidate (SPEC §3, §4; SPEC_3 §4).
"""

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
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
from scanner.detection.scored_batch import ScoredBatch, SpanKey
from scanner.detection.sketches import sketch
from scanner.detection.stored_texts import TokenisedTexts, read_texts, split_by_readable, utf8_of_stored
from scanner.error_shares import AS_WRITTEN, NORMALISED
from scanner.input.documents import read_text
from scanner.looks.normalising import normalise
from scanner.looks.text_parts import PARTS_LOOKS, parts_look
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.format import ScoresParts, SearchesWindows
from scanner.watermark.formats import format_of
from scanner.watermark.kernel import share_steps
from scanner.watermark.parts import Limit, Segments
from scanner.watermark.positions import PositionRule, reach_of, rule_with_shown
from scanner.watermark.rule import KeyFindings, long_enough, most_ranked, ranked, search
from schemas.registry import MasterKey
from schemas.tables import QUARANTINE, SPANS, VERDICTS
from schemas.words import Naming, Proof

_NO_SPANS, _NONE_REFUSED = (pa.RecordBatch.from_pylist([], schema) for schema in (SPANS, QUARANTINE))

MOST_COMPILED_WITH = 2**16
"""Largest number of tokens that are scored to compile kernels.

If min_scored is larger, none are scored, which compiles the same kernels.
"""


class KeyTerms(NamedTuple):
    """Numbers of a key that are fixed before any text.

    of_texts: K of whole texts, float64[variant, has_normal_form, has_parts] (ErrorShares.corrections).
    of_spans: K of spans. None: they are not tested.
    most_ranked: number of scored positions of the longest text that is ranked.
    """

    of_texts: NDArray[np.float64]
    of_spans: float | None
    most_ranked: int

    @classmethod
    def of(cls, key: MasterKey, rules: Rules) -> "KeyTerms":
        """Return the numbers of a key under the rules of a scan."""
        weights, tested = rules.weights, rules.keys_tested
        longest = most_ranked(format_of(key).seconds(key.messages))
        return cls(weights.corrections(key, tested), weights.correction_of_spans(key, tested), longest)


class TextForms(NamedTuple):
    """The form of D texts, which decides how p is corrected (ErrorShares.corrections).

    variant: AS_WRITTEN or NORMALISED.
    has_normal_form: bool[D], whether the normalised text differs.
    has_parts: for each key bool[D], whether the text has parts that are tested. None: the texts are now searched for
        parts.
    """

    variant: int
    has_normal_form: NDArray[np.bool_]
    has_parts: Sequence[NDArray[np.bool_]] | None = None


class BatchScores(NamedTuple):
    """Scores of D texts under every key.

    findings: findings of each key.
    positions: positions that each key scored, with its spans.
    shown: positions that each key left out because their seeds were shown, int64[keys, D].
    whole_is_enough: bool[D], whether a text is long enough for a key if no n-gram is left out.
    """

    findings: list[KeyFindings]
    positions: list[KeyPositions]
    shown: NDArray[np.int64]
    whole_is_enough: NDArray[np.bool_]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of tokens under each key, and `shown`: int64[2, keys, D]."""
        return np.stack([[np.diff(scored.tokens.offsets) for scored in self.positions], self.shown])


class Detector:
    """Scores documents under a fixed list of keys.

    Args:
        keys: all keys to score, in the registry's order.
        holders: tells the user whom a message names.
        rules: rates, repeats, shares, the filter.
        prover: computes flags again, with the same keys in the same order. None: no flag is proved.
    """

    def __init__(
        self, keys: Sequence[OpenedKey], holders: NamesUsers, rules: Rules, prover: Prover | None = None
    ) -> None:
        self._keys = tuple(keys)
        self._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in self._keys}
        self._holders, self._rules, self._prover = holders, rules, prover
        self._ranked_rate = rules.false_positive_rate
        self._terms = [KeyTerms.of(opened_key.key, rules) for opened_key in self._keys]
        self._parts = parts_look() if rules.weights.span is not None and PARTS_LOOKS else None
        self._cut = (
            self._parts.segment_cutter({name: tokenizer.reference for name, tokenizer in self._tokenizers.items()})
            if self._parts and rules.weights.segments
            else None
        )
        self.tokenising = self.proving = 0.0  # wall seconds so far

    @property
    def searches_windows(self) -> bool:
        """Return whether every key searches all windows of a document at once."""
        return all(isinstance(opened_key.watermark, SearchesWindows) for opened_key in self._keys)

    def score_batch(
        self,
        documents: pa.RecordBatch,
        origin: BatchOrigin,
        observer: ScoreObserver | None = None,
        history: FileHistory | None = None,
    ) -> BatchResult:
        """Score a batch of schemas.tables.DOCUMENTS, and show it to an observer.

        history: history of their file. None: it has none, and the scan begins now.
        """
        now, salt = datetime.now(UTC), origin.shard_id.encode()
        history = history or FileHistory(now, {}, None, None)

        # 1. Read, hash and tokenise the texts, with their normal forms and segments.
        texts = read_texts(
            documents.column("text"),
            self._tokenise,
            normalised=self._rules.weights.normalised is not None,
            cut=self._cut,
        )
        readable, refused = split_by_readable(documents, texts)
        stored, rows = documents["text"], np.flatnonzero(texts.readable).tolist()

        def stored_text(place: int) -> str:
            return read_text(stored[rows[place]].as_py())[0] or ""

        # 2. Score the texts as they are written, with their spans, and show the scores to the controls.
        has_normal_form = np.zeros(len(rows), np.bool_)
        has_normal_form[texts.differing] = True
        scores = self._score(texts.tokens, texts.segments, TextForms(AS_WRITTEN, has_normal_form))
        if observer is not None:
            observer.observe(readable["text_sha256"].to_pylist(), scores.positions, stored_text)

        # 3. Decide. The normalised text counts where its p is smaller.
        outcomes = TextOutcomes.of_stored_texts(scores.findings, self._rules.rates)
        sizes = scores.sizes
        if len(texts.differing):
            has_parts = [scored.has_parts[texts.differing] for scored in scores.positions]
            forms = TextForms(NORMALISED, has_normal_form[texts.differing], has_parts)
            # without segments, because spans are looked for only in texts as written
            normalised = self._score(texts.normalised, {}, forms)
            outcomes = outcomes.with_normalised(normalised.findings, texts.differing, self._rules.rates)
            sizes[:, :, outcomes.normalised] = normalised.sizes[:, :, outcomes.normalised[texts.differing]]
        lengths, shown = sizes
        columns = verdict_columns(self._keys, lengths, shown, outcomes, readable["reason"], scores.whole_is_enough)

        # 4. Prove flags, name their users, and sketch their texts.
        user_of = functools.partial(users_at, self._keys, self._holders)
        batch = ScoredBatch(scores.positions, readable, stored_text, history, user_of, self._prover)
        if outcomes.decision.flagged.any():
            columns |= self._proved(outcomes, lengths, stored_text, salt)
            columns |= self._named(columns["naming"], outcomes, batch) | {"sketch": self._sketches(texts, outcomes)}

        # 5. Write rows, with the changes that spans make.
        verdicts, spans = table_of(VERDICTS, readable, origin, now, columns), _NO_SPANS
        if self._parts and any(scored.spans for scored in scores.positions):
            verdicts, spans = self._parts.with_spans(verdicts, self._span_keys(), batch, self._rules.rates[1], salt)
        quarantine = table_of(QUARANTINE, refused, origin, now, {}) if len(refused) else _NONE_REFUSED
        of_texts = plain_lengths(self._keys, readable["row"], scores.sizes, scores.findings)
        return BatchResult(verdicts, quarantine, of_texts, spans)

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tokens]:
        began = time.perf_counter()
        tokens = {name: tokenizer.encode(texts) for name, tokenizer in self._tokenizers.items()}
        self.tokenising += time.perf_counter() - began
        return tokens

    def _score(self, tokens: Mapping[str, Tokens], segments: Mapping[str, Segments], forms: TextForms) -> BatchScores:
        """Score D texts under every key.

        tokens, segments: of each tokenizer.
        """
        positions: dict[tuple[str, PositionRule], Positions] = {}
        findings, scored, whole_is_enough = [], [], np.zeros(len(forms.has_normal_form), np.bool_)
        shown = np.zeros((len(self._keys), len(forms.has_normal_form)), np.int64)
        counts: dict[tuple[str, PositionRule], NDArray[np.int64]] = {}
        for place, (opened_key, terms) in enumerate(zip(self._keys, self._terms, strict=True)):
            name, rule = opened_key.key.tokenizer.sha256, opened_key.watermark.rule
            if (name, rule) not in positions:
                whole, with_shown = rule.positions(tokens[name], self._rules.dedup), rule_with_shown(rule)
                if with_shown is not rule:
                    counts[name, rule] = with_shown.positions(tokens[name], self._rules.dedup).scored - whole.scored
                # before the filter, to tell texts that are too short from texts of which it leaves too little
                whole_is_enough |= whole.scored >= self._rules.min_scored
                common = self._rules.ngram_filter.of(name, rule)
                positions[name, rule] = common.without(tokens[name], whole) if common else whole
            texts = tokens[name], positions[name, rule], segments.get(name)
            result = self._score_key(opened_key, terms, *texts, forms, place)
            findings.append(result[0])
            scored.append(result[1])
            shown[place] = counts.get((name, rule), 0)
        return BatchScores(findings, scored, shown, whole_is_enough)

    def _score_key(
        self,
        opened_key: OpenedKey,
        terms: KeyTerms,
        tokens: Tokens,
        positions: Positions,
        segments: Segments | None,
        forms: TextForms,
        place: int,
    ) -> tuple[KeyFindings, KeyPositions]:
        """Score D texts under one key.

        place: place of the key in `forms`.
        """
        # 1. Find the texts and parts to score. No score decides which these are.
        scored = self._long_enough(opened_key, tokens, positions, segments, forms)
        mark, messages, documents, counted = (
            opened_key.watermark,
            opened_key.key.messages,
            scored.documents,
            scored.positions,
        )
        has_parts = scored.has_parts if forms.has_parts is None else forms.has_parts[place]

        # 2. Correct p for all looks at a text of this form, and search the whole texts and their parts.
        corrections = terms.of_texts[forms.variant, forms.has_normal_form.astype(np.intp), has_parts.astype(np.intp)]
        if self._parts is None or terms.of_spans is None or scored.parts is None:
            findings = search(mark, tokens, counted, messages, corrections[documents])
        else:
            limit = Limit(self._rules.false_positive_rate, messages, terms.of_spans)
            findings, spans = self._parts.search_parts(
                mark, tokens, counted, messages, corrections[documents], limit, scored.parts
            )
            scored = scored._replace(spans=spans)

        # 3. Under keys without a proven law, rank passing candidates among decoys.
        findings = ranked(findings, mark, tokens, counted, messages, self._ranked_rate, terms.most_ranked)
        if len(documents) < len(corrections):
            findings = findings.of_batch(documents, positions.scored, corrections)
        return findings, scored

    def _long_enough(
        self, opened_key: OpenedKey, tokens: Tokens, positions: Positions, segments: Segments | None, forms: TextForms
    ) -> KeyPositions:
        """Leave out short texts, which then cost no time, and find the parts to be tested under one key."""
        documents, counted = long_enough(positions, self._rules.min_scored)
        scored, mark = KeyPositions(opened_key, tokens, counted, documents), opened_key.watermark
        if self._parts is None or forms.has_parts is not None or not isinstance(mark, ScoresParts) or mark.law is None:
            return scored
        kinds = self._rules.weights.part_kinds
        return scored._replace(parts=self._parts.scored_parts(kinds, segments, tokens, counted, documents))

    def _proved(
        self, outcomes: TextOutcomes, lengths: NDArray[np.int64], stored_text: Callable[[int], str], salt: bytes
    ) -> dict[str, NDArray[np.object_]]:
        """Return columns of VERDICTS with the proofs of flags, and the naming by them. Empty if no flag is proved."""
        if self._prover is None:
            return {}
        began = time.perf_counter()
        proof = self._prover.prove(
            stored_text, list(lengths), outcomes.findings, outcomes.decision, salt, outcomes.normalised
        )
        self.proving += time.perf_counter() - began
        return {"proof": proof, "naming": np.where(proof == Proof.DIFFERS, Naming.UNPROVED, outcomes.decision.naming)}

    def _named(
        self, naming: NDArray[np.object_], outcomes: TextOutcomes, batch: ScoredBatch
    ) -> dict[str, NDArray[np.object_]]:
        """Return columns of VERDICTS with the users that the rule names, or the one user of all messages that pass."""
        names = NameColumns.of_nobody(naming)
        for place in np.flatnonzero(outcomes.decision.flagged).tolist():
            existed = batch.existed_by(place)
            entries = outcomes.entries(place, naming[place], batch.user_of(existed))
            if entries:
                names.name_users(place, entries, existed, batch.history.began)
        return names._asdict()

    def _sketches(self, texts: TokenisedTexts, outcomes: TextOutcomes) -> NDArray[np.object_]:
        """Sketch the flagged texts among D, as they were scored: object[D]. None for others."""
        decision, sketches = outcomes.decision, np.full(len(outcomes.normalised), None, object)
        place_of_normalised = {int(row): place for place, row in enumerate(texts.differing)}
        for row in np.flatnonzero(decision.flagged).tolist():
            opened_key, normalised = self._keys[decision.key[row]], outcomes.normalised[row]
            tokens = (texts.normalised if normalised else texts.tokens)[opened_key.key.tokenizer.sha256]
            place = place_of_normalised[row] if normalised else row
            ids = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]]
            sketches[row] = sketch(ids, reach_of(opened_key.watermark.rule))
        return sketches

    def _span_keys(self) -> list[SpanKey]:
        """Return each key's columns for rows of SPANS."""
        return [
            SpanKey(opened_key.key, opened_key.tokenizer.reference, terms.of_spans or math.nan, opened_key.basis)
            for opened_key, terms in zip(self._keys, self._terms, strict=True)
        ]

    def _random_text(self, opened_key: OpenedKey) -> tuple[Tokens, Positions, Segments | None]:
        """Return random tokens of a text that is long enough under a key and of one too short, and their parts."""
        length = min(2 * self._rules.min_scored, MOST_COMPILED_WITH) + opened_key.watermark.rule.context
        ids = np.random.default_rng(0).integers(opened_key.tokenizer.vocab_size, size=length + 1, dtype=np.uint32)
        tokens = Tokens(ids, np.array([0, length, length + 1], np.int64))
        name, rule = opened_key.key.tokenizer.sha256, opened_key.watermark.rule
        blank = utf8_of_stored(pa.array([b" ", b" "], pa.large_binary()))
        segments = self._cut(blank, {name: tokens})[name] if self._cut else None
        return tokens, counted_positions(self._rules.ngram_filter, name, rule, tokens, self._rules.dedup), segments

    def under(self, marks: Mapping[str, Watermark], holders: NamesUsers, rate: float) -> "Detector":
        """Return a detector with the same rules under other marks. It proves no flag.

        Corrections, ranks and shown seeds stay those of this detector.

        Args:
            marks: a mark for each key id. Other keys are left out.
            holders: tells the user whom a message names.
            rate: false-positive rate and misnaming rate.
        """
        places = [place for place, opened_key in enumerate(self._keys) if opened_key.key.key_id in marks]
        other = copy.copy(self)
        other._keys = tuple(
            opened_key.under(marks[opened_key.key.key_id]) for opened_key in (self._keys[place] for place in places)
        )
        other._terms = [self._terms[place] for place in places]
        other._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in other._keys}
        other._holders, other._prover = holders, None
        other._rules = dataclasses.replace(self._rules, false_positive_rate=rate, misnaming_rate=rate)
        return other

    def compile(self, observer: ScoreObserver | None = None, further: Sequence[Callable[[], object]] = ()) -> None:
        """Score random tokens of one text that is long enough and one too short.

        Then every kernel is compiled before a scan.

        It scores tokens, not texts, because a tokenizer judges its backend by the first texts that it sees. Processes
        that begin at the same time share the work (scanner.watermark.kernel.share_steps).

        Args:
            observer: is shown the scores.
            further: other functions that compile kernels.
        """
        forms = TextForms(AS_WRITTEN, np.zeros(2, np.bool_))

        @functools.cache
        def random_texts() -> list[tuple[OpenedKey, KeyTerms, Tokens, Positions, Segments | None]]:
            return [
                (opened_key, terms, *self._random_text(opened_key))
                for opened_key, terms in zip(self._keys, self._terms, strict=True)
            ]

        def show() -> None:
            if observer is not None:
                scores = [
                    self._long_enough(key, tokens, positions, segments, forms)
                    for key, _, tokens, positions, segments in random_texts()
                ]
                observer.observe([bytes(32), b"1" * 32], scores, lambda _: "")

        def search_without_parts() -> None:
            for key, _, tokens, positions, _ in random_texts():
                search(key.watermark, tokens, positions, key.key.messages)

        share_steps(
            lambda: [self._score_key(*text, forms, 0) for text in random_texts()],
            lambda: normalise("a text"),  # a proof asks whether a text is its own normal form
            *further,
            show,
            search_without_parts,
        )

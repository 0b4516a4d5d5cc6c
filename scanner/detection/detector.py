"""Documents and keys in, verdicts out: one Arrow batch in, a batch of verdicts and a batch for quarantine out.

A document is tokenised once per tokenizer and scored under every key. The key with the smallest corrected p-value gives
the verdict, or the best of those who are named (SPEC §3, §4; SPEC_2 §3).
"""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import Names, OfFile, entries_of, of_one_user, passing_of, to_be_looked_at, who_at
from scanner.detection.proving import Prover
from scanner.detection.rows import columns_of_faults, plain_lengths, table_of, verdict_columns
from scanner.detection.rules import Rules
from scanner.detection.sketches import reach_of, sketch
from scanner.detection.spans import ScoredBatch, SpanKey, located_spans, with_spans
from scanner.detection.tokenising import Texts, read_texts, segments_of_stored
from scanner.detection.under_test import KeyUnderTest, Looked, NamesUsers, Origin, Seen, Witness
from scanner.input.documents import read_text
from scanner.registry import Named
from scanner.text import Standing
from scanner.text.normal_form import normalise
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.formats import format_of
from scanner.watermark.positions import PositionRule
from scanner.watermark.rule import Decision, Found, decide, instead, long_enough, most_ranked, passing, ranked, search
from scanner.watermark.span_search import Limit, Parts, Segments, Span, of_positions, search_parts
from schemas.tables import QUARANTINE, SPANS, VERDICTS
from schemas.words import Naming, Proof

MOST_COMPILED_WITH = 2**16
"""Most tokens that are scored to compile kernels. If min_scored is larger, none are scored, which compiles the same."""


class Detector:
    """Scores documents under a fixed list of keys.

    Args:
        keys: every key that is scored, in the registry's order.
        holders: who holds a message.
        rules: rates, repeats, shares, the filter.
        prover: computes flags again, with the same keys in the same order; None: no flag is proved.
    """

    def __init__(
        self, keys: Sequence[KeyUnderTest], holders: NamesUsers, rules: Rules, prover: Prover | None = None
    ) -> None:
        self._keys = tuple(keys)
        self._tokenizers = {test.key.tokenizer.sha256: test.tokenizer for test in self._keys}
        self._holders, self._rules, self._prover = holders, rules, prover
        of_keys = [rules.weights.tests(test.key, rules.keys_tested) for test in self._keys]
        self._tests = np.array(of_keys, np.float64)  # [K, variants]
        self._ranked_rate = rules.false_positive_rate
        self._tests_of_spans = [rules.weights.tests_of_spans(test.key, rules.keys_tested) for test in self._keys]
        self._standing = (
            {name: Standing(tokenizer.reference) for name, tokenizer in self._tokenizers.items()}
            if rules.weights.segments
            else None
        )
        self.tokenising = self.proving = 0.0  # wall seconds so far

    def detect(
        self,
        documents: pa.RecordBatch,
        origin: Origin,
        witness: Witness | None = None,
        known: OfFile | None = None,
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Score a batch of schemas.tables.DOCUMENTS, and show it to a witness.

        known: what is known of their file; None: nothing, and the scan begins now.

        Returns:
            (VERDICTS, QUARANTINE): together one row for every document, each in the order of the batch. Verdicts are
            exact, without text_id and p_class: scanner.detection.rows makes of them what tables hold.
        """
        looked = self.look(documents, origin, witness, known)
        return looked.verdicts, looked.quarantine

    def look(
        self,
        documents: pa.RecordBatch,
        origin: Origin,
        witness: Witness | None = None,
        known: OfFile | None = None,
    ) -> Looked:
        """As `detect`, with lengths of texts that show nothing of scores."""
        now = datetime.now(UTC)
        texts = read_texts(
            documents.column("text"),
            self._tokenise,
            normalised=self._rules.weights.normalised is not None,
            standing=self._standing,
        )
        told = {"text_sha256": pa.array(texts.digests, pa.binary())} | columns_of_faults(texts.faults, len(documents))
        rest = {name: documents[name] for name in documents.schema.names if name != "text"}  # they need not be copied
        kept = pa.RecordBatch.from_pydict(rest | told)
        refused = kept.slice(0, 0)
        if not texts.readable.all():
            kept, refused = (kept.filter(pa.array(mask)) for mask in (texts.readable, ~texts.readable))
        found, seen, whole_is_enough = self._score(texts.tokens, texts.segments)
        stored, rows = documents["text"], np.flatnonzero(texts.readable).tolist()

        def stored_text(place: int) -> str:
            return read_text(stored[rows[place]].as_py())[0] or ""

        if witness is not None:
            witness.see(kept["text_sha256"].to_pylist(), seen, stored_text)
        decided, lengths = self._decide(found), self._lengths(texts.tokens)
        plain = plain_lengths(kept["row"], lengths, found)
        normalised, torn = np.zeros(len(kept), np.bool_), np.zeros(len(kept), np.bool_)
        if len(texts.differing):
            found, decided, taken, torn = self._either(found, decided, texts)
            normalised[texts.differing] = taken
            lengths[:, normalised] = self._lengths(texts.normalised)[:, taken]
        about = kept["reason"], whole_is_enough, normalised
        verdicts = verdict_columns(self._keys, self._tests, lengths, found, decided, *about)
        verdicts["sketch"] = self._sketches(texts, decided, normalised)
        verdicts["variant"] = pa.array(np.full(len(kept), "normalised"), mask=~normalised)
        if self._prover is not None and decided.flagged.any():

            def text_of(place: int) -> str:
                return normalise(stored_text(place)) if normalised[place] else stored_text(place)

            salt, began = origin.shard_id.encode(), time.perf_counter()
            proof = self._prover.prove(text_of, list(lengths), found, decided, salt, normalised)
            self.proving += time.perf_counter() - began
            verdicts |= {"proof": proof, "naming": np.where(proof == Proof.DIFFERS, Naming.UNPROVED, decided.naming)}
        naming = np.asarray(verdicts["naming"])
        known = known or OfFile(now, {}, None, None)
        named = self._named(naming, torn, found, decided, kept, known)
        table = table_of(VERDICTS, kept, origin, now, verdicts | named)
        batch = ScoredBatch(seen, kept, stored_text, known, self._who_at, self._prover)
        table, spans = self._with_spans(table, batch, origin.shard_id.encode())
        return Looked(table, table_of(QUARANTINE, refused, origin, now, {}), plain, spans)

    def under(self, marks: Mapping[str, Watermark], holders: NamesUsers, rate: float) -> "Detector":
        """The same rules under other marks: of the keys by whose ids they stand, and of no other key.

        Corrections and ranks stay those of this detector. No flag is proved.

        Args:
            marks: by key id.
            holders: who holds a message.
            rate: false-positive and misnaming rate.
        """
        places = [place for place, test in enumerate(self._keys) if test.key.key_id in marks]
        other = copy.copy(self)
        other._keys = tuple(
            dataclasses.replace(test, watermark=test.to_device(marks[test.key.key_id]))
            for test in (self._keys[place] for place in places)
        )
        other._tests, other._tests_of_spans = self._tests[places], [self._tests_of_spans[place] for place in places]
        other._tokenizers = {test.key.tokenizer.sha256: test.tokenizer for test in other._keys}
        if self._standing is not None:
            other._standing = {name: self._standing[name] for name in other._tokenizers}
        other._holders, other._prover = holders, None
        other._rules = dataclasses.replace(self._rules, false_positive_rate=rate, misnaming_rate=rate)
        return other

    def _with_spans(
        self, verdicts: pa.RecordBatch, batch: ScoredBatch, salt: bytes
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Verdicts with the changes that spans make in them, and rows of SPANS; salt: as for Prover.prove."""
        located = located_spans(batch.seen)
        if not located:
            return verdicts, pa.RecordBatch.from_pylist([], SPANS)
        keys = [
            SpanKey(test.key, test.tokenizer.reference, tests or math.nan, str(test.watermark.basis))
            for test, tests in zip(self._keys, self._tests_of_spans, strict=True)
        ]
        return with_spans(verdicts, located, keys, batch, self._rules.rates[1], salt)

    def compile(self, witness: Witness | None = None) -> None:
        """Score random tokens as those of a text and of one too short, so that documents find every kernel compiled.

        It scores tokens, not texts, since a tokenizer judges its backend by the first texts that it sees.
        """
        seen = []
        for test, of_spans in zip(self._keys, self._tests_of_spans, strict=True):
            length = min(2 * self._rules.min_scored, MOST_COMPILED_WITH) + test.watermark.rule.context
            ids = np.random.default_rng(0).integers(test.tokenizer.vocab_size, size=length + 1, dtype=np.uint32)
            tokens = Tokens(ids, np.array([0, length, length + 1], np.int64))
            name, rule = test.key.tokenizer.sha256, test.watermark.rule
            positions = self._rules.without.positions(name, rule, tokens, self._rules.dedup)
            segments = None
            if self._standing is not None:
                blank = pa.array([b" ", b" "], pa.large_binary())
                segments = segments_of_stored(blank, {name: tokens}, {name: self._standing[name]})[name]
            seen.append(self._score_key(test, 1.0, of_spans, tokens, positions, segments)[1])
        if witness is not None:
            witness.see([bytes(32), b"1" * 32], seen, lambda _: "")

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """Tokens of texts by each tokenizer, by its SHA-256."""
        began = time.perf_counter()
        tokens = {name: tokenizer.encode(texts) for name, tokenizer in self._tokenizers.items()}
        self.tokenising += time.perf_counter() - began
        return tokens

    def _score(
        self, tokens: Mapping[str, Tokens], segments: Mapping[str, Segments], variant: int = 0
    ) -> tuple[list[Found], list[Seen], NDArray[np.bool_]]:
        """Findings of each key in D texts, and bool[D]: which are long enough for a key if no n-gram is left out.

        The texts are given by their tokens and segments; variant: 0, as they stand, or 1, normalised.
        """
        positions: dict[tuple[str, PositionRule], Positions] = {}
        found, seen, enough = [], [], np.zeros(len(next(iter(tokens.values())).offsets) - 1, np.bool_)
        each = zip(self._keys, self._tests[:, variant].tolist(), self._tests_of_spans, strict=True)
        for test, tests, of_spans in each:
            name, rule = test.key.tokenizer.sha256, test.watermark.rule
            if (name, rule) not in positions:
                whole = rule.positions(tokens[name], self._rules.dedup)
                enough |= whole.scored >= self._rules.min_scored
                positions[name, rule] = self._rules.without.left_of(whole, name, rule, tokens[name])
            of_spans = None if variant else of_spans
            of_texts = tokens[name], positions[name, rule], segments.get(name)
            said, shown = self._score_key(test, tests, of_spans, *of_texts)
            found.append(said)
            seen.append(shown)
        return found, seen, enough

    def _decide(self, found: Sequence[Found]) -> Decision:
        return decide(found, *self._rules.rates)

    def _lengths(self, tokens: Mapping[str, Tokens]) -> NDArray[np.int64]:
        """Tokens of D texts under each key: int64[K, D]."""
        return np.stack([np.diff(tokens[test.key.tokenizer.sha256].offsets) for test in self._keys])

    def _either(
        self, found: Sequence[Found], decided: Decision, texts: Texts
    ) -> tuple[list[Found], Decision, NDArray[np.bool_], NDArray[np.bool_]]:
        """For each document the findings in the text that has the smaller p; where that is the second of V: bool[V].

        Nobody is named where another message passes in the other text: bool[D]. A key whose p is proven by no law says
        nothing about the second text: its rank counts one look.
        """
        rows = texts.differing
        others = [
            said if said.basis.proven else said._replace(message=np.full_like(said.message, -1), log10_p_global=void)
            for said in self._score(texts.normalised, {}, variant=1)[0]
            for void in [np.full_like(said.log10_p_global, np.nan)]
        ]
        second = self._decide(others)
        taken = _smallest(others) < _smallest(found)[rows]
        both = [instead(first, other, rows, taken) for first, other in zip(found, others, strict=True)]
        said, torn = self._decide(both), np.zeros(len(decided.flagged), np.bool_)
        for place, row in enumerate(rows.tolist()):
            if decided.flagged[row] and second.flagged[place]:
                names = passing(found, row, self._rules.false_positive_rate) | passing(
                    others, place, self._rules.false_positive_rate
                )
                shared = not both[said.key[row]].independent
                torn[row] = shared and len(names) > 1
                if torn[row] and said.naming[row] == Naming.NAMED:
                    said.naming[row] = Naming.AMBIGUOUS
        return both, said, taken, torn

    def _score_key(
        self,
        test: KeyUnderTest,
        tests: float,
        of_spans: float | None,
        tokens: Tokens,
        positions: Positions,
        segments: Segments | None = None,
    ) -> tuple[Found, Seen]:
        """Findings of one key. tests, of_spans: K of documents as a whole, and of their spans; None: not tested."""
        documents, kept = long_enough(positions, self._rules.min_scored)
        mark, messages = test.watermark, test.key.messages
        spans: list[Span] = []
        parts = None
        if of_spans is None:
            found = search(mark, tokens, kept, messages, tests)
        else:
            limit = Limit(self._rules.false_positive_rate, messages, of_spans)
            at = Segments.none(len(documents)) if segments is None else of_positions(segments, tokens, kept, documents)
            parts = Parts(self._rules.weights.windows, at)
            found, spans = search_parts(mark, tokens, kept, messages, tests, limit, parts)
        most = most_ranked(format_of(test.key).seconds(messages))
        found = ranked(found, mark, tokens, kept, messages, self._ranked_rate, most)
        return found.among(documents, positions.scored), Seen(test, tokens, kept, documents, spans, parts)

    def _named(
        self,
        naming: NDArray[np.object_],
        torn: NDArray[np.bool_],
        found: Sequence[Found],
        decided: Decision,
        documents: pa.RecordBatch,
        known: OfFile,
    ) -> dict[str, NDArray[np.object_]]:
        """Columns of VERDICTS with the users of the messages that the rule names, or the one user of all that pass."""
        names, passing_too = Names.of_nobody(naming), passing_of(found, self._rules.false_positive_rate)
        for i in to_be_looked_at(naming, torn, found, passing_too):
            first = known.first_seen(documents["created_at_latest"][i].as_py(), documents["text_sha256"][i].as_py())
            chosen = decided.named if naming[i] == Naming.NAMED else passing_too
            best = int(decided.key[i]), int(decided.candidate[i])
            entries = entries_of(found, chosen, i, best, self._who_at(first or known.began))
            if naming[i] == Naming.NAMED or of_one_user(entries):
                names.put(i, entries, first, known.began)
        return names._asdict()

    def _sketches(self, texts: Texts, decided: Decision, normalised: NDArray[np.bool_]) -> NDArray[np.object_]:
        """Sketches of the flagged texts among D, as they were scored: object[D]; None for others."""
        found = np.full(len(decided.flagged), None, object)
        of_differing = {int(row): place for place, row in enumerate(texts.differing)}
        for row in np.flatnonzero(decided.flagged).tolist():
            test = self._keys[decided.key[row]]
            tokens = (texts.normalised if normalised[row] else texts.tokens)[test.key.tokenizer.sha256]
            place = of_differing[row] if normalised[row] else row
            ids = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]]
            found[row] = sketch(ids, reach_of(test.watermark.rule))
        return found

    def _who_at(self, at: datetime) -> Callable[[int, int], tuple[str, Named]]:
        """Key id and named user, by place of the key and message, for a document that existed at `at`."""
        return who_at(self._keys, self._holders, at)


def _smallest(found: Sequence[Found]) -> NDArray[np.float64]:
    """The smallest corrected p of D documents under any key, as log10; infinite where there is none: float64[D]."""
    p = np.stack([np.where(said.message[:, 0] >= 0, said.log10_p_global[:, 0], np.nan) for said in found])
    return np.asarray(np.where(np.isnan(p), np.inf, p).min(axis=0), np.float64)

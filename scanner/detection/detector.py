"""Documents and keys in, verdicts out: one Arrow batch in, a batch of verdicts and a batch for quarantine out.

A document is tokenised once per tokenizer and scored under every key. The key with the smallest corrected p-value gives
the verdict, or the best of those who are named (SPEC §3, §4; SPEC_2 §3).
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.detection.existence import OfFile
from scanner.detection.naming import Names, entries_of, of_one_user, passing_of, to_be_looked_at
from scanner.detection.normalising import normalise
from scanner.detection.proving import Prover
from scanner.detection.sketches import reach_of, sketch
from scanner.detection.tokenising import Texts, read_texts
from scanner.input.documents import read_text
from scanner.registry import Named
from scanner.tokens import Tokenizer
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.formats import format_of
from scanner.watermark.positions import PositionRule
from scanner.watermark.rank import most_ranked, ranked
from scanner.watermark.search import Decision, Found, corrected, decide, instead, long_enough, passing, search
from schemas.config import Dedup
from schemas.registry import MasterKey
from schemas.tables import QUARANTINE, VERDICTS
from schemas.words import Naming, Proof

MOST_COMPILED_WITH = 2**16
"""Tokens that are scored to compile kernels; where more must be scored, none are, which compiles the same."""


class NamesUsers(Protocol):
    """Who holds a message; scanner.registry.Holders is one."""

    def naming(self, key_id: str, message: int, at: datetime) -> Named:
        """Whom a message names, for a document that existed at `at`."""


class Origin(NamedTuple):
    """Where a batch comes from, as it stands in every row."""

    scan_id: str
    shard_id: str
    path: str


def as_it_is(mark: Watermark) -> Watermark:
    """Score a watermark on the CPU."""
    return mark


@dataclass(frozen=True)
class KeyUnderTest:
    """A key of the registry, opened, with its tokenizer, and what puts a watermark of its kind where it is scored."""

    key: MasterKey
    watermark: Watermark
    tokenizer: Tokenizer
    to_device: Callable[[Watermark], Watermark] = as_it_is


class Seen(NamedTuple):
    """What one key scored of a batch: the positions of D of its documents, and which these are, int64[D]."""

    test: KeyUnderTest
    tokens: Tokens
    positions: Positions
    documents: NDArray[np.int64]


class Looked(NamedTuple):
    """What became of a batch. verdicts, quarantine: as `Detector.detect` returns them.

    lengths: row, tokens and scored of each verdict's text as it stands, under the first key that scored it, else the
    first: int64. What they are depends on no score.
    """

    verdicts: pa.RecordBatch
    quarantine: pa.RecordBatch
    lengths: pa.RecordBatch


class Witness(Protocol):
    """Is shown what is scored, as it is scored; scanner.audit.in_every_scan.decoys.PieceDecoys is one."""

    def see(self, digests: Sequence[bytes], seen: Sequence[Seen], text_of: Callable[[int], str]) -> None:
        """Take a batch: SHA-256 of its texts, what each key scored, and the texts as they were read, by place."""


class Detector:
    """Scores documents under a fixed list of keys.

    Args:
        keys: every key that is scored, in the registry's order.
        holders: who holds a message.
        keys_tested: K of SPEC §3 for keys without weights: every key whose p could be reported for a document, scored
            here or not.
        dedup: which repeats are left out.
        min_scored: scored positions below which a key does not score a document.
        false_positive_rate: a document is flagged when its corrected p-value is at most this.
        misnaming_rate: users of a group are named when the corrected p of what is theirs alone is at most this; None:
            the false-positive rate.
        prover: computes flags again, with the same keys in the same order; None: no flag is proved.
        normalised: score normalised texts too, where these differ; keys_tested counts each key twice then.
    """

    def __init__(
        self,
        keys: Sequence[KeyUnderTest],
        holders: NamesUsers,
        *,
        keys_tested: int,
        dedup: Dedup,
        min_scored: int,
        false_positive_rate: float,
        misnaming_rate: float | None = None,
        prover: Prover | None = None,
        normalised: bool = False,
    ) -> None:
        self._keys = tuple(keys)
        self._tokenizers = {test.key.tokenizer.sha256: test.tokenizer for test in self._keys}
        self._holders = holders
        self._keys_tested = keys_tested
        self._dedup: Dedup = dedup
        self._min_scored = min_scored
        self._false_positive_rate, self._misnaming_rate = false_positive_rate, misnaming_rate
        self._prover = prover
        self._for_everybody = {test.key.key_id for test in self._keys if test.key.messages == 1}
        self._normalised = normalised
        self.tokenising = 0.0  # wall seconds so far

    def detect(
        self,
        documents: pa.RecordBatch,
        origin: Origin,
        witness: Witness | None = None,
        known: OfFile | None = None,
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Score a batch of schemas.tables.DOCUMENTS, and show it to a witness.

        `known` of their file; None: nothing, and the scan begins now.

        Returns:
            (VERDICTS, QUARANTINE): together one row for every document, each in the order of the batch. Verdicts are
            exact, without text_id and p_class: scanner.detection.published makes of them what tables hold.
        """
        verdicts, quarantine, _ = self.look(documents, origin, witness, known)
        return verdicts, quarantine

    def look(
        self,
        documents: pa.RecordBatch,
        origin: Origin,
        witness: Witness | None = None,
        known: OfFile | None = None,
    ) -> Looked:
        """As `detect`, with lengths of texts that tell nothing of scores."""
        now = datetime.now(UTC)
        texts = read_texts(documents.column("text"), self._tokenise, normalised=self._normalised)
        told = {"text_sha256": pa.array(texts.digests, pa.binary())} | _faults(texts.faults, len(documents))
        rest = {name: documents[name] for name in documents.schema.names if name != "text"}  # which need not be copied
        kept = pa.RecordBatch.from_pydict(rest | told)
        refused = kept.slice(0, 0)
        if not texts.readable.all():
            kept, refused = (kept.filter(pa.array(mask)) for mask in (texts.readable, ~texts.readable))
        found, seen = self._score(texts.tokens)
        stored, rows = documents["text"], np.flatnonzero(texts.readable).tolist()

        def stored_text(place: int) -> str:
            return read_text(stored[rows[place]].as_py())[0] or ""

        if witness is not None:
            witness.see(kept["text_sha256"].to_pylist(), seen, stored_text)
        decided, lengths = self._decide(found), self._lengths(texts.tokens)
        plain = _plain_lengths(kept["row"], lengths, found)
        normalised, torn = np.zeros(len(kept), np.bool_), np.zeros(len(kept), np.bool_)
        if len(texts.differing):
            found, decided, taken, torn = self._either(found, decided, texts)
            normalised[texts.differing] = taken
            lengths[:, normalised] = self._lengths(texts.normalised)[:, taken]
        verdicts = self._verdicts(lengths, found, decided, kept["reason"])
        verdicts["sketch"] = self._sketches(texts, decided, normalised)
        verdicts["variant"] = pa.array(np.full(len(kept), "normalised"), mask=~normalised)
        if self._prover is not None and decided.flagged.any():

            def text_of(place: int) -> str:
                return normalise(stored_text(place)) if normalised[place] else stored_text(place)

            proof = self._prover.prove(text_of, list(lengths), found, decided, origin.shard_id.encode())
            verdicts |= {"proof": proof, "naming": np.where(proof == Proof.DIFFERS, Naming.UNPROVED, decided.naming)}
        naming = np.asarray(verdicts["naming"])
        named = self._named(naming, torn, found, decided, kept, known or OfFile(now, {}, None, None))
        table = _table(VERDICTS, kept, origin, now, verdicts | named)
        return Looked(table, _table(QUARANTINE, refused, origin, now, {}), plain)

    def compile(self, witness: Witness | None = None) -> None:
        """Score random tokens as those of one text, so that later documents find every kernel compiled.

        It is tokens, since a tokenizer judges its backend by the first texts that it sees.
        """
        seen = []
        for test in self._keys:
            length = min(2 * self._min_scored, MOST_COMPILED_WITH) + test.watermark.rule.context
            ids = np.random.default_rng(0).integers(test.tokenizer.vocab_size, size=length, dtype=np.uint32)
            tokens = Tokens(ids, np.array([0, length], np.int64))
            positions = test.watermark.rule.positions(tokens, self._dedup)
            seen.append(self._score_key(test, tokens, positions)[1])
        if witness is not None:
            witness.see([bytes(32)], seen, lambda _: "")

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """What each tokenizer makes of texts, by its SHA-256."""
        began = time.perf_counter()
        tokens = {name: tokenizer.encode(texts) for name, tokenizer in self._tokenizers.items()}
        self.tokenising += time.perf_counter() - began
        return tokens

    def _score(self, tokens: Mapping[str, Tokens]) -> tuple[list[Found], list[Seen]]:
        positions: dict[tuple[str, PositionRule], Positions] = {}
        found, seen = [], []
        for test in self._keys:
            name, rule = test.key.tokenizer.sha256, test.watermark.rule
            if (name, rule) not in positions:
                positions[name, rule] = rule.positions(tokens[name], self._dedup)
            said, shown = self._score_key(test, tokens[name], positions[name, rule])
            found.append(said)
            seen.append(shown)
        return found, seen

    def _decide(self, found: Sequence[Found]) -> Decision:
        return decide(found, self._false_positive_rate, self._misnaming_rate)

    def _lengths(self, tokens: Mapping[str, Tokens]) -> NDArray[np.int64]:
        """Tokens of D texts under each key: int64[K, D]."""
        return np.stack([np.diff(tokens[test.key.tokenizer.sha256].offsets) for test in self._keys])

    def _either(
        self, found: Sequence[Found], decided: Decision, texts: Texts
    ) -> tuple[list[Found], Decision, NDArray[np.bool_], NDArray[np.bool_]]:
        """Of each document what is said of the text that has the smaller p; where that is the second of V: bool[V].

        Nobody is named where another message passes in the other text: bool[D]. A key whose p is proven by no law says
        nothing of the second text: its rank counts one look.
        """
        rows = texts.differing
        others = [
            said if said.basis.proven else said._replace(message=np.full_like(said.message, -1), log10_p_global=void)
            for said in self._score(texts.normalised)[0]
            for void in [np.full_like(said.log10_p_global, np.nan)]
        ]
        second = self._decide(others)
        taken = _smallest(others) < _smallest(found)[rows]
        both = [instead(first, other, rows, taken) for first, other in zip(found, others, strict=True)]
        said, torn = self._decide(both), np.zeros(len(decided.flagged), np.bool_)
        for place, row in enumerate(rows.tolist()):
            if decided.flagged[row] and second.flagged[place]:
                names = passing(found, row, self._false_positive_rate) | passing(
                    others, place, self._false_positive_rate
                )
                shared = not both[said.key[row]].independent
                torn[row] = shared and len(names) > 1
                if torn[row] and said.naming[row] == Naming.NAMED:
                    said.naming[row] = Naming.AMBIGUOUS
        return both, said, taken, torn

    def _score_key(self, test: KeyUnderTest, tokens: Tokens, positions: Positions) -> tuple[Found, Seen]:
        documents, kept = long_enough(positions, self._min_scored)
        mark, messages = test.watermark, test.key.messages
        found = search(mark, tokens, kept, messages, self._tested_among(test))
        most = most_ranked(format_of(test.key).seconds(messages))
        found = ranked(found, mark, tokens, kept, messages, self._false_positive_rate, most)
        return found.among(documents, positions.scored), Seen(test, tokens, kept, documents)

    def _tested_among(self, test: KeyUnderTest) -> int:
        return test.key.tested_among(self._keys_tested, 1 + self._normalised)

    def _verdicts(
        self, lengths: NDArray[np.int64], found: Sequence[Found], decided: Decision, reason: pa.Array
    ) -> dict[str, Any]:
        """What VERDICTS say about D texts, by column, but for who had a message; `named`: somebody is (`decide`).

        lengths: in tokens under each key, int64[K, D]; reason: it is a part.
        """
        chosen, naming, rows = decided.key, decided.naming, np.arange(len(decided.key))
        runner_up = np.where(decided.candidate == 0, 1, 0)

        def of_chosen(values: Iterable[NDArray[Any]]) -> NDArray[Any]:
            return np.stack([*values])[chosen, rows]

        def of_candidate(values: Iterable[NDArray[Any]]) -> NDArray[Any]:
            # a key whose every document has fewer candidates is not the one that is chosen there
            return of_chosen(of_key[rows, np.minimum(decided.candidate, of_key.shape[1] - 1)] for of_key in values)

        own = [_log10_reach(test) for test in self._keys]
        of_all = [corrected(p, 1, self._tested_among(test)) for p, test in zip(own, self._keys, strict=True)]
        reach, reach_global = (np.array(p, np.float64)[chosen] for p in (own, of_all))

        def p_values(log10_p: NDArray[np.float64]) -> pa.Array:
            return _p_values(np.maximum(log10_p, reach))

        def p_values_global(log10_p: NDArray[np.float64]) -> pa.Array:
            return _p_values(np.maximum(log10_p, reach_global))

        message = of_candidate(said.message for said in found)
        scored = message >= 0
        return {
            "status": pc.if_else(~scored, "too_short", pc.if_else(reason.is_null(), "scored", "scored_in_part")),
            "tokens": of_chosen(lengths),
            "scored": of_chosen(said.scored for said in found),
            "key_id": pa.array([test.key.key_id for test in self._keys]).take(pa.array(chosen)),
            # of the undecided none is shown: whoever is best there may be a stranger
            "message": pa.array(message, mask=~scored | (naming == Naming.UNDECIDED)),
            "naming": naming,
            "proof": np.full(len(chosen), None, object),
            "score": of_candidate(said.score for said in found),
            # p = 1 of what is not scored
            "log10_p": p_values(np.where(scored, of_candidate(said.log10_p for said in found), 0.0)),
            "log10_p_global": p_values_global(
                np.where(scored, of_candidate(said.log10_p_global for said in found), 0.0)
            ),
            "runner_up_log10_p": p_values(of_chosen(said.log10_p[rows, runner_up] for said in found)),
            "runner_up_log10_p_global": p_values_global(
                of_chosen(said.log10_p_global[rows, runner_up] for said in found)
            ),
            "messages_tested": np.array([test.key.messages for test in self._keys])[chosen],
            "keys_tested": np.array([self._tested_among(test) for test in self._keys])[chosen],
            "flagged": decided.flagged,
            "basis": pa.array([str(test.watermark.basis) for test in self._keys]).take(pa.array(chosen)),
            "p_rank": _p_values(of_candidate(said.p_rank for said in found)),
            "text_id": pa.nulls(len(chosen), pa.binary()),
            "p_class": pa.nulls(len(chosen), pa.int64()),
            "sketch": pa.nulls(len(chosen), pa.binary()),
        }

    def _named(
        self,
        naming: NDArray[np.object_],
        torn: NDArray[np.bool_],
        found: Sequence[Found],
        decided: Decision,
        documents: pa.RecordBatch,
        known: OfFile,
    ) -> dict[str, NDArray[np.object_]]:
        """Columns of VERDICTS that say who had the messages that the rule names, or who alone had all that pass."""
        names, passing_too = Names.of_nobody(naming), passing_of(found, self._false_positive_rate)
        for i in to_be_looked_at(naming, torn, found, passing_too):
            first = known.first_seen(documents["created_at_latest"][i].as_py(), documents["text_sha256"][i].as_py())
            chosen = decided.named if naming[i] == Naming.NAMED else passing_too
            best = int(decided.key[i]), int(decided.candidate[i])
            entries = entries_of(found, chosen, i, best, self._who_at(first or known.began))
            if naming[i] == Naming.NAMED or of_one_user(entries):
                names.put(i, entries, first, known.began)
        return names._asdict()

    def _sketches(self, texts: Texts, decided: Decision, normalised: NDArray[np.bool_]) -> NDArray[np.object_]:
        """Of each flagged text of D, as it was taken: object[D]; None of others."""
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
        """Key id and who is named, by place of the key and message, for a document that existed at `at`."""

        def who(key: int, message: int) -> tuple[str, Named]:
            key_id = self._keys[key].key.key_id
            named = self._holders.naming(key_id, message, at)
            if key_id in self._for_everybody and named.naming == Naming.UNALLOCATED:
                named = named._replace(naming=Naming.EVERYBODY)
            return key_id, named

        return who


def _smallest(found: Sequence[Found]) -> NDArray[np.float64]:
    """The smallest corrected p of D documents under any key, as log10; infinite where there is none: float64[D]."""
    p = np.stack([np.where(said.message[:, 0] >= 0, said.log10_p_global[:, 0], np.nan) for said in found])
    return np.asarray(np.where(np.isnan(p), np.inf, p).min(axis=0), np.float64)


def _plain_lengths(rows: pa.Array, lengths: NDArray[np.int64], found: Sequence[Found]) -> pa.RecordBatch:
    """`lengths` of Looked, of D rows and their tokens under K keys, int64[K, D]."""
    first = np.argmax(np.stack([said.message[:, 0] >= 0 for said in found]), axis=0)
    scored = np.stack([said.scored for said in found])
    at = first, np.arange(len(first))
    return pa.RecordBatch.from_pydict({"row": rows, "tokens": lengths[at], "scored": scored[at]})


def _log10_reach(test: KeyUnderTest) -> float:
    """Below what no p-value of a key is told: of one whose law is assumed, what its admission showed; else −∞."""
    admission = test.key.admission
    return math.log10(admission.holds_down_to) if test.watermark.basis.assumed and admission else -math.inf


def _p_values(log10_p: NDArray[np.float64]) -> pa.Array:
    """As tables have them: null where there is none."""
    return pa.array(log10_p, mask=np.isnan(log10_p))


def _faults(faults: Mapping[int, tuple[str, str]], documents: int) -> dict[str, pa.Array]:
    """Reason and detail of D documents, by column; null where there is no fault."""
    if not faults:
        return dict.fromkeys(("reason", "detail"), pa.nulls(documents, pa.string()))
    told = [faults.get(row, (None, None)) for row in range(documents)]
    return {
        name: pa.array(of_all, pa.string())
        for name, of_all in zip(("reason", "detail"), zip(*told, strict=True), strict=True)
    }


def _table(
    schema: pa.Schema, documents: pa.RecordBatch, origin: Origin, now: datetime, columns: dict[str, Any]
) -> pa.RecordBatch:
    """Rows of a schema: the given columns, those of the documents, and what is the same in every row."""
    same = origin._asdict() | {"scanned_at": now}

    def column(field: pa.Field) -> pa.Array:
        if field.name in same:
            return pa.repeat(pa.scalar(same[field.name], field.type), len(documents))
        if field.name not in columns:
            return documents[field.name]
        values = columns[field.name]
        return values if isinstance(values, pa.Array) else pa.array(values, field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)

"""Documents and keys in, verdicts out: one Arrow batch in, a batch of verdicts and a batch for quarantine out.

A document is tokenised once per tokenizer and scored under every key. The key with the smallest corrected p-value gives
the verdict; a user is named only when exactly one message of one key passes (SPEC §3, §4).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.tokenising import read_texts
from scanner.tokens import Tokenizer
from scanner.watermark import Positions, Tokens, Watermark, scored_positions
from scanner.watermark.pvalues import log10_any_of
from schemas.config import Dedup
from schemas.registry import MasterKey
from schemas.tables import QUARANTINE, VERDICTS

MOST_COMPILED_WITH = 2**16
"""Tokens that are scored to compile kernels; where more must be scored, none are, which compiles the same."""


class Naming(Protocol):
    """Who holds a message; scanner.registry.Holders is one."""

    def naming(self, key_id: str, message: int, at: datetime | None) -> tuple[str, str | None]:
        """Return (naming, user_id) of a message at the time of a document."""


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
    place: Callable[[Watermark], Watermark] = as_it_is


class Scores(NamedTuple):
    """What one key says about D documents. Where fewer than min_scored positions are scored, all log10 p are 0.

    tokens, scored, message: int64[D] (message −1: not scored); score, log10_p (of the best message), log10_p_global
    (corrected for all messages of all keys), runner_up (the second message's own; NaN: there is none) and
    runner_up_global: float64[D].
    """

    tokens: NDArray[np.int64]
    scored: NDArray[np.int64]
    message: NDArray[np.int64]
    score: NDArray[np.float64]
    log10_p: NDArray[np.float64]
    log10_p_global: NDArray[np.float64]
    runner_up: NDArray[np.float64]
    runner_up_global: NDArray[np.float64]


class Seen(NamedTuple):
    """What one key scored of a batch: the positions of D of its documents, and which these are, int64[D]."""

    test: KeyUnderTest
    tokens: Tokens
    positions: Positions
    documents: NDArray[np.int64]


class Witness(Protocol):
    """Is shown what is scored, as it is scored; scanner.audit.decoys.PieceDecoys is one."""

    def see(self, digests: Sequence[bytes], seen: Sequence[Seen]) -> None:
        """Take a batch: SHA-256 of its texts, and what each key scored."""


class Detector:
    """Scores documents under a fixed list of keys.

    Args:
        keys: every key that is scored, in the registry's order.
        holders: who holds a message.
        keys_tested: K of SPEC §3: every key whose p could be reported for a document, scored here or not.
        dedup: which repeats are left out.
        min_scored: scored positions below which a key does not score a document.
        false_positive_rate: a document is flagged when its corrected p-value is at most this.
    """

    def __init__(
        self,
        keys: Sequence[KeyUnderTest],
        holders: Naming,
        *,
        keys_tested: int,
        dedup: Dedup,
        min_scored: int,
        false_positive_rate: float,
    ) -> None:
        self._keys = tuple(keys)
        self._tokenizers = {test.key.tokenizer.sha256: test.tokenizer for test in self._keys}
        self._holders = holders
        self._keys_tested = keys_tested
        self._dedup: Dedup = dedup
        self._min_scored = min_scored
        self._threshold = math.log10(false_positive_rate)
        self.tokenising = 0.0  # wall seconds so far

    def detect(
        self, documents: pa.RecordBatch, origin: Origin, witness: Witness | None = None
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Score a batch of schemas.tables.DOCUMENTS, and show it to a witness.

        Returns:
            (VERDICTS, QUARANTINE): together one row for every document, each in the order of the batch.
        """
        now = datetime.now(UTC)
        readable, digests, tokens, faults = read_texts(documents.column("text"), self._tokenise)
        rest = documents.drop_columns(["text"])  # which need not be copied
        kept, refused = rest, rest.slice(0, 0)
        if faults:
            kept, refused = (rest.filter(pa.array(mask)) for mask in (readable, ~readable))
        reasons, details = zip(*faults, strict=True) if faults else ((), ())
        scores, seen = self._score(tokens)
        if witness is not None:
            witness.see(digests, seen)
        return (
            _table(VERDICTS, kept, origin, now, {"text_sha256": digests} | self._verdicts(scores, kept["created_at"])),
            _table(QUARANTINE, refused, origin, now, {"reason": reasons, "detail": details}),
        )

    def compile(self, witness: Witness | None = None) -> None:
        """Score random tokens as those of one text, so that later documents find every kernel compiled.

        It is tokens, since a tokenizer judges its backend by the first texts that it sees.
        """
        seen = []
        for test in self._keys:
            length = min(2 * self._min_scored, MOST_COMPILED_WITH) + test.key.window
            ids = np.random.default_rng(0).integers(test.tokenizer.vocab_size, size=length, dtype=np.uint32)
            tokens = Tokens(ids, np.array([0, length], np.int64))
            positions = scored_positions(tokens, test.key.window, self._dedup)
            seen.append(self._score_key(test, tokens, positions)[1])
        if witness is not None:
            witness.see([bytes(32)], seen)

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """What each tokenizer makes of texts, by its SHA-256."""
        began = time.perf_counter()
        tokens = {name: tokenizer.encode(texts) for name, tokenizer in self._tokenizers.items()}
        self.tokenising += time.perf_counter() - began
        return tokens

    def _score(self, tokens: Mapping[str, Tokens]) -> tuple[list[Scores], list[Seen]]:
        positions: dict[tuple[str, int], Positions] = {}
        scores, seen = [], []
        for test in self._keys:
            name, window = test.key.tokenizer.sha256, test.key.window
            if (name, window) not in positions:
                positions[name, window] = scored_positions(tokens[name], window, self._dedup)
            said, shown = self._score_key(test, tokens[name], positions[name, window])
            scores.append(said)
            seen.append(shown)
        return scores, seen

    def _score_key(self, test: KeyUnderTest, tokens: Tokens, positions: Positions) -> tuple[Scores, Seen]:
        scored = positions.scored
        enough = scored >= self._min_scored
        # documents that are too short for this key cost nothing: the others alone are scored
        kept = positions
        if not enough.all():
            offsets = np.concatenate([[0], np.cumsum(scored[enough])]).astype(np.int64)
            kept = Positions(positions.index[np.repeat(enough, scored)], offsets)
        seen = Seen(test, tokens, kept, np.flatnonzero(enough))
        messages, keys, mark = test.key.messages, self._keys_tested, test.watermark
        best = mark.best_two(tokens, kept, messages)
        log10_p = mark.log10_p(best.score, kept.scored)
        runner_up, runner_up_global = np.full(len(log10_p), np.nan), np.zeros(len(log10_p))
        if messages > 1:
            runner_up = mark.log10_p(best.second_score, kept.scored)
            runner_up_global = corrected(runner_up, messages, keys)

        def spread(values: NDArray[Any], fill: float) -> NDArray[Any]:
            out = np.full(len(enough), fill, values.dtype)
            out[enough] = values
            return out

        scores = Scores(
            tokens=np.diff(tokens.offsets),
            scored=scored,
            message=spread(best.message, -1),
            score=spread(best.score.astype(np.float64), 0.0),
            log10_p=spread(log10_p, 0.0),
            log10_p_global=spread(corrected(log10_p, messages, keys), 0.0),
            runner_up=spread(runner_up, np.nan),
            runner_up_global=spread(runner_up_global, 0.0),
        )
        return scores, seen

    def _verdicts(self, scores: Sequence[Scores], created_at: pa.Array) -> dict[str, Any]:
        """What VERDICTS say about D texts, by column; created_at: when each was written."""
        chosen, passing = choose(scores), count_passing(scores, self._threshold)

        def of_chosen(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
            return np.stack(values)[chosen, np.arange(len(chosen))]

        message = of_chosen([said.message for said in scores])
        runner_up = of_chosen([said.runner_up for said in scores])
        naming = np.where(passing > 1, "ambiguous", "none").astype(object)
        user_id: NDArray[np.object_] = np.full(len(chosen), None)
        for i in np.flatnonzero(passing == 1):
            key_id = self._keys[chosen[i]].key.key_id
            naming[i], user_id[i] = self._holders.naming(key_id, int(message[i]), created_at[i].as_py())
        return {
            "status": pa.array(["scored", "too_short"]).take(pa.array((message < 0).astype(np.int8))),
            "tokens": of_chosen([said.tokens for said in scores]),
            "scored": of_chosen([said.scored for said in scores]),
            "key_id": pa.array([test.key.key_id for test in self._keys]).take(pa.array(chosen)),
            "message": pa.array(message, mask=message < 0),
            "user_id": user_id,
            "naming": naming,
            "score": of_chosen([said.score for said in scores]),
            "log10_p": of_chosen([said.log10_p for said in scores]),
            "log10_p_global": of_chosen([said.log10_p_global for said in scores]),
            "runner_up_log10_p": pa.array(runner_up, mask=np.isnan(runner_up)),
            "messages_tested": np.array([test.key.messages for test in self._keys])[chosen],
            "keys_tested": np.full(len(chosen), self._keys_tested),
            "flagged": passing > 0,
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


def choose(scores: Sequence[Scores]) -> NDArray[np.int64]:
    """Key that gives each document its verdict: int64[D].

    The smallest corrected p among the keys that scored it, ties to the first. When no key scored it, the key with the
    most scored positions.
    """
    scoring = np.stack([said.message for said in scores]) >= 0
    smallest = np.where(scoring, np.stack([said.log10_p_global for said in scores]), np.inf).argmin(axis=0)
    chosen: NDArray[np.int64] = np.where(
        scoring.any(axis=0), smallest, np.stack([said.scored for said in scores]).argmax(axis=0)
    )
    return chosen


def count_passing(scores: Sequence[Scores], threshold: float) -> NDArray[np.int64]:
    """How many (key, message) of each document pass, corrected log10 p ≤ threshold; of each key its best two are seen.

    int64[D].
    """
    passes = [p <= threshold for said in scores for p in (said.log10_p_global, said.runner_up_global)]
    count: NDArray[np.int64] = np.stack(passes).sum(axis=0, dtype=np.int64)
    return count


def corrected(log10_p: NDArray[np.float64], messages: int, keys: int) -> NDArray[np.float64]:
    """log10 p of a key's best message, corrected for all of its messages, then for all keys (SPEC §3)."""
    return log10_any_of(log10_any_of(log10_p, messages), keys)

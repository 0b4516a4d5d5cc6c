"""Documents and keys in, verdicts out: one Arrow batch in, a batch of verdicts and a batch for quarantine out.

A document is tokenised once per tokenizer and scored under every key. The key with the smallest corrected p-value gives
the verdict; a user is named only when exactly one message of one key passes (SPEC §3, §4).
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.tokens import Tokenizer
from scanner.watermark import Positions, Tokens, Watermark, scored_positions
from scanner.watermark.pvalues import log10_any_of
from schemas.config import Dedup
from schemas.registry import MasterKey
from schemas.tables import QUARANTINE, VERDICTS

MAX_TEXT_BYTES = 16 * 2**20
"""Longer texts go to quarantine: a text that is worst for the tokenizer needs 220 times its size in memory."""


class Naming(Protocol):
    """Who holds a message; scanner.registry.Holders is one."""

    def naming(self, key_id: str, message: int, at: datetime | None) -> tuple[str, str | None]:
        """Return (naming, user_id) of a message at the time of a document."""


class Origin(NamedTuple):
    """Where a batch comes from, as it stands in every row."""

    scan_id: str
    shard_id: str
    path: str


@dataclass(frozen=True)
class KeyUnderTest:
    """A key of the registry, opened, with its tokenizer."""

    key: MasterKey
    watermark: Watermark
    tokenizer: Tokenizer


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


class Detector:
    """Scores documents under a fixed list of keys.

    Args:
        keys: every key that is tested, in the registry's order; their number is K of SPEC §3.
        holders: who holds a message.
        dedup: which repeats are left out.
        min_scored: scored positions below which a key does not score a document.
        false_positive_rate: a document is flagged when its corrected p-value is at most this.
    """

    def __init__(
        self,
        keys: Sequence[KeyUnderTest],
        holders: Naming,
        *,
        dedup: Dedup,
        min_scored: int,
        false_positive_rate: float,
    ) -> None:
        self._keys = tuple(keys)
        self._holders = holders
        self._dedup: Dedup = dedup
        self._min_scored = min_scored
        self._threshold = math.log10(false_positive_rate)

    def detect(self, documents: pa.RecordBatch, origin: Origin) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Score a batch of schemas.tables.DOCUMENTS.

        Returns:
            (VERDICTS, QUARANTINE): together one row for every document, each in the order of the batch.
        """
        columns = documents.to_pydict()
        texts: list[str] = []
        readable: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        now = datetime.now(UTC)
        for i, raw in enumerate(columns.pop("text")):
            row = {name: values[i] for name, values in columns.items()} | origin._asdict() | {"scanned_at": now}
            text, reason, detail = read_text(raw)
            if text is None:
                refused.append(row | {"reason": reason, "detail": detail})
            else:
                texts.append(text)
                readable.append(row | {"text_sha256": hashlib.sha256(raw).digest()})
        scores = self._score(texts) if texts else []
        verdicts = [row | self._verdict(scores, i, row["created_at"]) for i, row in enumerate(readable)]
        return pa.RecordBatch.from_pylist(verdicts, VERDICTS), pa.RecordBatch.from_pylist(refused, QUARANTINE)

    def _score(self, texts: Sequence[str]) -> list[Scores]:
        tokens: dict[str, Tokens] = {}
        positions: dict[tuple[str, int], Positions] = {}
        scores = []
        for test in self._keys:
            name, window = test.key.tokenizer.sha256, test.key.window
            if name not in tokens:
                tokens[name] = test.tokenizer.encode(texts)
            if (name, window) not in positions:
                positions[name, window] = scored_positions(tokens[name], window, self._dedup)
            scores.append(self._score_key(test, tokens[name], positions[name, window]))
        return scores

    def _score_key(self, test: KeyUnderTest, tokens: Tokens, positions: Positions) -> Scores:
        scored = positions.scored
        enough = scored >= self._min_scored
        # documents that are too short for this key cost nothing: the others alone are scored
        kept = Positions(
            positions.index[np.repeat(enough, scored)],
            np.concatenate([[0], np.cumsum(scored[enough])]).astype(np.int64),
        )
        messages, keys, mark = test.key.messages, len(self._keys), test.watermark
        best = mark.best_two(tokens, kept, messages)
        log10_p = mark.log10_p(best.score, kept.scored)
        runner_up = np.where(best.second_message >= 0, mark.log10_p(best.second_score, kept.scored), np.nan)
        runner_up_global = np.where(best.second_message >= 0, _corrected(np.nan_to_num(runner_up), messages, keys), 0.0)

        def spread(values: NDArray[Any], fill: float) -> NDArray[Any]:
            out = np.full(len(enough), fill, values.dtype)
            out[enough] = values
            return out

        return Scores(
            tokens=np.diff(tokens.offsets),
            scored=scored,
            message=spread(best.message, -1),
            score=spread(best.score.astype(np.float64), 0.0),
            log10_p=spread(log10_p, 0.0),
            log10_p_global=spread(_corrected(log10_p, messages, keys), 0.0),
            runner_up=spread(runner_up, np.nan),
            runner_up_global=spread(runner_up_global, 0.0),
        )

    def _verdict(self, scores: Sequence[Scores], i: int, at: datetime | None) -> dict[str, Any]:
        chosen = choose(scores, i)
        key, said = self._keys[chosen].key, scores[chosen]
        message = int(said.message[i])
        passing = count_passing(scores, i, self._threshold)
        naming, user_id = "none", None
        if passing == 1:
            naming, user_id = self._holders.naming(key.key_id, message, at)
        elif passing > 1:
            naming = "ambiguous"
        return {
            "status": "too_short" if message < 0 else "scored",
            "tokens": int(said.tokens[i]),
            "scored": int(said.scored[i]),
            "key_id": key.key_id,
            "message": None if message < 0 else message,
            "user_id": user_id,
            "naming": naming,
            "score": float(said.score[i]),
            "log10_p": float(said.log10_p[i]),
            "log10_p_global": float(said.log10_p_global[i]),
            "runner_up_log10_p": None if math.isnan(said.runner_up[i]) else float(said.runner_up[i]),
            "messages_tested": key.messages,
            "keys_tested": len(self._keys),
            "flagged": passing > 0,
        }


def read_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Decode a stored text: (text, "", ""), or (None, reason, detail) by schemas.tables.DOCUMENT_REASONS."""
    if raw is None:
        return None, "null_text", "there is no text"
    if len(raw) > MAX_TEXT_BYTES:
        return None, "too_long", f"the text has {len(raw)} bytes; at most {MAX_TEXT_BYTES} are scanned"
    try:
        return raw.decode(), "", ""
    except UnicodeDecodeError as error:
        try:
            raw.decode(errors="surrogatepass")
        except UnicodeDecodeError:
            return None, "invalid_utf8", f"byte {error.start} of the text: {error.reason}"
        return None, "surrogates", f"byte {error.start} of the text begins a surrogate, which is no character"


def choose(scores: Sequence[Scores], i: int) -> int:
    """Key that gives document i its verdict: the smallest corrected p among those that scored it, ties to the first.

    When no key scored it, the key with the most scored positions.
    """
    scoring = [k for k, said in enumerate(scores) if said.message[i] >= 0]
    if scoring:
        return min(scoring, key=lambda k: (scores[k].log10_p_global[i], k))
    return max(range(len(scores)), key=lambda k: (scores[k].scored[i], -k))


def count_passing(scores: Sequence[Scores], i: int, threshold: float) -> int:
    """How many (key, message) of document i pass, corrected log10 p ≤ threshold; of each key its best two are seen."""
    return sum(int(p <= threshold) for said in scores for p in (said.log10_p_global[i], said.runner_up_global[i]))


def _corrected(log10_p: NDArray[np.float64], messages: int, keys: int) -> NDArray[np.float64]:
    return log10_any_of(log10_any_of(log10_p, messages), keys)

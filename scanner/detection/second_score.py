"""A second score of flagged documents under Gumbel keys: ln r, or Neyman-Pearson with a model's probabilities.

It reads the draws that flagged the document and named the message. It is not independent evidence and no confirmation;
its p-value is never combined with the main one and decides nothing (schemas.tables.SECOND_SCORES).
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.rules import NO_FILTER, Filter
from scanner.errors import Refused, TokenizerError
from scanner.registry import open_key, tokenizer_path
from scanner.scan_plan import Plan
from scanner.storage.toml import canonical
from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Gumbel, LogGumbel, Positions, Tokens, neyman_pearson
from scanner.watermark.native.gumbel import sum_log_scores
from scanner.watermark.native.version2_marks import Version2Gumbel
from scanner.watermark.rule import log10_p_of
from schemas.config import SecondScoreConfig
from schemas.registry import MasterKey
from schemas.tables import SECOND_SCORES

if TYPE_CHECKING:
    from scanner.generation import LocalModel

Verdict = Mapping[str, Any]
"""Columns that identify a row of VERDICTS: its shard_id, path, row, doc_id, key_id and message."""


def settings(second: SecondScoreConfig) -> str:
    """Settings that decide the scores, as JSON: without the number of workers."""
    return canonical(second.model_dump(exclude={"workers", "gpus"}))


def transaction(shard_id: str, second: SecondScoreConfig) -> str:
    """Transaction under which the second scores of a shard are committed: once for each of their settings."""
    return f"{shard_id}:{hashlib.sha256(settings(second).encode()).hexdigest()[:16]}"


DRAWS: Mapping[str, Callable[..., NDArray[np.uint32]]] = {
    "gumbel": Gumbel.draws_of,
    "gumbel-v2": Version2Gumbel.draws_of,
}
"""Formats whose scored tokens meet uniform draws, with the function that gives the draws: uint32[P] under a message for
each document.
"""


def keys_with_draws(plan: Plan) -> list[MasterKey]:
    """Keys under test that a second score can be computed for."""
    return [key for key in plan.keys if key.format in DRAWS]


def check_second(plan: Plan) -> None:
    """Refuse a second score that cannot be computed, before any work.

    Raises:
        Refused: no key for it, no torch, or no model where it is said to be.
        TokenizerError: the model's tokenizer is not that of a key.
    """
    second = plan.second
    if second is None:
        return
    keys = keys_with_draws(plan)
    if not keys:
        raise Refused(
            f"second_score: no key under test is of method {' or '.join(map(repr, DRAWS))}; leave the section out"
        )
    if second.model is None:
        return
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise Refused(f"second_score: {module} is missing; install it with `pip install 'brickscan[model]'`")
    file = Path(second.model) / "tokenizer.json"
    if not file.is_file():
        raise Refused(f"second_score.model: {second.model!r} holds no tokenizer.json; name the folder of a model")
    found = sha256_file(file)
    for key in keys:
        if key.tokenizer.sha256 != found:
            raise TokenizerError(
                f"second_score.model: its tokenizer.json has SHA-256 {found}, but key {key.key_id!r} is pinned to"
                f" {key.tokenizer.sha256}; its probabilities would be of other tokens"
            )


class SecondScorer:
    """Scores flagged documents again. Opens keys, tokenizers and the model itself; a worker holds one.

    Args:
        plan: the scan's plan.
        second: how second scores are computed.
        device: torch's name of the model's device.
        without: n-grams that are left out of scoring.

    Raises:
        BrickscanError: one of them cannot be opened.
    """

    def __init__(self, plan: Plan, second: SecondScoreConfig, device: str, without: Filter = NO_FILTER) -> None:
        self._second, self._dedup, self._without = second, plan.config.dedup, without
        self._keys = {}
        for key in keys_with_draws(plan):
            mark, pinned = open_key(plan.registry, key), key.tokenizer.sha256
            tokenizer = load_tokenizer(tokenizer_path(plan.registry, key), pinned)
            self._keys[key.key_id] = (mark, DRAWS[key.format], pinned, tokenizer)
        self._model: LocalModel | None = None
        if self._second.model is not None:
            os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
            from scanner.generation import load_model

            self._model = load_model(Path(self._second.model), device=device)

    def rehearse(self) -> None:
        """Score a text under each key, so that later ones find kernels compiled and the model warm."""
        for key_id in self._keys:
            self.score([{"key_id": key_id, "message": 0}], ["one two three " * 20], "")

    def score(self, verdicts: Sequence[Verdict], texts: Sequence[str], scan_id: str) -> pa.RecordBatch:
        """Second scores of flagged documents: SECOND_SCORES, a row for each.

        Args:
            verdicts: the verdict on each document, under keys of `keys_with_draws`.
            texts: texts of the same documents.
            scan_id: id of this run.
        """
        rows = []
        for key_id in sorted({verdict["key_id"] for verdict in verdicts}):
            mark, draws_of, pinned, tokenizer = self._keys[key_id]
            of_this_key = [i for i, verdict in enumerate(verdicts) if verdict["key_id"] == key_id]
            tokens = tokenizer.encode([texts[i] for i in of_this_key])
            positions = self._without.positions(pinned, mark.rule, tokens, self._dedup)
            draws = draws_of(mark, tokens, positions, np.array([verdicts[i]["message"] for i in of_this_key], np.int64))
            for i, *values in zip(of_this_key, *self._scores(tokens, positions, draws), strict=True):
                rows.append(second_row(verdicts[i], scan_id, self._second) | dict(zip(_VALUES, values, strict=True)))
        return pa.RecordBatch.from_pylist(rows, SECOND_SCORES)

    def _scores(
        self, tokens: Tokens, positions: Positions, draws: NDArray[np.uint32]
    ) -> tuple[list[int], list[float], list[float]]:
        """Scored tokens, score and log10 p of each document."""
        if self._model is None:
            sums = sum_log_scores(draws, positions.offsets)
            return positions.scored.tolist(), sums.tolist(), log10_p_of(LogGumbel.law, sums, positions.scored).tolist()
        from scanner.generation import token_log_probabilities

        log_p = token_log_probabilities(
            self._model,
            np.split(tokens.ids, tokens.offsets[1:-1]),
            temperature=self._second.temperature,
            top_k=self._second.top_k,
            top_p=self._second.top_p,
        )
        found = neyman_pearson(draws, np.concatenate(log_p)[positions.index], positions.offsets)
        return found.used.tolist(), found.score.tolist(), found.log10_p.tolist()


_VALUES = ("scored", "score", "log10_p_not_independent")


def second_row(verdict: Verdict, scan_id: str, second: SecondScoreConfig) -> dict[str, Any]:
    """A row of SECOND_SCORES without its values."""
    return dict(verdict) | {
        "scan_id": scan_id,
        "score_name": second.score,
        "settings": settings(second),
        "scored_at": datetime.now(UTC),
    }

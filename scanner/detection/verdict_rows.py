"""Rows of a batch: columns of verdicts from what keys found, and tables from columns."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.detection.under_test import KeyUnderTest, Origin, log10_reach
from scanner.watermark.rule import Decision, Found, corrected
from schemas.words import Naming


def verdict_columns(
    keys: Sequence[KeyUnderTest],
    tests: NDArray[np.float64],
    lengths: NDArray[np.int64],
    found: Sequence[Found],
    decided: Decision,
    reason: pa.Array,
    whole_is_enough: NDArray[np.bool_],
    normalised: NDArray[np.bool_],
) -> dict[str, Any]:
    """Columns of VERDICTS on D texts, except for who had a message; `named`: somebody is named (`decide`).

    keys: the keys under test; tests: K of each key and variant, float64[K, variants]; lengths: in tokens under each
    key, int64[K, D]; reason: why only a part was scored; whole_is_enough: bool[D], texts that are long enough for a key
    if nothing is left out; normalised: bool[D], texts that are the normalised variant.
    """
    chosen, naming, rows = decided.key, decided.naming, np.arange(len(decided.key))
    runner_up = np.where(decided.candidate == 0, 1, 0)

    def of_chosen(values: Iterable[NDArray[Any]]) -> NDArray[Any]:
        return np.stack([*values])[chosen, rows]

    def of_candidate(values: Iterable[NDArray[Any]]) -> NDArray[Any]:
        # a key whose every document has fewer candidates is not the one that is chosen there
        return of_chosen(of_key[rows, np.minimum(decided.candidate, of_key.shape[1] - 1)] for of_key in values)

    tested = tests[chosen, normalised.astype(np.int64)]
    reach = np.array([log10_reach(test) for test in keys], np.float64)[chosen]
    reach_global, whole = corrected(reach, 1, tested), np.ceil(tested)

    def p_values(log10_p: NDArray[np.float64]) -> pa.Array:
        return _p_values(np.maximum(log10_p, reach))

    def p_values_global(log10_p: NDArray[np.float64]) -> pa.Array:
        return _p_values(np.maximum(log10_p, reach_global))

    message = of_candidate(said.message for said in found)
    scored = message >= 0
    return {
        "status": pc.if_else(
            scored,
            pc.if_else(reason.is_null(), "scored", "scored_in_part"),
            pc.if_else(whole_is_enough, "filtered", "too_short"),
        ),
        "tokens": of_chosen(lengths),
        "scored": of_chosen(said.scored for said in found),
        "key_id": pa.array([test.key.key_id for test in keys]).take(pa.array(chosen)),
        # undecided: none is shown, since the best may be a stranger
        "message": pa.array(message, mask=~scored | (naming == Naming.UNDECIDED)),
        "naming": naming,
        "proof": np.full(len(chosen), None, object),
        "score": of_candidate(said.score for said in found),
        # p = 1 for texts that are not scored
        "log10_p": p_values(np.where(scored, of_candidate(said.log10_p for said in found), 0.0)),
        "log10_p_global": p_values_global(np.where(scored, of_candidate(said.log10_p_global for said in found), 0.0)),
        "runner_up_log10_p": p_values(of_chosen(said.log10_p[rows, runner_up] for said in found)),
        "runner_up_log10_p_global": p_values_global(of_chosen(said.log10_p_global[rows, runner_up] for said in found)),
        "messages_tested": np.array([test.key.messages for test in keys])[chosen],
        "keys_tested": whole.astype(np.int64),
        "tests": pa.array(tested, mask=whole == tested),
        "flagged": decided.flagged,
        "basis": pa.array([str(test.watermark.basis) for test in keys]).take(pa.array(chosen)),
        "p_rank": _p_values(of_candidate(said.p_rank for said in found)),
        "text_id": pa.nulls(len(chosen), pa.binary()),
        "p_class": pa.nulls(len(chosen), pa.int64()),
        "sketch": pa.nulls(len(chosen), pa.binary()),
        "unit": pa.nulls(len(chosen), pa.string()),
        "canary": pa.nulls(len(chosen), pa.bool_()),
    }


def plain_lengths(rows: pa.Array, lengths: NDArray[np.int64], found: Sequence[Found]) -> pa.RecordBatch:
    """`lengths` of Looked, of D rows and their tokens under K keys, int64[K, D]."""
    first = np.argmax(np.stack([said.message[:, 0] >= 0 for said in found]), axis=0)
    scored = np.stack([said.scored for said in found])
    at = first, np.arange(len(first))
    return pa.RecordBatch.from_pydict({"row": rows, "tokens": lengths[at], "scored": scored[at]})


def columns_of_faults(faults: Mapping[int, tuple[str, str]], documents: int) -> dict[str, pa.Array]:
    """Reason and detail of D documents, by column; null where there is no fault."""
    if not faults:
        return dict.fromkeys(("reason", "detail"), pa.nulls(documents, pa.string()))
    told = [faults.get(row, (None, None)) for row in range(documents)]
    return {
        name: pa.array(of_all, pa.string())
        for name, of_all in zip(("reason", "detail"), zip(*told, strict=True), strict=True)
    }


def table_of(
    schema: pa.Schema, documents: pa.RecordBatch, origin: Origin, now: datetime, columns: dict[str, Any]
) -> pa.RecordBatch:
    """Rows of a schema: the given columns, the documents' columns, and the values that every row shares."""
    same = origin._asdict() | {"scanned_at": now}

    def column(field: pa.Field) -> pa.Array:
        if field.name in same:
            return pa.repeat(pa.scalar(same[field.name], field.type), len(documents))
        if field.name not in columns:
            return documents[field.name]
        values = columns[field.name]
        return values if isinstance(values, pa.Array) else pa.array(values, field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def _p_values(log10_p: NDArray[np.float64]) -> pa.Array:
    """p-values as tables have them: null where there is none."""
    return pa.array(log10_p, mask=np.isnan(log10_p))

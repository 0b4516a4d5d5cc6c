"""Data for an audit's drawings, and the n-grams behind small p-values: counts, and their text only on request."""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from scanner.audit.calibration.calibration_plan import CalibrationPlan
from scanner.audit.calibration.disjoint_pieces import PANELS, PieceCounts, repeated
from scanner.audit.calibration.names import NamesCase, NamesCounts
from scanner.audit.calibration.one_key import KeyCounts
from scanner.registry import tokenizer_path
from scanner.watermark import Format
from scanner.watermark.positions import PositionRule

SHOWN = 20
"""n-grams of a text or key that are listed."""


def details(
    plan: CalibrationPlan,
    pieces: Mapping[Format, PieceCounts],
    names: Mapping[NamesCase, NamesCounts],
    keys: Mapping[str, KeyCounts],
    thresholds: Sequence[float],
    show_text: bool,
) -> dict[str, Any]:
    """Numbers to be written as JSON.

    Args:
        plan: the audit.
        pieces: counts by format.
        names: counts by case.
        keys: counts by key id.
        thresholds: the pieces' thresholds.
        show_text: decode n-grams, and the vanilla text; otherwise only counts are given.
    """
    reader = _Reader(plan.tokenizer) if show_text else None
    found: dict[str, Any] = {"figure": [], "names": [_named(*entry) for entry in names.items()], "keys": {}}
    for how, counts in pieces.items():
        found["figure"].append(
            {
                **how.columns()._asdict(),
                "label": how.label(),
                "pieces": counts.tests,
                "thresholds": list(thresholds),
                "panels": [
                    {"test": test, "dedup": dedup, "hits": counts.hits[:, i].tolist()}
                    for i, (test, dedup) in enumerate(PANELS)
                ],
                "smallest_p": _vanilla(counts, how.rule(), reader),
            }
        )
    if plan.audited is not None:
        for key in plan.audited.keys:
            own = _Reader(str(tokenizer_path(plan.audited.registry, key))) if show_text else None
            found["keys"][key.key_id] = _excess(keys[key.key_id], own)
    return found


def _named(case: NamesCase, found: NamesCounts) -> dict[str, Any]:
    """Numbers of one case: at each rate of NAMES_AT, texts that count and the stated number; users, and users named."""
    return {
        "label": case.format.label(),
        "kind": case.kind,
        "texts_of": case.users_in_words,
        "tokens": case.tokens,
        "texts": int(found.sums.clusters[0]),
        "hits": found.sums.hits.tolist(),
        "expected": found.sums.expected.tolist(),
        "users": found.marked,
        "users_named": found.named,
    }


class _Reader:
    """Turns token ids into text for people."""

    def __init__(self, path: str) -> None:
        self._inner = tokenizers.Tokenizer.from_file(path)

    def __call__(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


def _vanilla(counts: PieceCounts, rule: PositionRule, reader: _Reader | None) -> dict[str, Any]:
    worst = counts.worst
    shown: dict[str, Any] = {
        "key": worst.key,
        "log10_p_none": worst.log10_p,
        "log10_p_ngram": worst.log10_p_ngram,
        "scored_none": worst.scored,
        "scored_ngram": worst.scored_ngram,
        "repeated": [
            {"times": times} | ({} if reader is None else {"text": reader(gram)})
            for times, gram in repeated(worst.ids, rule, SHOWN)
        ],
    }
    return shown | ({} if reader is None else {"text": reader(worst.ids.tolist())})


def _excess(counts: KeyCounts, reader: _Reader | None) -> list[dict[str, Any]]:
    top = sorted(counts.ngrams.items(), key=lambda item: -item[1].excess)[:SHOWN]
    return [
        {"hits": ngram.hits, "excess": ngram.excess} | ({} if reader is None else {"text": reader(gram)})
        for gram, ngram in top
    ]

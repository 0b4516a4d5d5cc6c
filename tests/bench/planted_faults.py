"""Which control of a scan's audit sees which fault: `make planted-faults`, a table of nights of 50,000 documents.

Hits of each control are drawn from the law that p-values have under a fault, and judged as a scan judges them, by the
code of `make audit-power`. A cell is the share of nights in which the control alarms. Proofs are computed by the
detector: a cell says how many of 40 marked texts came out differently.

Assumed: two keys with groups, one of each format, of which the first has the fault; whole texts and parts are tested;
independent tests, so that design effects are 1; continuous laws; REACHED of a threshold is reached by the best message
of sound keys, as tests.bench.decisions measures; one document in twenty is long; 200 canaries, nine in ten of which are
found.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS
from scanner.audit.statistics.judgement import KEY_BOUND, binomial_limits
from scanner.controls.controls import FAMILIES
from scanner.controls.decoys.draws import FEWEST_DOCUMENTS_ALL_MESSAGES, share_of
from scanner.controls.decoys.whole_texts import REACH_OF_GROUPS
from scanner.controls.reserved.expectation import single_p
from scanner.detection.attribution import BatchOrigin
from scanner.detection.open_plan import open_detector
from scanner.watermark import rule
from schemas.config import ScanAuditConfig
from schemas.registry import MasterKey, reserved_count
from schemas.tables import DOCUMENTS
from schemas.words import Proof
from tests.bench.audit_power import Row
from tests.support.audited_scan import Key, make
from tests.support.demo_texts import DEMO, sample_texts

N, MESSAGES, COUNTED, KEYS, UNITS, LONG = 50_000, 105_625, 325, 2, 2, 0.05
STRATA_ROWS = 10
"""Parts of the traffic that a night has, of all kinds."""
LOOKS = 60
"""Parts of a document, half of which are as good as independent."""
REACHED = np.interp(np.arange(1, 9), [1, 2, 3, 4], [0.53, 0.70, 0.80, 1.0])
CANARIES, PLANNED = 200, 0.9
REPEATS, REPEATING = 4, 0.05
"""Occurrences of each n-gram in texts of a generator that repeats; their share of the texts."""

Levels = NDArray[np.float64]
Law = Callable[[Levels], Levels]
"""P(p ≤ α) of one message's own p."""


def times(factor: float) -> Law:
    """Law of p-values that are multiplied by a factor."""
    return lambda alpha: np.minimum(alpha / factor, 1.0)


def tail(alpha: Levels) -> Levels:
    """Law of p-values that are right down to 1e-4, and fall as their power of 1.5 below."""
    return np.where(alpha < 1e-4, 1e-4 * (alpha / 1e-4) ** (1 / 1.5), alpha)


def repeating(alpha: Levels) -> Levels:
    """Law of p-values of texts that hold each n-gram REPEATS times, where each occurrence counts: normal scores."""
    return np.asarray(stats.norm.sf(stats.norm.isf(alpha) / np.sqrt(REPEATS)), np.float64)


def some_repeating(alpha: Levels) -> Levels:
    """Law of p-values of all texts, REPEATING of which repeat themselves."""
    return (1 - REPEATING) * alpha + REPEATING * repeating(alpha)


def right(alpha: Levels) -> Levels:
    """The law as it is stated."""
    return alpha


class Fault:
    """A fault by its effect on p-values.

    Args:
        title: for people.
        all_texts: law of one message under decoys of the first format; long: of long texts, None: the same.
        verdict: law of one message in verdicts of the first key, None: as decoys.
        messages, keys: numbers that best messages are corrected for.
        found: share of marked texts that are found.
        looks: number of parts that the best part is corrected for.
        detector: whether the detector alone has the fault, and not the functions that decoys share with it.
    """

    def __init__(
        self,
        title: str,
        all_texts: Law = right,
        long: Law | None = None,
        verdict: Law | None = None,
        messages: int = MESSAGES,
        keys: int = KEYS,
        found: float = 1.0,
        looks: int = LOOKS,
        detector: bool = False,
    ) -> None:
        self.title, self.long, self.messages, self.keys, self.found = title, long or all_texts, messages, keys, found
        self.looks, self.detector = looks, detector
        self.short, self.of_key = all_texts, verdict
        self.law: Law = lambda alpha: (1 - LONG) * all_texts(alpha) + LONG * self.long(alpha)
        self.verdict = verdict or self.law

    def best(self, law: Law, tests: int) -> Levels:
        """Chance that the best message passes each threshold, corrected for messages as the fault has it."""
        own = single_p(THRESHOLDS, self.messages, tests)
        return np.asarray(-np.expm1(MESSAGES * np.log1p(-law(own).clip(max=0.5))), np.float64)


FAULTS = (
    Fault("none"),
    *(Fault(f"one format's p × {c}", times(c)) for c in (0.8, 0.5)),
    Fault("its tail: p^1.5 below 1e-4", tail),
    *(Fault(f"texts over 1,000 tokens: p × {c}", long=times(c)) for c in (0.7, 0.5)),
    Fault("a generator repeats, each n-gram counts four times in 5 % of the texts", some_repeating),
    *(Fault(f"one key's verdict path: p × {c}", verdict=times(c)) for c in (0.5, 0.25)),
    Fault("correction for messages dropped", messages=1),
    Fault("the same, by the detector alone", messages=1, detector=True),
    Fault("correction for keys dropped", keys=1),
    Fault("parts of a text counted as one", looks=1),
    Fault("the same, by the detector alone", looks=1, detector=True),
    Fault("half of the marked text is not found", found=0.5),
)


def controls(fault: Fault, documents: int = N) -> Iterator[tuple[str, list[tuple[Row, Levels]]]]:
    """Rows of each control in a night of so many documents, each with its chances under a fault."""
    audit, alpha, deep = ScanAuditConfig(), np.array(THRESHOLDS), np.array(DEEP_THRESHOLDS)
    share = audit.family_error / FAMILIES
    risk = share / (6 * len(THRESHOLDS) + 2 * len(DEEP_THRESHOLDS))  # two formats: best, all, parts; decisions twice
    of_all = round(documents * share_of(audit.all_messages_share, FEWEST_DOCUMENTS_ALL_MESSAGES, documents))
    best = Row("best", THRESHOLDS, of_all, of_all, alpha, risk)
    every = Row("all", DEEP_THRESHOLDS, of_all * COUNTED, of_all, deep, risk)
    parts = Row("parts", THRESHOLDS, of_all, of_all, alpha, risk)
    shared = FAULTS[0] if fault.detector else fault
    of_parts, of_best = -np.expm1(LOOKS / 2 / shared.looks * np.log1p(-alpha)), shared.best(fault.law, 1) * REACHED
    decoys = [(parts, of_parts), (best, of_best), (every, fault.law(deep))]
    yield "decoys", decoys
    decided, levels = round(documents * audit.decisions_share), -np.expm1(np.log1p(-alpha) / (KEYS * UNITS))
    limits = np.select([levels >= least for least, _ in REACH_OF_GROUPS], [most for _, most in REACH_OF_GROUPS], 1.0)
    of_whole, missed, whole_missed = 1 - (1 - levels * limits) ** KEYS, np.ones(len(alpha)), np.ones(len(alpha))
    for law in (fault.law, *[right] * (KEYS - 1)):
        whole = fault.best(law, fault.keys * UNITS) * REACHED
        whole_missed *= 1 - whole
        missed *= (1 - whole) ** (1 + LOOKS / 2 / fault.looks)  # the document, and its parts
    yield (
        "whole decisions",
        [
            (Row("", THRESHOLDS, decided, decided, 1 - (1 - of_whole) ** UNITS, risk), 1 - missed),
            (Row("", THRESHOLDS, decided, decided, of_whole, risk), 1 - whole_missed),
        ],
    )
    count = reserved_count(MESSAGES)
    own = single_p(THRESHOLDS, MESSAGES, KEYS * UNITS)
    wrong = fault.verdict(single_p(THRESHOLDS, fault.messages, fault.keys * UNITS)) * REACHED
    reserved = Row("", THRESHOLDS, documents * count, count, own * REACHED, share / (KEYS * len(THRESHOLDS)), KEY_BOUND)
    yield "reserved", [(reserved, np.minimum(wrong, 0.5))]
    long, of_parts = round(KEYS * of_all * LONG), share / (STRATA_ROWS * len(DEEP_THRESHOLDS))
    of_long = Row("", DEEP_THRESHOLDS, long * COUNTED, long, deep, of_parts)
    yield "strata", [(of_long, (fault.long(deep) + deep) / 2)]


def alarms(fault: Fault, nights: int, documents: int = N) -> list[float]:
    """Share of nights in which each control alarms: decoys, decisions, reserved, strata, canaries."""
    found = []
    for name, rows in controls(fault, documents):
        seen = np.zeros(nights, np.bool_)
        for number, (row, law) in enumerate(rows):
            hits = row.nights(np.minimum.accumulate(np.minimum(law, 1.0)), nights, number + 7 * len(name))
            seen |= (hits >= row.critical()).any(axis=1)
        found.append(float(seen.mean()))
    hits = np.random.default_rng(5).binomial(CANARIES, PLANNED * fault.found, nights)
    risk = ScanAuditConfig().family_error / FAMILIES / 3
    lost = {h: binomial_limits(h, CANARIES, risk).high < PLANNED for h in np.unique(hits).tolist()}
    return [*found, float(np.mean([lost[h] for h in hits.tolist()]))]


def refuted(fault: Fault) -> int | None:
    """Marked texts, of 40, whose flags come out differently when they are proved; a half counts as long, or repeating.

    None: such faults are not planted here.
    """
    if fault.looks != LOOKS or fault.found < 1:
        return None
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        secret = Path(folder) / "demo.key"
        secret.touch(mode=0o600)
        secret.write_bytes((DEMO / "secrets" / "demo-paper.key").read_bytes())
        plan = make(Path(folder) / "scan", ["some text"], Key(MESSAGES - 5625, secret=f"file:{secret}"), Key(1))
        sound, corrected = rule.log10_p_of, rule.corrected
        if fault.keys != KEYS:
            patch.setattr(MasterKey, "tested_among", lambda self, keys_tested: 1)
        if fault.messages != MESSAGES:
            patch.setattr(rule, "corrected", lambda p, messages, keys=1: corrected(p, 1, keys))

        def changed(law, score, scored):  # type: ignore[no-untyped-def]
            p = sound(law, score, scored)
            of_long = np.broadcast_to(np.asarray(scored) >= np.median(scored), np.shape(p))
            if fault.short is some_repeating:
                counted = stats.norm.logsf(stats.norm.isf(10.0**p) * np.sqrt(REPEATS)) / np.log(10)
                return np.where(of_long, counted, p)
            if fault.of_key:
                return _inverse(fault.of_key, p)
            return np.where(of_long, _inverse(fault.long, p), _inverse(fault.short, p))

        detector = open_detector(plan)
        patch.setattr(rule, "log10_p_of", changed)
        texts = sample_texts("marked", "demo-paper")[:40]
        rows = [{"row": row, "text": text.encode()} for row, text in enumerate(texts)]
        verdicts, *_ = detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("", "", ""))
        return sum(proof == Proof.DIFFERS for proof in verdicts["proof"].to_pylist())


def _inverse(law: Law, log10_p: Levels) -> Levels:
    """The p-values that a law of p-values makes of right ones, as log10."""
    if law(np.array([1e-9]))[0] == 1e-9:
        return log10_p
    if law(np.array([0.01]))[0] == 0.01:
        return np.where(log10_p < -4, -4 + 1.5 * (log10_p + 4), log10_p)
    return log10_p - np.log10(float(law(np.array([1e-9]))[0]) / 1e-9)


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.planted_faults", description=__doc__)
    parser.add_argument("--nights", type=int, default=2000)
    parser.add_argument("--documents", type=float, default=N, help="of a night")
    parser.add_argument("--faults", default="", help="those whose titles hold this")
    options = parser.parse_args()
    print("| fault | decoys | whole decisions | reserved | strata | canaries | proofs |")
    print("|---|---|---|---|---|---|---|")
    for fault in (fault for fault in FAULTS if options.faults in fault.title):
        cells = [f"{share:.3g}" for share in alarms(fault, options.nights, int(options.documents))]
        proofs = refuted(fault)
        print(f"| {fault.title} | {' | '.join(cells)} | {'-' if proofs is None else proofs} |", flush=True)


if __name__ == "__main__":
    main()

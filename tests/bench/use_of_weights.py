"""How much of a rate the plain sum and levels use together: `python -m tests.bench.use_of_weights CORPUS.parquet`.

Texts of a corpus that nobody marked are decided by the detector and by that of the pass by levels, each look with its
share of the rate, under keys that are drawn anew for every 64 texts. A text counts by the smallest corrected p of both
verdicts and of its spans. All texts go through the second look, as if a cut let all through. Levels come from n-grams
of other texts of the corpus. Beside the share of each rate that is used, with 99 % limits, stands a ceiling: the sum
over keys and looks of how many messages reach the look's level on average, were every group searched. Looks that pass
together leave some of it.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.controls.decoys.whole_texts import TEXTS_A_DRAW, WholeTextDecoys
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.detection.open_plan import open_detector, open_keys
from scanner.detection.rules import NO_FILTER
from scanner.error_shares import AS_WRITTEN
from scanner.looks.levels.model_scoring import open_model_pass
from scanner.looks.levels.token_levels import TextLevels
from scanner.scan_plan import make_plan
from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Watermark
from scanner.watermark.by_levels import level_counts, tail_of
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Binomial
from scanner.watermark.level_laws import of_characters
from schemas.tables import DOCUMENTS
from tests.bench.configured import FOR_USERS, LOOKS_OF_INIT, ONE_MESSAGE, add_looks, make_scan
from tests.bench.level_nulls import learnt_ngrams, needed_by_levels
from tests.bench.use_of_rate import DEMO, LOOKED_FOR, RATES, Kept, ceiling

# keys are made often: with few seeds their trees are small
GUMBEL: dict[str, Any] = {"format": "gumbel-v3", "window": 4, "seeds": 12}
GREEN: dict[str, Any] = {"format": "greenlist-v3", "window": 4, "gamma": "1/4", "seeds": 12}
CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "two keys of one message, gumbel": (2, GUMBEL | ONE_MESSAGE, {}),
    "two keys of one message, green": (2, GREEN | ONE_MESSAGE, {}),
    "two keys for 100,000 users, gumbel": (2, GUMBEL | FOR_USERS, {}),
    "two keys for 100,000 users, green": (2, GREEN | FOR_USERS, {}),
    "all looks that init writes, gumbel": (2, GUMBEL | FOR_USERS, LOOKS_OF_INIT),
    "all looks that init writes, green": (2, GREEN | FOR_USERS, LOOKS_OF_INIT),
}
"""Keys, their form, and looks beside the whole text as it stands; those with all looks are for 100,000 users."""

CHARACTERS, LEARNT = 900, 1e6
SHOWN = 12_800
"""Texts after which the use so far is printed, so that little is lost where a run ends early."""


def ceiling_of_levels(seen: Sequence[KeyPositions], levels: TextLevels, correction: float) -> NDArray[np.float64]:
    """Messages that reach the level of the look by levels, over keys: float64[rates], of all texts together."""
    total = np.zeros(len(RATES))
    for of_key in seen:
        key, positions = of_key.opened_key.key, of_key.positions
        law, level = format_of(key).law(), -np.expm1(np.log1p(-np.array(RATES)) / (correction * key.messages))
        tail = tail_of(law)
        assert tail is not None
        counts = level_counts(levels.of(key.tokenizer.sha256)(of_key.tokens)[positions.index], positions.scored)
        needed = needed_by_levels(tail, counts, level, whole=isinstance(law, Binomial))
        total += key.messages * np.where(needed.p <= level, needed.p, 0.0).sum(axis=0)
    return total


def measure(name: str, texts: Sequence[str], steps: Sequence[NDArray[np.uint8]], options: argparse.Namespace) -> None:
    """Print the use and the ceiling of a case, every SHOWN texts too; steps: of surprise, of each text's characters."""
    keys, form, looks = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        pq.write_table(pa.table({"text": ["some text"]}), at / "in.parquet")
        config = make_scan(at, DEMO / "tokenizer.json", keys, 1, [at / "in.parquet"], (1.0, 0.0, 1.0), **form)
        add_looks(config, looks | {"levels": {"model": "no model: levels are put"}})
        plan = make_plan(config)
        tests = open_keys(plan.registry, plan.keys)
        levels, whole_texts = TextLevels.of_keys(tests), WholeTextDecoys(bytes(32), plan)
        detectors = open_detector(plan), open_model_pass(plan, tests, levels, NO_FILTER)
        correction = float(plan.weights.for_levels().corrections(plan.keys[0], plan.keys_tested)[AS_WRITTEN, 1, 1])
        began, log10_p, most, counted = time.process_time(), np.zeros(len(texts)), np.zeros(len(RATES)), 0
        for begin in range(0, len(texts), TEXTS_A_DRAW):
            some = texts[begin : begin + TEXTS_A_DRAW]
            levels.put(some, steps[begin : begin + TEXTS_A_DRAW])
            batch = pa.RecordBatch.from_pylist(
                [{"row": row, "text": text.encode()} for row, text in enumerate(some)], DOCUMENTS
            )
            marks: dict[str, Watermark] = whole_texts.marks(b"%s %d %d" % (name.encode(), options.seed, begin))
            seen = list[Sequence[KeyPositions]]()
            for detector in detectors:
                observer = Kept()
                result = detector.under(marks, observer, LOOKED_FOR).score_batch(
                    batch, BatchOrigin("", "", ""), observer
                )
                for rows in (result.verdicts, result.spans):
                    values = rows["log10_p_global"].to_numpy(zero_copy_only=False).astype(np.float64)
                    np.fmin.at(log10_p[begin:], rows["row"].to_numpy(), values)
                seen.append(observer.seen)
            if counted < options.ceiling:
                of_sum = ceiling(plan, some, seen[0])[1].sum(axis=0)
                most, counted = most + of_sum + ceiling_of_levels(seen[1], levels, correction), counted + len(some)
            done = begin + len(some)
            if done % SHOWN == 0 or done == len(texts):
                spent = (time.process_time() - began) / done
                print(f"{name}, seed {options.seed}: {spent * 1e3:.1f} ms each; ceiling by {counted}")
                print_use(log10_p[:done], most / counted)


def print_use(log10_p: NDArray[np.float64], ceilings: NDArray[np.float64]) -> None:
    """Print how many texts reach each rate, beside the ceiling of each, float64[rates]."""
    for rate, most in zip(RATES, ceilings.tolist(), strict=True):
        hits = int((log10_p <= np.log10(rate)).sum())
        low, high = (limit / rate for limit in binomial_limits(hits, len(log10_p), 0.005))
        use = f"use {hits / len(log10_p) / rate:.3f} ({low:.3f} to {high:.3f})"
        print(f"  at {rate:g}: {hits} of {len(log10_p):,} flagged, {use}, ceiling {most / rate:.3f}", flush=True)


def main() -> None:
    """Measure each case on texts in random order."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.use_of_weights", description=__doc__)
    parser.add_argument("corpus", type=Path, help="Parquet file with a column text")
    parser.add_argument("--cases", default="", help="those whose names hold this")
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--ceiling", type=int, default=256, help="texts by which the ceiling is computed")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    column = pq.read_table(options.corpus, columns=["text"])["text"]
    order = np.random.default_rng(options.seed).permutation(len(column))
    stored = [text[:CHARACTERS] for row in order if (text := column[int(row)].as_py())]
    texts, others = stored[: options.texts], stored[options.texts :]
    tokenizer = HuggingFaceTokenizer((DEMO / "tokenizer.json").read_bytes())
    table = learnt_ngrams(others, tokenizer, LEARNT)
    steps = []
    for text in texts:
        surprise = -np.log(table.probabilities(tokenizer.encode([text]).ids.tolist()))
        steps.append(of_characters(surprise, tokenizer.begins(text), len(text)))
    for name in CASES:
        if options.cases in name:
            measure(name, texts, steps, options)


if __name__ == "__main__":
    main()

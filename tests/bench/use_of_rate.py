"""How much of a stated rate is used on unmarked text: `python -m tests.bench.use_of_rate CORPUS.parquet`.

Texts of a corpus that nobody marked are decided by the detector, with all looks on, under keys that are drawn anew for
every 64 texts. A text counts by the smallest corrected p of its verdict and its spans. Beside the share of each rate
that is used, with 99 % limits, stands a ceiling: the sum over keys and looks of how many messages with a p below the
look's level the search finds on average, of some of the texts. It holds whatever the looks share, and is reached only
by looks that never pass together. A second ceiling is that of a search of all groups: what scores in whole numbers can
reach. Both stand once more for whole texts alone. Keys of other stacks are counted by their law alone: that a flagged
text must beat 999 decoys as well lowers their ceiling to 1 in 1,000 a key.

`--overlap` prints what part of the sum of all windows' chances the chance of any window is, which is the most that any
bound could gain over 1 − (1 − p)^N. A window that passes is drawn first, then the text given that: the chance of any is
the sum times the mean of 1 over the number of windows that pass.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import special

from scanner.audit.statistics.judgement import binomial_limits
from scanner.controls.decoys.whole_texts import TEXTS_A_DRAW, WholeTextDecoys
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.detection.open_plan import open_detector
from scanner.looks.normalising import normalise
from scanner.registry import NamedUser
from scanner.scan_plan import Plan, make_plan
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Law, least_score
from scanner.watermark.text_windows import windows
from schemas.tables import DOCUMENTS
from schemas.words import Naming
from tests.bench.configured import FOR_USERS, ONE_MESSAGE, VERSION_3, make_scan

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
RATES = (0.05, 0.01, 0.001)
LOOKED_FOR = 0.1
ALL_LOOKS = "[variants]\nnormalised = true\n[spans]\nwindows = true\nsegments = true\n"
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "two keys of one message, gumbel": (2, VERSION_3["gumbel-v3"] | ONE_MESSAGE),
    "two keys for 100,000 users, gumbel": (2, VERSION_3["gumbel-v3"] | FOR_USERS),
    "two keys for 100,000 users, green": (2, VERSION_3["greenlist-v3"] | FOR_USERS),
    "two keys of vLLM": (2, {"format": "vllm-gumbel"} | ONE_MESSAGE),
}
MOST_CHARACTERS = 20_000
OVERLAPS = 4000


class Kept:
    """Observer that keeps the scores of a batch, and holder of nothing."""

    def observe(self, digests: Sequence[bytes], seen: Sequence[KeyPositions], text_of: object) -> None:
        self.seen = seen

    def naming(self, key_id: str, message: int, at: object) -> NamedUser:
        return NamedUser(Naming.UNALLOCATED, None, None)


def ceiling(plan: Plan, texts: Sequence[str], seen: Sequence[KeyPositions]) -> NDArray[np.float64]:
    """Sum over keys and looks of the messages that are found below the look's level: float64[4, D, rates].

    In this order: by all looks; by all, were every group searched; by whole texts; by whole texts, likewise.
    """
    weights, total = plan.weights, np.zeros((4, len(texts), len(RATES)))
    differs = np.array([normalise(text) != text for text in texts])
    for of_key in seen:
        key, how, parted = of_key.opened_key.key, format_of(of_key.opened_key.key), of_key.has_parts
        tests = weights.corrections(key, plan.keys_tested)[:, differs.astype(int), parted.astype(int)]
        spans = weights.correction_of_spans(key, plan.keys_tested)

        def found(length: int, tests: float, looks: int, key: Any = key, how: Any = how) -> NDArray[np.float64]:
            """Messages that pass in a part of so many positions, found and of all groups: float64[2, rates]."""
            of_look = -np.expm1(np.log1p(-np.array(RATES)) / (tests * looks * key.messages))
            of_search = how.found_chance(np.array([length]), of_look)[0]
            return key.messages * np.stack([of_search, attained(how.law(), length, of_look)])

        for place, d in enumerate(of_key.documents.tolist()):
            scored = int(of_key.positions.scored[place])
            for variant in range(min(len(tests), 1 + int(differs[d] and not how.basis().assumed))):
                whole = found(scored, tests[variant, d], 1)
                total[:2, d], total[2:, d] = total[:2, d] + whole, total[2:, d] + whole
            if parted[d] and of_key.parts is not None and spans is not None:
                where, _ = of_key.parts.ranges_of(place, scored)
                lengths, count = np.unique(where[:, 1] - where[:, 0], return_counts=True)
                total[:2, d] += sum(c * found(t, spans, len(where)) for t, c in zip(lengths, count, strict=True))
    return total


def attained(law: Law | None, scored: int, p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest p that a score of so many positions can have, at or below each p; 0: none."""
    if law is None or not law.discrete:
        return p
    least = np.concatenate([least_score(law, np.array([scored]), float(np.log10(one))) for one in p])
    return np.where(least <= scored, 10.0 ** law.log10_p(np.minimum(least, scored), np.full(len(p), scored)), 0.0)


def measure(name: str, texts: Sequence[str], options: argparse.Namespace) -> None:
    """Print the use and the ceiling of a case."""
    keys, form = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        pq.write_table(pa.table({"text": ["some text"]}), at / "in.parquet")
        config = make_scan(at, DEMO / "tokenizer.json", keys, 1, [at / "in.parquet"], (1.0, 0.0, 1.0), **form)
        config.write_text(config.read_text() + ALL_LOOKS)
        plan = make_plan(config)
        detector, whole_texts, observer = open_detector(plan), WholeTextDecoys(bytes(32), plan), Kept()
        began, log10_p, of_wholes, ceilings, scored = time.process_time(), [], [], [], 0
        for begin in range(0, len(texts), TEXTS_A_DRAW):
            some = texts[begin : begin + TEXTS_A_DRAW]
            documents = [{"row": row, "text": text.encode()} for row, text in enumerate(some)]
            batch = pa.RecordBatch.from_pylist(documents, DOCUMENTS)
            marks = whole_texts.marks(b"%s %d %d" % (name.encode(), options.seed, begin))
            looked = detector.under(marks, observer, LOOKED_FOR).score_batch(batch, BatchOrigin("", "", ""), observer)
            p = np.zeros(len(some))
            for rows in (looked.verdicts, looked.spans):
                values = rows["log10_p_global"].to_numpy(zero_copy_only=False).astype(np.float64)
                np.fmin.at(p, rows["row"].to_numpy(), values)
                if rows is looked.verdicts:
                    of_wholes.append(p.copy())
            log10_p.append(p)
            scored += len({d for of_key in observer.seen for d in of_key.documents.tolist()})
            if len(ceilings) * TEXTS_A_DRAW < options.ceiling:
                ceilings.append(ceiling(plan, some, observer.seen))
        spent = (time.process_time() - began) / len(texts)
    most = np.concatenate(ceilings, axis=1)
    print(f"{name}: {scored:,} texts long enough, {spent * 1e3:.1f} ms each; ceiling by {most.shape[1]}")
    for what, of_texts, limits in (("all looks", log10_p, most[:2]), ("whole texts", of_wholes, most[2:])):
        p = np.concatenate(of_texts)
        for j, rate in enumerate(RATES):
            hits = int((p <= np.log10(rate)).sum())
            low, high = (limit / rate for limit in binomial_limits(hits, len(p), 0.005))
            found, every_group = limits[:, :, j].mean(axis=1) / rate
            print(
                f"  {what} at {rate:g}: {hits} of {len(p):,} flagged, use {hits / len(p) / rate:.3f} ({low:.3f} to "
                f"{high:.3f}), ceiling {found:.3f}, were every group searched {every_group:.3f}",
                flush=True,
            )


def overlap(scored: int, p: float, texts: int, random: np.random.Generator) -> NDArray[np.float64]:
    """1 over the number of windows that pass at p, in texts of which a random window passes: float64[D]; Gumbel."""
    where = windows(scored)
    least = special.gammainccinv(where[:, 1] - where[:, 0], p)
    terms, which = random.exponential(size=(texts, scored)), random.integers(0, len(where), texts)
    for text, (begin, end) in enumerate(where[which].tolist()):
        passing = special.gammainccinv(end - begin, p * random.random())
        terms[text, begin:end] *= passing / terms[text, begin:end].sum()
    sums = np.concatenate([np.zeros((texts, 1)), terms.cumsum(axis=1)], axis=1)
    passed = sums[:, where[:, 1]] - sums[:, where[:, 0]] >= least - 1e-9
    return np.asarray(1.0 / passed.sum(axis=1), np.float64)


def main() -> None:
    """Measure each case on texts in random order."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.use_of_rate", description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", help="Parquet file with a column text")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--cases", default="", help="those whose names hold this")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--ceiling", type=int, default=128, help="texts by which the ceiling is computed")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.overlap:
        random = np.random.default_rng(options.seed)
        for scored in (60, 200, 1000):
            for p in (1e-4, 1e-6, 1e-9, 1e-15):
                share = overlap(scored, p, OVERLAPS, random)
                error = share.std() / np.sqrt(OVERLAPS)
                print(f"{scored} scored, {len(windows(scored))} windows at {p:g}: {share.mean():.3f} ± {error:.3f}")
        return
    column = pq.read_table(options.corpus, columns=["text"])["text"]
    order = np.random.default_rng(options.seed).permutation(len(column))
    stored = (column[int(row)].as_py() for row in order)
    texts = [*islice((text for text in stored if text and len(text) <= MOST_CHARACTERS), options.texts)]
    for name in CASES:
        if options.cases in name:
            measure(name, texts, options)


if __name__ == "__main__":
    main()

"""Spans: what they find and where, how well their law holds, their cost: `python -m tests.bench.spans`.

Found: marked texts of the demo's model, put whole into texts by people at a random place (`paste` of the evaluation),
so that they make up a share of all tokens. They are scored under the demo's keys with all messages. The whole
document alone is compared with whole and spans, which have half of the same error each. IoU: positions in both the
marked text and the best span for its message, over positions in either. Null: the smallest p of any part of documents
of random tokens, each an independent draw of the law: windows, segments, both. Cost: CPU seconds of the detector
without and with spans, on the same texts, in alternating runs.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from jobs.demo import MESSAGES, TOKENIZER, make_registry
from scanner.audit.statistics.judgement import binomial_limits
from scanner.cluster.pieces import Piece
from scanner.cluster.worker import Worker
from scanner.looks.parts.search import PartSearch, least_of_parts, passing_spans, search_parts
from scanner.registry import find_key, load_registry, open_key
from scanner.research.attacks import Tools, paste
from scanner.results.transactions import open_tables
from scanner.scan_plan import make_plan
from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Tokens
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.parts import Limit, Parts, Segments
from scanner.watermark.rule import corrected, passes, search
from scanner.watermark.text_windows import SHORTEST_WINDOW, log10_in_document, running_sums
from tests.bench.configured import FOR_USERS, NO_AUDIT, ONE_MESSAGE, VERSION_3, make_scan
from tests.bench.inputs import texts
from tests.bench.mixed_draws import beside_winmax, power
from tests.bench.scan import shards_of

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
RATE = 1e-6
_RAW = pa.schema([("doc_id", pa.binary()), ("text", pa.binary())])  # a few rows are no valid text
SHARES = (0.1, 0.25, 0.5, 1.0)
LEVELS = (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)


class Marked(NamedTuple):
    """A text, and the message that it is marked for."""

    text: str
    message: int


def sample() -> tuple[dict[str, list[Marked]], list[str]]:
    """Texts of the demo by key, and those by people."""
    truth = pl.read_parquet(DEMO / "truth.parquet").to_dicts()
    stored: dict[str, str] = {}
    for path in sorted(DEMO.glob("sample-[12].parquet")):
        for row in pq.read_table(path, columns=["doc_id", "text"]).cast(_RAW).to_pylist():
            stored[(row["doc_id"] or b"").decode()] = (row["text"] or b"").decode(errors="ignore")
    marked: dict[str, list[Marked]] = {}
    for row in truth:
        if row["kind"] == "marked" and row["message"] is not None and stored.get(row["doc_id"]):
            marked.setdefault(row["key_id"], []).append(Marked(stored[row["doc_id"]], row["message"]))
    return marked, [stored[row["doc_id"]] for row in truth if row["kind"] == "human" and stored.get(row["doc_id"])]


def opened(key_id: str) -> Any:
    """A key of the demo, with the R of its record."""
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        make_registry(registry)
        return open_key(registry, find_key(load_registry(registry), key_id))


def found(key_id: str, marked: list[Marked], human: list[str], hosts: int) -> Iterator[str]:
    """Lines of the table for a key; each text is put into so many texts by people."""
    mark, messages = opened(key_id), MESSAGES[key_id]
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    tools = Tools.load(TOKENIZER, human=human)
    for share in SHARES:
        before, after = np.zeros((2, len(marked)))
        missed, overlaps, spent, times = 0, [], [0.0, 0.0], hosts if share < 1 else 1
        for i, host in ((i, host) for i in range(len(marked)) for host in range(times)):
            one, random = marked[i], np.random.default_rng([i, int(100 * share), *([host] * (host > 0))])
            text = paste(one.text, share, random, tools) if share < 1 else one.text
            ids, stand = tokenizer.reference.encode_with_offsets(text)
            tokens = Tokens(ids, np.array([0, len(ids)]))
            positions = mark.rule.positions(tokens, "ngram")
            began, limit = time.process_time(), Limit(RATE, messages, 2)
            whole = search(mark, tokens, positions, messages)
            searched = time.process_time()
            _, spans = search_parts(mark, tokens, positions, messages, 1, limit, Parts(True, Segments.none(1)))
            spent[0] += searched - began
            spent[1] += time.process_time() - searched
            right = [span for span in spans if span.message == one.message]
            here = bool((whole.message[0] == one.message)[0])
            before[i] += here and bool(passes(whole.log10_p_global[0, 0], RATE))
            after[i] += bool(right) or (here and bool(passes(corrected(whole.log10_p_global[0, 0], 1, 2), RATE)))
            among = PartSearch(mark, tokens, positions, Parts(True, Segments.none(1)), limit, True)
            sums = running_sums(mark.terms(tokens, positions, one.message), positions.offsets)
            missed += not right and bool(passing_spans(among, np.array([0]), np.array([one.message]), sums))
            if right:
                begin = text.index(one.text)
                at = stand[positions.index, 0]
                true = (at >= begin) & (at < begin + len(one.text))
                of_span = np.zeros(len(at), bool)
                of_span[right[0].begin : right[0].end] = True
                overlaps.append((true & of_span).sum() / (true | of_span).sum())
        told_iou = f"{median(overlaps):.2f} ({np.quantile(overlaps, 0.1):.2f})" if overlaps else "-"
        shares = f"{_share(before, times)} | {_share(after, times)} | {_rise(after - before, times)}"
        yield (
            f"| {key_id} | {share:.0%} | {shares} | {missed} of {len(overlaps) + missed} | {told_iou} "
            f"| {spent[1] / max(spent[0], 1e-9):.1f} |"
        )


def _share(hits: Any, times: int) -> str:
    """A share of texts in their hosts; its 95 % interval is over other such texts, drawn anew with their hosts."""
    low, high = _drawn_anew(hits / times)
    return f"{hits.sum():.0f} of {len(hits) * times} ({low:.2f} to {high:.2f})"


def _rise(more: Any, times: int) -> str:
    low, high = _drawn_anew(more / times)
    return f"{100 * more.mean() / times:+.0f} ({100 * low:+.0f} to {100 * high:+.0f})"


def _drawn_anew(values: Any) -> tuple[float, float]:
    random = np.random.default_rng(0)
    means = values[random.integers(len(values), size=(10_000, len(values)))].mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def of_draws(documents: int) -> Iterator[str]:
    """Lines on documents simulated from draws, beside WinMax (mixed_draws.py)."""
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    for key_id, texts_of in sample()[0].items():
        mark, terms = opened(key_id), []
        for one in texts_of:
            tokens = tokenizer.encode([one.text])
            terms.append(mark.terms(tokens, mark.rule.positions(tokens, "ngram"), one.message))
        yield from power(key_id, mark.law, terms, 300, 10_000, documents)
        yield from power(key_id, mark.law, terms, 200, 500, documents)
        yield from beside_winmax(key_id, mark.law, terms, 60, 300, documents // 2, 10 * documents)


def null(mark: Any, documents: int) -> Iterator[str]:
    """Lines on how often the smallest p of any part reaches a level, against the stated rate."""
    hits, done = {kind: np.zeros(len(LEVELS), np.int64) for kind in ("windows", "segments", "both")}, 0
    random = np.random.default_rng(1)
    while done < documents:
        lengths = random.integers(30, 200, 20_000)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = Tokens(random.integers(0, 2**32, offsets[-1], dtype=np.uint32), offsets)
        positions = mark.rule.positions(tokens, "none")  # 32-bit tokens under a window of 4 never come twice
        sums = running_sums(mark.terms(tokens, positions, 0), positions.offsets)
        segments = paragraphs(positions.scored, random.integers(SHORTEST_WINDOW, 2 * SHORTEST_WINDOW, len(lengths)))
        parts = Parts(True, Segments.none(len(lengths))), Parts(False, segments), Parts(True, segments)
        for kind, of_kind in zip(hits, parts, strict=True):
            least = least_of_parts(mark.law, sums, positions, of_kind)
            log10_p = log10_in_document(least, of_kind.count_parts(positions.scored), 1)
            hits[kind] += (log10_p[:, None] <= np.log10(LEVELS)).sum(axis=0)
        done += len(lengths)
    for kind, counts in hits.items():
        for level, count in zip(LEVELS, counts.tolist(), strict=True):
            limits = binomial_limits(count, done, 0.025)
            of_level = f"{count / done / level:.3f} ({limits.low / level:.3f} to {limits.high / level:.3f})"
            yield f"{mark.label}, {kind}: p <= {level:g}: {count} of {done}: {of_level}"


def paragraphs(scored: NDArray[np.int64], length: NDArray[np.int64]) -> Segments:
    """Documents with so many scored positions, int64[D], cut into segments of a length each, int64[D].

    The last segment of a document takes the rest; a document that is one segment has none beside the whole.
    """
    many = np.where(scored >= 2 * length, scored // length, 0)
    offsets = np.concatenate([[0], np.cumsum(many)])
    number = np.arange(offsets[-1]) - np.repeat(offsets[:-1], many)
    begin, last = number * np.repeat(length, many), number == np.repeat(many, many) - 1
    end = np.where(last, np.repeat(scored, many), begin + np.repeat(length, many))
    return Segments(offsets, begin, end, number)


def cost(corpus: Path, documents: int, pairs: int) -> Iterator[str]:
    """CPU seconds of tokenising and searching, without and with spans."""
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    chosen = texts(corpus, 200.0)[:: max(1, 100_000 // documents)][:documents]
    groups = {"one message": None, "100,000 users": 316}
    for name, of_groups in groups.items():
        marks = Version3GreenList(bytes(32), 4, Fraction(1, 4), of_groups), Version3Gumbel(bytes(32), 4, of_groups)
        for mark in marks:
            messages = 1 if of_groups is None else of_groups**2
            spent: list[list[float]] = [[], []]
            for run in range(2 * pairs + 2):
                began = time.process_time()
                tokens = tokenizer.encode(chosen)
                positions = mark.rule.positions(tokens, "ngram")
                if run % 2:
                    search_parts(
                        *(mark, tokens, positions, messages, 2.0, Limit(RATE, messages, 2.0)),
                        Parts(True, Segments.none(len(positions.scored))),
                    )
                else:
                    search(mark, tokens, positions, messages, 2.0)
                spent[run % 2].append(time.process_time() - began)
            without, with_spans = median(spent[0][1:]), median(spent[1][1:])
            yield (
                f"{mark.label}, {name}, {len(chosen)} texts: {without:.2f} s without, "
                f"{with_spans:.2f} s with spans: {with_spans / without:.2f}"
            )


def whole_scan(corpus: Path, pairs: int) -> Iterator[str]:
    """CPU seconds of all that a worker does, without parts, with either kind and with both, in turns."""
    kinds = {"windows": "windows = true", "segments": "segments = true", "both": "windows = true, segments = true"}
    parts = ["", *(f"spans = {{ {kind} }}\n" for kind in kinds.values())]
    for name, form in (("one message", ONE_MESSAGE), ("100,000 users", FOR_USERS)):
        with tempfile.TemporaryDirectory() as folder:
            calls = []
            for number, of_parts in enumerate(parts):
                own = Path(folder) / str(number)
                config = make_scan(own, TOKENIZER, 1, 1, [corpus], NO_AUDIT, **VERSION_3["greenlist-v3"] | form)
                config.write_text(of_parts + config.read_text())
                plan = make_plan(config)
                open_tables(plan.results)
                worker, shards = Worker(plan, "bench"), shards_of(plan, 4)
                worker.prepare()
                pieces = [Piece(shard, shard.rows.start, shard.rows.stop) for shard in shards]
                calls.append(lambda worker=worker, pieces=pieces: [[*worker.scan(piece)] for piece in pieces])
            spent = np.array([[_seconds(call) for call in calls] for _ in range(pairs + 1)][1:])
        ratios = spent[:, 1:] / spent[:, :1]
        told = [
            f"{kind} {np.median(one):.2f} ({one.min():.2f} to {one.max():.2f}) times"
            for kind, one in zip(kinds, ratios.T, strict=True)
        ]
        yield (
            f"whole scan, greenlist-v3, {name}, {pairs} alternating runs, {np.median(spent[:, 0]):.2f} s without: "
            + ", ".join(told)
        )


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--found", type=int, default=0, metavar="N", help="texts of each key")
    parser.add_argument("--hosts", type=int, default=1, help="texts by people that each is put into")
    parser.add_argument("--draws", type=int, default=0, metavar="N", help="documents of simulated draws")
    parser.add_argument("--null", type=float, default=0.0, metavar="N", help="documents of each mark")
    parser.add_argument("--cost", type=Path, metavar="CORPUS", help="a Parquet file of texts")
    parser.add_argument("--scan", type=Path, metavar="CORPUS", help="whole scans of a Parquet file of texts")
    parser.add_argument("--documents", type=int, default=1_000)
    asked = parser.parse_args()
    if asked.found:
        print("| key | marked | whole alone | with spans | points | missed | IoU, median (a tenth below) | times |")
        marked, human = sample()
        for key_id, of_key in sorted(marked.items(), key=lambda one: one[0] == "demo-paper"):  # takes longest
            for line in found(key_id, of_key[: asked.found], human, asked.hosts):
                print(line, flush=True)
    for line in of_draws(asked.draws) if asked.draws else ():
        print(line, flush=True)
    if asked.null:
        for mark in (Version3GreenList(bytes(32), 4, Fraction(1, 4)), Version3Gumbel(bytes(32), 4)):
            for line in null(mark, int(asked.null)):
                print(line, flush=True)
    for line in whole_scan(asked.scan, 7) if asked.scan else ():
        print(line, flush=True)
    if asked.cost:
        for line in cost(asked.cost, asked.documents, 3):
            print(line, flush=True)


if __name__ == "__main__":
    main()

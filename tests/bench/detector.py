"""The detector's cost beside `check` and a scan's worker, and what its times tell: `python -m tests.bench.detector`.

The detector is `brickscan serve` with one scoring process; its CPU seconds are those of all its processes and threads,
from /proc, its look at the registry once a second included. `check` is OpenedCheck.of_each_key in a loop in this
process, and the worker OpenedCheck.score_batch of 100 texts at a time, under the same key. Before anything is counted,
all have read as many texts as a tokenizer compares its two backends on. Each round has other texts, which the worker
reads before and after the detector, so that both meet the same load of the machine. All batches of a round are sent at
once: a detector that is asked less waits for its ticks, and what it takes while it waits is told by itself. Times at
half load are of requests that come at random times, at half of the rate at which one text a request takes a core. A
classifier of times has a threshold on how long an answer took, fitted on half of the texts and tried on the other half.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import polars as pl
import tomli_w
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.detection.one_text import OpenedCheck
from scanner.registry import new_key
from scanner.service.scoring import Scorer, ServedScan
from scanner.service.serving import SECONDS_FOR_A_HEAD
from scanner.watermark.native.format import groups_for
from schemas.service import TICKS, DetectorConfig
from tests.bench.configured import FOR_USERS, LOOKS_OF_INIT, VERSION_1, VERSION_3
from tests.fixed import fix_secrets
from tests.support.detecting import configured, until
from tests.support.two_keys import TOKENIZER, marked_text, plain_text, words_of_one_token

BUDGET = "[budget]\ntexts = 1000000\nnear_duplicates = 255\nmost_texts = 10000000\n"
PROXY = '[proxy]\naddresses = ["127.0.0.1"]\ncaller = "X-Forwarded-For"\n'
CHARACTERS = 2_000
WARM = 256
CLIENTS = 48
BATCH = 100
RESTS = 10.0
"""Seconds over which a detector that nobody asks is watched."""

BILLION = groups_for(1e9)
KEYS: dict[str, tuple[dict[str, Any], dict[str, dict[str, bool]]]] = {
    "20 messages": (VERSION_1 | {"messages": 20}, {}),
    "100,000 users, what init writes": (VERSION_3["greenlist-v3"] | FOR_USERS, LOOKS_OF_INIT),
    "1e9 users, what init writes": (
        VERSION_3["greenlist-v3"] | {"groups": BILLION, "messages": BILLION**2},
        LOOKS_OF_INIT,
    ),
}
"""A green list's key and looks at texts, by name."""


class Detector:
    """A detector in processes of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process, self._port, self._kept = process, port, local()

    def cpu_seconds(self) -> float:
        """CPU seconds so far of the server and its processes, all threads."""
        total = 0
        pids, found = [self._process.pid], []
        while pids:
            pid = pids.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
        for pid in found:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def post(self, path: str, body: dict[str, Any], caller: int = 0) -> dict[str, Any]:
        """The answer to a request, which must be a good one, on a connection that a thread keeps in use."""
        idle = time.monotonic() - getattr(self._kept, "at", -math.inf)
        if idle > SECONDS_FOR_A_HEAD / 2:  # the detector ends connections that say nothing
            self._kept.connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        headers = {"X-Forwarded-For": f"10.0.{caller // 256}.{caller % 256}"}
        self._kept.connection.request("POST", path, json.dumps(body), headers)
        answer = self._kept.connection.getresponse()
        self._kept.at = time.monotonic()
        read = json.loads(answer.read())
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {read}")
        return dict(read)

    def get(self, path: str) -> None:
        """Get an address by a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise ValueError(f"{path}: {answer.status}")

    def ask(self, text: str, caller: int = 0) -> float:
        """Seconds until the answer to a text."""
        began = time.perf_counter()
        self.post("/detect", {"text": text}, caller)
        return time.perf_counter() - began


@contextmanager
def detector_of(config: Path) -> Iterator[Detector]:
    out = config.parent / "out"
    command = [sys.executable, "-m", "jobs.cli", "serve", str(config), "--port", "0"]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until(lambda: "event=serving" in out.read_text() or process.poll() is not None)
        yield Detector(process, int(re.findall(r"127\.0\.0\.1:(\d+)/ ", out.read_text())[0]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detector", description=__doc__)
    parser.add_argument("--texts", type=int, default=2000, help="texts of a round of each way; whole hundreds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timed", type=int, default=400, help="marked texts, and as many without a mark; 0: none")
    parser.add_argument("--loaded", type=int, help="texts at half load; 0: none; --texts, unless stated")
    parser.add_argument("--keys", nargs="+", default=list(KEYS), choices=list(KEYS))
    parser.add_argument("--corpus", type=Path, help="Parquet file whose column `text` has the texts; else made ones")
    options = parser.parse_args()
    count, loaded = options.texts, options.texts if options.loaded is None else options.loaded
    words = words_of_one_token()
    plain = plain_text(words)
    texts = texts_of(options.corpus, plain, 2 * count * options.rounds + loaded + WARM)
    for name in options.keys:
        form, looks = KEYS[name]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            fix_secrets(folder / "registry", "green")
            new_key(folder / "registry", "green", tokenizer=TOKENIZER, **form)
            config = configured(
                folder, folder / "registry", more=tomli_w.dumps(looks), detector="workers = 1\n" + BUDGET + PROXY
            )
            marked = marked_text(folder / "registry", words)
            found = [marked(1, 400, seed)[:CHARACTERS] for seed in range(max(loaded // 20 + 1, 24))]
            print(f"{name}; texts of {CHARACTERS} characters", flush=True)
            alone(folder, texts[:count], found)
            with detector_of(config) as detector:
                in_order = [detector.ask(text) for text in (texts[-1], found[0], texts[-2])]
                print(f"  first texts (the second is marked): {', '.join(f'{s:.3f} s' for s in in_order)}")
                without_text(detector, count)
                rate = throughput(detector, texts, folder, options.rounds, count)
                if loaded:
                    half_load(detector, texts[-WARM - loaded : -WARM], found, rate / 2)
                if options.timed:
                    timing(detector, plain, marked, options.timed)


def texts_of(corpus: Path | None, plain: Callable[[int, int], str], count: int) -> list[str]:
    """Texts of CHARACTERS characters: the beginnings of a corpus's first ones that have so many, or made of words."""
    if corpus is None:
        return [plain(400, seed)[:CHARACTERS] for seed in range(count)]
    long = pl.scan_parquet(corpus).select("text").filter(pl.col("text").str.len_chars() >= CHARACTERS).head(count)
    texts = long.collect()["text"].str.head(CHARACTERS).to_list()
    if len(texts) < count:
        raise SystemExit(f"{corpus}: has {len(texts)} texts of {CHARACTERS} characters; {count} are needed")
    return texts


def alone(folder: Path, texts: Sequence[str], found: Sequence[str]) -> None:
    """Prints what a scoring process takes of a text that no other waits with, in CPU seconds."""
    scorer = Scorer(ServedScan.of(DetectorConfig(version=2), folder), bytes(32))
    scorer.find_marks([text.encode() for text in texts[-WARM:]])
    for what, some in (("not marked", texts), ("marked", found)):
        scorer.find_marks([some[0].encode()])
        seconds = []
        for text in some:
            began = time.process_time()
            scorer.find_marks([text.encode()])
            seconds.append(1e3 * (time.process_time() - began))
        print(
            f"  one text at a time, {what}, n={len(some)}, CPU ms of a process: median {np.median(seconds):.1f}, "
            f"p99 {np.quantile(seconds, 0.99):.1f}, most {max(seconds):.1f}",
            flush=True,
        )


def without_text(detector: Detector, count: int) -> None:
    """Prints what requests without a text take, in CPU ms of all processes."""
    for path in ("/", "/style.css", "/openapi.json", "/.well-known/ai-provenance", "/metrics", "/health"):
        began = detector.cpu_seconds()
        for _ in range(count):
            detector.get(path)
        print(f"  GET {path}, n={count}: {1e3 * (detector.cpu_seconds() - began) / count:.2f} CPU ms", flush=True)


def throughput(detector: Detector, texts: Sequence[str], folder: Path, rounds: int, size: int) -> float:
    """Texts that one core answers in a second, one a request; size: texts of a round."""
    check = OpenedCheck(ServedScan.of(DetectorConfig(version=2), folder).check)
    raw = [text.encode() for text in texts]

    def of_worker(begin: int) -> float:
        began = time.process_time()
        for at in range(begin, begin + size, BATCH):
            check.score_batch(raw[at : at + BATCH])
        return (time.process_time() - began) / size

    def of_check(begin: int) -> float:
        began = time.process_time()
        for text in raw[begin : begin + size // 5]:
            check.of_each_key(text)
        return (time.process_time() - began) / (size // 5)

    def send_batch(at: int) -> None:
        detector.post("/detect/batch", {"texts": texts[at : at + BATCH]}, at // BATCH % CLIENTS)

    def send_one(at: int) -> None:
        detector.ask(texts[at], at % CLIENTS)

    def of_detector(send: Callable[[int], None], places: Sequence[int]) -> float:
        began = detector.cpu_seconds()
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(send, places))
        return (detector.cpu_seconds() - began) / size

    check.score_batch(raw[-WARM:])
    check.of_each_key(raw[-1])
    of_detector(send_one, range(len(texts) - WARM, len(texts)))
    began = detector.cpu_seconds()
    time.sleep(RESTS)
    print(f"  at rest, {RESTS:.0f} s: {1e3 * (detector.cpu_seconds() - began) / RESTS:.1f} CPU ms a second", flush=True)
    ways: list[tuple[str, Callable[[int], None], int]] = [
        (f"{BATCH} a request, all at once", send_batch, BATCH),
        (f"one a request, {CLIENTS} clients", send_one, 1),
    ]
    detector_seconds = np.zeros(0)
    for way, (what, send, step) in enumerate(ways):
        rows = []
        for begin in range(way * rounds * size, (way + 1) * rounds * size, size):
            before, served = of_worker(begin), of_detector(send, range(begin, begin + size, step))
            rows.append(((before + of_worker(begin)) / 2, of_check(begin), served))
        of_workers, of_checks, detector_seconds = np.array(rows).T
        print(
            f"  {what}, {rounds} rounds of {size} texts, load {os.getloadavg()[0]:.1f}, CPU ms a text, median and "
            f"range: check {_spread(1e3 * of_checks)}, a scan's worker {_spread(1e3 * of_workers)}, the detector "
            f"{_spread(1e3 * detector_seconds)}; throughput {_spread(of_checks / detector_seconds)} of check's, "
            f"{_spread(of_workers / detector_seconds)} of the worker's",
            flush=True,
        )
    return 1 / float(np.median(detector_seconds))


def _spread(values: NDArray[np.float64]) -> str:
    return f"{np.median(values):.2f} ({values.min():.2f} to {values.max():.2f})"


def half_load(detector: Detector, texts: Sequence[str], found: Sequence[str], rate: float) -> None:
    """Times of answers to texts, of which one in 20 is marked, that come at random times, so many a second."""
    rng = np.random.default_rng(11)
    mixed = [found[place // 20] if place % 20 == 0 else text for place, text in enumerate(texts)]
    at = time.perf_counter() + np.cumsum(rng.exponential(1 / rate, len(mixed)))

    def one(place: int) -> float:
        time.sleep(max(0.0, at[place] - time.perf_counter()))
        detector.ask(mixed[place], place % CLIENTS)
        return float(time.perf_counter() - at[place])

    with ThreadPoolExecutor(CLIENTS) as clients:
        seconds = np.array(list(clients.map(one, range(len(mixed)))))
    print(
        f"  half load, {len(mixed)} texts at {rate:.0f} a second: p50 {np.median(seconds):.3f} s, p99 "
        f"{np.quantile(seconds, 0.99):.3f} s, most {seconds.max():.3f} s; the first tick is at {TICKS[0]} s",
        flush=True,
    )


def timing(
    detector: Detector, plain: Callable[[int, int], str], marked: Callable[[int, int, int], str], count: int
) -> None:
    """How often the time of an answer tells a marked text from another, with a 99 % interval."""
    rng, seconds = np.random.default_rng(7), np.zeros((2, count))
    # made before any is timed: who has just computed is slower to hear of an answer; 200 words are of the first class
    texts = [[plain(200, 10**7 + i) for i in range(count)], [marked(1, 200, 10**6 + i) for i in range(count)]]
    for place in range(count):
        for kind in rng.permutation(2).tolist():
            seconds[kind, place] = detector.ask(texts[kind][place])
    half = count // 2
    thresholds = np.unique(seconds[:, :half])
    right = [(seconds[1, :half] >= t).sum() + (seconds[0, :half] < t).sum() for t in thresholds]
    best = int(np.argmax(np.maximum(right, 2 * half - np.array(right))))
    above = right[best] >= half
    of_marked = (seconds[1, half:] >= thresholds[best]) == above
    of_others = (seconds[0, half:] < thresholds[best]) == above
    hits, tried = int(of_marked.sum() + of_others.sum()), 2 * (count - half)
    low, high = binomial_limits(hits, tried, 0.005)
    late = (seconds > TICKS[0] * 1.5).mean(axis=1)
    print(
        f"  times of {count} marked and {count} other texts: {hits} of {tried} recognised by a threshold "
        f"({low:.3f} to {high:.3f}, 99 %); later than the first tick: marked {late[1]:.3f}, other {late[0]:.3f}; "
        f"medians {np.median(seconds[1]):.4f} and {np.median(seconds[0]):.4f} s, "
        f"p99 {np.quantile(seconds, 0.99):.3f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()

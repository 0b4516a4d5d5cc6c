"""The detector's cost beside `check` and a scan's worker, and what its times tell: `python -m tests.bench.detector`.

CPU seconds of the server are those of its thread and its processes, from /proc. `check` is OpenedCheck.of_each_key in a
loop in this process, and the worker OpenedCheck.score_batch of 100 texts at a time, under the same key. A classifier of
times has a threshold on how long an answer took, fitted on half of the texts and tried on the other half.
"""

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from scanner.audit.statistics.judgement import binomial_limits
from scanner.detection.one_text import OpenedCheck
from scanner.registry import new_key
from scanner.service.scoring import Served
from schemas.service import TICKS, DetectorConfig
from tests.fixed import fix_secrets
from tests.support.detecting import ask, configured, detecting, request
from tests.support.two_keys import TOKENIZER, marked_text, plain_text, words_of_one_token

LENGTH = 300
BUDGET = "[budget]\ntexts = 1000000\nnear_duplicates = 1000\nmost_texts = 10000000\n"


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds of processes so far, all of their threads."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detector", description=__doc__)
    parser.add_argument("--texts", type=int, default=400, help="texts of each way")
    parser.add_argument("--timed", type=int, default=400, help="marked texts, and as many without a mark")
    options = parser.parse_args()
    words = words_of_one_token()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fix_secrets(folder / "registry", "green")
        new_key(
            folder / "registry", "green", format="greenlist", window=4, gamma="1/4", messages=20, tokenizer=TOKENIZER
        )
        config = configured(folder, folder / "registry", detector="workers = 1\n" + BUDGET)
        marked, plain = marked_text(folder / "registry", words), plain_text(words)
        check = OpenedCheck(Served.of(DetectorConfig(version=0), folder).check)
        texts = [plain(LENGTH, seed) for seed in range(3 * options.texts)]
        check.of_each_key(texts[0].encode())
        began = time.process_time()
        for text in texts[: options.texts]:
            check.of_each_key(text.encode())
        of_check, began = time.process_time() - began, time.process_time()
        for at in range(0, options.texts, 100):
            check.score_batch([text.encode() for text in texts[at : at + 100]])
        of_worker = time.process_time() - began
        with detecting(config, here=False) as server:
            pids = [pid for _, each in server.answers.pool._idle._queue for pid in each._processes]
            throughput(server, pids, texts, (of_check, of_worker), options.texts)
            timing(server, marked, plain, options.timed)


def throughput(server, pids: list[int], texts: list[str], beside: tuple[float, float], count: int) -> None:
    def served(work) -> tuple[float, float]:
        began, here = cpu_seconds(pids), thread_of_server()
        work()
        return cpu_seconds(pids) - began, thread_of_server() - here

    def thread_of_server() -> float:
        (task,) = [each for each in threading.enumerate() if each.name.startswith("Thread") and each.daemon][:1]
        fields = Path(f"/proc/self/task/{task.native_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def in_batches() -> None:
        for at in range(count, 2 * count, 100):
            body = json.dumps({"texts": texts[at : at + 100]})
            assert request(server, "POST", "/detect/batch", body)[0] == 200

    def one_by_one() -> None:
        for text in texts[2 * count :]:
            assert ask(server, text)["status"] == 200

    for what, work in (("batches of 100", in_batches), ("one by one", one_by_one)):
        worker, thread = served(work)
        check, scan = (each / (worker + thread) for each in beside)
        print(
            f"{what}, {count} texts of {LENGTH} tokens, CPU s: check {beside[0]:.2f}, a scan's worker {beside[1]:.2f}, "
            f"processes {worker:.2f}, the server's thread {thread:.2f}; throughput {check:.2f} of check's, "
            f"{scan:.2f} of the worker's"
        )


def timing(server, marked, plain, count: int) -> None:
    """How often the time of an answer tells a marked text from another, with a 99 % interval."""
    rng, seconds = np.random.default_rng(7), np.zeros((2, count))
    # made before any is timed: who has just computed is slower to hear of an answer; 200 words are of the first class
    texts = [[plain(200, 10**7 + i) for i in range(count)], [marked(1, 200, 10**6 + i) for i in range(count)]]
    for place in range(count):
        for kind in rng.permutation(2).tolist():
            text = texts[kind][place]
            began = time.perf_counter()
            assert ask(server, text)["status"] == 200
            seconds[kind, place] = time.perf_counter() - began
    half = count // 2
    thresholds = np.unique(seconds[:, :half])
    right = [(seconds[1, :half] >= t).sum() + (seconds[0, :half] < t).sum() for t in thresholds]
    best, above = int(np.argmax(np.maximum(right, 2 * half - np.array(right)))), None
    above = right[best] >= half
    told = (seconds[1, half:] >= thresholds[best]) == above
    other = (seconds[0, half:] < thresholds[best]) == above
    hits, tried = int(told.sum() + other.sum()), 2 * (count - half)
    low, high = binomial_limits(hits, tried, 0.005)
    late = (seconds > TICKS[0] * 1.5).mean(axis=1)
    print(
        f"times of {count} marked and {count} other texts: {hits} of {tried} told right by a threshold "
        f"({low:.3f} to {high:.3f}, 99 %); later than the first tick: marked {late[1]:.3f}, other {late[0]:.3f}; "
        f"medians {np.median(seconds[1]):.4f} and {np.median(seconds[0]):.4f} s, p99 {np.quantile(seconds, 0.99):.3f} s"
    )


if __name__ == "__main__":
    main()

"""Row 6: the whole scan of a file, against tokenising alone with the same backend and against reading alone.

Here in one process, as a worker does it, in CPU seconds; through Ray in cluster.py. Tokenizers remember words, and
Python's strings their UTF-8, so each repeat starts with a new tokenizer and new strings.
"""

import resource
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pyarrow as pa

from scanner.cluster.pieces import Piece
from scanner.cluster.worker import Worker
from scanner.input.documents import Unreadable, read
from scanner.input.files import list_files
from scanner.input.shards import Shard, cut, shard_id
from scanner.results.transactions import open_tables
from scanner.scan_plan import Plan, make_plan
from scanner.text import load_tokenizer, sha256_file
from scanner.text.tokenizers import SAMPLE_TEXTS
from tests.bench import cluster
from tests.bench.configured import (
    ASKED,
    AUDIT,
    FOR_USERS,
    GROUPS,
    NO_AUDIT,
    ONE_MESSAGE,
    VERSION_1,
    VERSION_3,
    make_scan,
)
from tests.bench.measure import Comparison
from tests.bench.tokenising import tokenizer_files
from tests.support.inspection import inspect

MANY_MESSAGES_DOCUMENTS = 200_000_000  # documents times messages that are scanned at most


def whole(options: Namespace) -> Iterator[Comparison]:
    pa.set_cpu_count(1)
    paths = tokenizer_files(options.tokenizers)
    for path in paths:
        yield from _in_process(path, 1, 1, NO_AUDIT, options)
    for keys, messages, audit in (
        (1, 1, AUDIT), (4, 1, NO_AUDIT), (16, 1, NO_AUDIT), (1, 10**3, NO_AUDIT), (1, 10**4, NO_AUDIT),
        (1, 10**5, NO_AUDIT), (1, 10**6, NO_AUDIT),
    ):  # fmt: skip
        yield from _in_process(paths[0], keys, messages, audit, options)
    for path in paths:
        for name in VERSION_3:
            yield _for_users(path, name, options)
    if options.ray:
        yield from cluster.on_ray(paths[0], options)


def shards_of(plan: Plan, megabytes: float) -> list[Shard]:
    (file,) = list_files(plan.locations)
    shards: list[Shard] = []
    room = megabytes * 2**20
    for rows in cut(inspect(file, plan.columns)):
        shards.append(Shard(shard_id(file, rows, plan.verdict_settings), file, rows))
        room -= rows.text_bytes
        if room <= 0:
            break
    return shards


def _in_process(
    tokenizer: Path, keys: int, messages: int, audit: tuple[float, float], options: Namespace
) -> Iterator[Comparison]:
    with tempfile.TemporaryDirectory() as name:
        plan = make_plan(
            make_scan(Path(name), tokenizer, keys, 1, [options.corpus], audit, **VERSION_1, messages=messages)
        )
        open_tables(plan.results)
        megabytes = options.megabytes if messages == 1 else min(options.megabytes, 4)
        most = max(MANY_MESSAGES_DOCUMENTS // (messages * keys), 64)
        pieces = [
            Piece(shard, shard.rows.start, min(shard.rows.stop, shard.rows.start + most))
            for shard in shards_of(plan, megabytes)
        ]
        raw = [[text or b"" for text in part] for part in texts_of(plan, pieces)]
        size = sum(len(text) for batch in raw for text in batch) / 1e6
        documents = sum(map(len, raw))

        def only_read() -> float:
            return _seconds(lambda: [len(part) for part in texts_of(plan, pieces, decode=False)])

        backend = type(load_tokenizer(tokenizer, sha256_file(tokenizer))).__name__
        seconds_of_scan(plan, pieces)  # compiles
        runs = [
            (seconds_of_tokenising(tokenizer, raw), only_read(), seconds_of_scan(plan, pieces))
            for _ in range(options.repeats)
        ]
    spread = (max(r[2] for r in runs) - min(r[2] for r in runs)) / median(r[2] for r in runs)
    what = f"scan, {tokenizer.stem}, {keys} key{'s' * (keys > 1)}, M = {messages}" + ", audit in it" * (
        audit != NO_AUDIT
    )
    rate = size / median(r[2] for r in runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    note = f"{documents / size * rate:.0f} documents/s, {len(pieces)} shards, peak of this process {peak:.0f} MiB"
    for baseline, place in ((f"tokenising alone, {backend}", 0), ("reading alone", 1)):
        alone = size / median(r[place] for r in runs)
        ratio = median(r[place] / r[2] for r in runs)
        yield Comparison(6, what, "MB/s", rate, baseline, alone, ratio, spread, len(runs), note)


def _for_users(tokenizer: Path, format_name: str, options: Namespace) -> Comparison:
    """A key of version 3 for 100,000 users beside a key of one message: all work of a worker, in alternating pairs."""
    with tempfile.TemporaryDirectory() as name:
        calls = []
        for part, form in (("one", ONE_MESSAGE), ("users", FOR_USERS)):
            config = make_scan(
                Path(name) / part, tokenizer, 1, 1, [options.corpus], NO_AUDIT, **VERSION_3[format_name] | form
            )
            plan = make_plan(config)
            open_tables(plan.results)
            worker, shards = Worker(plan, "bench"), shards_of(plan, min(options.megabytes, 4))
            worker.prepare()
            pieces = [Piece(shard, shard.rows.start, shard.rows.stop) for shard in shards]
            calls.append(lambda worker=worker, pieces=pieces: [[*worker.scan(piece)] for piece in pieces])
        for call in calls:
            call()  # compiles
        runs = [(_seconds(calls[0]), _seconds(calls[1])) for _ in range(options.repeats)]
    size = sum(shard.rows.text_bytes for shard in shards) / 1e6
    ratios = [one / users for one, users in runs]
    one, users = (size / median(column) for column in zip(*runs, strict=True))
    what = f"scan, {tokenizer.stem}, {format_name}, {GROUPS} groups, 100,000 users"
    spread = (max(ratios) - min(ratios)) / median(ratios)
    return Comparison(6, what, "MB/s", users, "one message", one, median(ratios), spread, len(runs), ASKED)


def texts_of(plan: Plan, pieces: list[Piece], decode: bool = True) -> Iterator[Any]:
    for piece in pieces:
        shard, start, stop = piece.shard, piece.start, piece.stop
        for part in read(shard.file, plan.columns, start, stop):
            if not isinstance(part, Unreadable):
                yield part.column("text").to_pylist() if decode else part


def seconds_of_tokenising(tokenizer: Path, raw: Sequence[Sequence[bytes]]) -> float:
    """CPU seconds of tokenising batches of texts alone, with a new tokenizer."""
    backend = load_tokenizer(tokenizer, sha256_file(tokenizer))
    backend.encode([" "] * SAMPLE_TEXTS)  # the check on the first texts
    batches = [[text.decode(errors="replace") for text in batch] for batch in raw]

    def every() -> None:
        for batch in batches:
            backend.encode(batch)  # dropped at once, as in a scan: new memory would cost a fifth more

    return _seconds(every)


def seconds_of_scan(plan: Plan, pieces: Sequence[Piece]) -> float:
    """CPU seconds of scanning pieces, with a new worker and tokenizer."""
    worker = Worker(plan, "bench")
    worker.prepare()
    worker.scoring.detector._tokenise([" "] * SAMPLE_TEXTS)  # the check on the first texts
    return _seconds(lambda: [[*worker.scan(piece)] for piece in pieces])


def _seconds(call: Callable[[], Any]) -> float:
    begin = process_time()
    call()
    return process_time() - begin

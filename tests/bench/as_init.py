"""Row 6: what `brickscan init` writes, and each of its options, beside tokenising alone.

Posts are cut from the corpus, four characters a token. Each repeat has a new tokenizer and a new worker, kernels are
compiled, and one process does all work, in CPU seconds.
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.cluster.pieces import Piece
from scanner.results.transactions import open_tables
from scanner.scan_plan import Plan, make_plan
from tests.bench.configured import (
    AUDIT,
    FOR_USERS,
    LOOKS_OF_INIT,
    NO_AUDIT,
    ONE_MESSAGE,
    VERSION_3,
    add_looks,
    make_scan,
)
from tests.bench.inputs import texts
from tests.bench.measure import Comparison
from tests.bench.scan import seconds_of_scan, seconds_of_tokenising, shards_of, texts_of
from tests.bench.tokenising import tokenizer_files

TOKENS = (30, 170, 1000)
"""Tokens of a post, about."""

LENGTH = 170
"""Tokens of a post where options are compared."""

CHARACTERS_A_TOKEN = 4


class Options(NamedTuple):
    """Options of a scan: messages of its key, shares of texts that decoys score, looks beside the whole text."""

    name: str
    messages: Mapping[str, int] = FOR_USERS
    audit: tuple[float, ...] = NO_AUDIT
    looks: Mapping[str, Mapping[str, bool]] = {}


INIT = Options("what init writes, 100,000 users", audit=AUDIT, looks=LOOKS_OF_INIT)
SPANS = LOOKS_OF_INIT["spans"]
BARE = Options("100,000 users, bare")
ONE = Options("one message, bare", messages=ONE_MESSAGE)
EACH = (
    BARE,
    ONE,
    Options("one message, what init writes", messages=ONE_MESSAGE, audit=AUDIT, looks=LOOKS_OF_INIT),
    Options("100,000 users, decoys", audit=AUDIT),
    Options("100,000 users, normalised", looks={"variants": LOOKS_OF_INIT["variants"]}),
    *(Options(f"100,000 users, {part}", looks={"spans": {part: True}}) for part in SPANS),
    Options("100,000 users, parts", looks={"spans": SPANS}),
    INIT,
)
"""Options that are measured in turns, beside BARE."""


def of_init(options: Namespace) -> Iterator[Comparison]:
    """What `init` writes, for each tokenizer, method and length; and each option with the first tokenizer."""
    pa.set_cpu_count(1)
    paths = tokenizer_files(options.tokenizers)
    for method in VERSION_3:
        for path in paths:
            for tokens in TOKENS:
                yield from _scans(path, method, tokens, [INIT], options)
        yield from _scans(paths[0], method, LENGTH, EACH, options)


def _scans(
    tokenizer: Path, method: str, tokens: int, ways: Sequence[Options], options: Namespace
) -> Iterator[Comparison]:
    """Scans of the same posts in turns, so that a busy machine slows all of them; their times are told beside BARE."""
    with tempfile.TemporaryDirectory() as name:
        posts = write_posts(Path(name) / "posts.parquet", tokens, options)
        scans = [
            prepare_scan(Path(name) / str(i), tokenizer, posts, method, way, options) for i, way in enumerate(ways)
        ]
        raw = [[text or b"" for text in part] for part in texts_of(*scans[0])]
        size = sum(len(text) for batch in raw for text in batch) / 1e6
        for scan in scans:
            seconds_of_scan(*scan)  # compiles
        runs = [
            (seconds_of_tokenising(tokenizer, raw), *(seconds_of_scan(*scan) for scan in scans))
            for _ in range(options.repeats)
        ]
    alone, *of_ways = zip(*runs, strict=True)
    for way, seconds in zip(ways, of_ways, strict=True):
        ratios = [tokenising / scan for tokenising, scan in zip(alone, seconds, strict=True)]
        what = f"{way.name}, {tokenizer.stem}, {method}, {tokens} tokens"
        spread = (max(ratios) - min(ratios)) / median(ratios)
        note = f"{1e3 * median(seconds) / size:.0f} CPU ms a MB"
        if BARE in ways:
            beside = (scan / bare for scan, bare in zip(seconds, of_ways[ways.index(BARE)], strict=True))
            note += f", {median(beside):.2f} times bare"
        rates = size / median(seconds), "tokenising alone", size / median(alone)
        yield Comparison(6, what, "MB/s", *rates, median(ratios), spread, len(runs), note)


def prepare_scan(
    folder: Path, tokenizer: Path, posts: Path, method: str, way: Options, options: Namespace
) -> tuple[Plan, list[Piece]]:
    """Plan a scan of posts in a new folder."""
    folder.mkdir()
    config = make_scan(folder, tokenizer, 1, 1, [posts], way.audit, **VERSION_3[method] | way.messages)
    plan = make_plan(add_looks(config, way.looks))
    open_tables(plan.results)
    return plan, [Piece(shard, shard.rows.start, shard.rows.stop) for shard in shards_of(plan, options.megabytes)]


def write_posts(path: Path, tokens: int, options: Namespace) -> Path:
    """Write the corpus, cut into posts of so many tokens, about. Returns the file."""
    size = CHARACTERS_A_TOKEN * tokens
    posts = [
        text[begin : begin + size]
        for text in texts(options.corpus, options.megabytes)
        for begin in range(0, max(len(text) - size // 2, 1), size)
    ]
    pq.write_table(pa.table({"text": posts}), path)
    return path

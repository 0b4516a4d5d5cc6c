"""Row 6: what `brickscan init` writes, and each of its options, beside tokenising alone.

Posts are cut from the corpus, four characters a token. Each repeat has a new tokenizer and a new worker, kernels are
compiled, and one process does all work, in CPU seconds.
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.cluster.pieces import Piece
from scanner.results.transactions import open_tables
from scanner.scan_plan import make_plan
from tests.bench.configured import (
    AUDIT,
    FOR_USERS,
    LOOKS_OF_INIT,
    NO_AUDIT,
    ONE_MESSAGE,
    VERSION_2,
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
EACH = (
    Options("one message, bare", messages=ONE_MESSAGE),
    Options("one message, what init writes", messages=ONE_MESSAGE, audit=AUDIT, looks=LOOKS_OF_INIT),
    Options("100,000 users, bare"),
    Options("100,000 users, decoys", audit=AUDIT),
    Options("100,000 users, normalised", looks={"variants": LOOKS_OF_INIT["variants"]}),
    *(Options(f"100,000 users, {part}", looks={"spans": {part: True}}) for part in SPANS),
    Options("100,000 users, parts", looks={"spans": SPANS}),
)
"""Options that are measured by themselves."""


def of_init(options: Namespace) -> Iterator[Comparison]:
    """What `init` writes, for each tokenizer, method and length; and each option with the first tokenizer."""
    pa.set_cpu_count(1)
    paths = tokenizer_files(options.tokenizers)
    for method in VERSION_2:
        for path in paths:
            for tokens in TOKENS:
                yield _scan(path, method, tokens, INIT, options)
        for each in EACH:
            yield _scan(paths[0], method, LENGTH, each, options)


def _scan(tokenizer: Path, method: str, tokens: int, how: Options, options: Namespace) -> Comparison:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        posts = write_posts(folder / "posts.parquet", tokens, options)
        form = VERSION_2[method] | how.messages
        config = make_scan(folder, tokenizer, 1, 1, [posts], how.audit, **form)
        plan = make_plan(add_looks(config, how.looks))
        open_tables(plan.results)
        pieces = [Piece(shard, shard.rows.start, shard.rows.stop) for shard in shards_of(plan, options.megabytes)]
        raw = [[text or b"" for text in part] for part in texts_of(plan, pieces)]
        size = sum(len(text) for batch in raw for text in batch) / 1e6
        seconds_of_scan(plan, pieces)  # compiles
        runs = [(seconds_of_tokenising(tokenizer, raw), seconds_of_scan(plan, pieces)) for _ in range(options.repeats)]
    ratios = [alone / scan for alone, scan in runs]
    alone, scan = (size / median(column) for column in zip(*runs, strict=True))
    what = f"{how.name}, {tokenizer.stem}, {method}, {tokens} tokens"
    spread = (max(ratios) - min(ratios)) / median(ratios)
    note = f"{1e3 / scan:.0f} CPU ms a MB"
    return Comparison(6, what, "MB/s", scan, "tokenising alone", alone, median(ratios), spread, len(runs), note)


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

"""The way of a text from Parquet to its row, and of a key from its secret to a score: `python -m tests.bench.way`.

Counts functions of ours that are called, files that these are in, and how often the way returns to a file that it left.
Then come the calls, a line for each stay in a file, from the second stay on with a `<` before it.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.demo import TOKENIZER
from scanner.cluster.pieces import Piece
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.detection.open_plan import open_keys
from scanner.input.files import list_files
from scanner.registry import new_key, suggested_parameters
from scanner.results.transactions import open_tables
from scanner.scan_plan import make_plan
from scanner.watermark import batch_tokens
from scanner.watermark.rule import search

ROOT = f"{Path(__file__).parents[2]}/"
TEXT = "It is a long way from a file to a row of verdicts, and many have lost their way in it before. " * 9
CONFIG = """version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6
[input]
paths = ["in"]
id = "id"
"""


class Way(NamedTuple):
    """Calls in their order: file and function."""

    calls: list[tuple[str, str]]

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.calls})

    def __str__(self) -> str:
        returns = len(list(groupby(file for file, _ in self.calls))) - len(self.files)
        return f"{len(set(self.calls))} functions, {len(self.files)} files, {returns} returns"

    def stays(self) -> Iterator[str]:
        """A line for each stay in a file, with the functions that are called there."""
        known = set()
        for file, calls in groupby(self.calls, key=lambda call: call[0]):
            yield f"  {'<' if file in known else ' '} {file}: {' '.join(dict.fromkeys(name for _, name in calls))}"
            known.add(file)


def traced(act: Callable[[], object]) -> Way:
    calls = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if (
            event == "call"
            and file.startswith(ROOT)
            and "/.venv/" not in file
            and not frame.f_code.co_name.startswith("<")
        ):
            calls.append((file.removeprefix(ROOT), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return Way(calls)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        new_key(
            folder / "registry",
            "k",
            format="greenlist",
            messages=100,
            tokenizer=TOKENIZER,
            **suggested_parameters("greenlist"),
        )
        (folder / "in").mkdir()
        pq.write_table(pa.table({"id": ["a"], "text": [TEXT]}), folder / "in" / "a.parquet")
        (folder / "scan.toml").write_text(CONFIG)
        plan = make_plan(folder / "scan.toml")
        open_tables(plan.results)
        (shard,) = inspect_input(plan, list_files(plan.locations)).shards
        worker = Worker(plan, "20261123T000000Z-00000000")
        worker.prepare()
        scan = lambda: list(worker.scan(Piece(shard, 0, 1)))  # noqa: E731
        scan()
        of_text = traced(scan)
        print("a text, from Parquet to its row:", of_text, *of_text.stays(), sep="\n")
        (key,) = open_keys(plan.registry, plan.keys)
        opened = traced(lambda: open_keys(plan.registry, plan.keys))
        tokens = batch_tokens([list(range(300))])
        positions = key.watermark.rule.positions(tokens, "ngram")
        scored = traced(lambda: search(key.watermark, tokens, positions, 100))
        both = Way(opened.calls + scored.calls)
        print("a key, from its secret to a score:", both, *both.stays(), sep="\n")


if __name__ == "__main__":
    main()

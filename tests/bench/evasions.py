"""What is still found of marked texts after each evasion: `python -m tests.bench.evasions`, the table of its guide.

The marked replies of the demo's sample (version 3, both formats) are changed by each evasion and looked at with
and without normalised texts, each time at the same false-positive rate of a document. Two minutes of a core.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from jobs.demo import HERE, make_registry
from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.detection.rules import Rules
from scanner.error_shares import ErrorShares
from scanner.registry import Holders
from scanner.text import load_tokenizer, sha256_file
from schemas.tables import DOCUMENTS
from tests.bench import recording
from tests.support.evasions import EVASIONS, PLATFORMS
from tests.support.opened import opened
from tests.support.two_keys import TOKENIZER

KEYS = ("demo-greenlist", "demo-gumbel")
RATE = 1e-6


def marked_texts() -> list[str]:
    """Replies of the demo's sample that are marked under a key of KEYS, whether they are found or not."""
    truth = pl.read_parquet(HERE / "truth.parquet").filter(pl.col("key_id").is_in(KEYS))
    tables = [pq.read_table(HERE / f"sample-{i}.parquet", columns=["doc_id", "text"]) for i in (1, 2)]
    rows = pa.concat_tables(tables).cast(pa.schema({"doc_id": pa.string(), "text": pa.binary()})).to_pylist()
    texts = {row["doc_id"]: row["text"] for row in rows}  # some of other people's are no UTF-8
    return [texts[doc_id].decode() for doc_id in truth["doc_id"]]


class Finder:
    """Finds marks of the demo's keys in texts, with or without a look at normalised ones."""

    def __init__(self, registry: Path) -> None:
        keys = [test for test in opened(registry) if test.key.key_id in KEYS]
        self._detectors = [
            Detector(
                keys,
                Holders.load(registry, KEYS),
                Rules(RATE, len(keys), weights=ErrorShares.equal(normalised=normalised)),
            )
            for normalised in (False, True)
        ]  # fmt: skip

    def found(self, texts: Sequence[str]) -> tuple[int, int]:
        """How many texts are flagged as they stand, and with the second look."""
        batch = pa.RecordBatch.from_pylist([{"row": i, "text": t.encode()} for i, t in enumerate(texts)], DOCUMENTS)
        once, twice = (
            sum(detector.score_batch(batch, BatchOrigin("scan", "shard", "/in"))[0].column("flagged").to_pylist())
            for detector in self._detectors
        )
        return once, twice


def row(name: str, count: int, once: int, twice: int) -> tuple[str, ...]:
    """A row of the table: shares found, the second with its interval at 95 % (Clopper and Pearson)."""
    low, high = stats.binomtest(twice, count).proportion_ci()
    return name, f"{once / count:.2f}", f"{twice / count:.2f}", f"{low:.2f} to {high:.2f}"


def evaded(texts: Sequence[str], finder: Finder) -> Iterator[tuple[str, ...]]:
    """Rows of EVASIONS."""
    for name, evade in {"none": str, **EVASIONS}.items():
        yield row(name, len(texts), *finder.found([evade(text) for text in texts]))


def of_platforms(texts: Sequence[str], finder: Finder) -> Iterator[tuple[str, ...]]:
    """Rows of PLATFORMS, with the mean number of tokens for each token of the text as it was."""
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    before = len(tokenizer.encode(texts).ids)
    for name, add in {"nothing": str, **PLATFORMS}.items():
        changed = [add(text) for text in texts]
        _, *shares = row(name, len(texts), *finder.found(changed))
        yield (name, f"{len(tokenizer.encode(changed).ids) / before:.2f}", *shares)


SHARES = ("as it stands", "with the normalised text", "interval")
SAMPLE = (
    "{} marked replies of the demo's sample, both formats, at 1e-6; not all are long enough to be found untouched; "
)
INTERVALS = "95 % intervals of the second share (Clopper and Pearson)"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.evasions", description=__doc__)
    parser.add_argument("--texts", type=int, help="only the first so many")
    parser.add_argument(
        "--platforms", action="store_true", help="what platforms add to texts, and tokens for each of before"
    )
    recording.add_option(parser)
    options = parser.parse_args()
    texts, rows = marked_texts()[: options.texts], list[tuple[str, ...]]()
    columns = ("what is added", "tokens", *SHARES) if options.platforms else ("evasion", *SHARES)
    print(f"n = {len(texts)}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as folder:
        make_registry(Path(folder) / "registry")
        finder = Finder(Path(folder) / "registry")
        for cells in (of_platforms if options.platforms else evaded)(texts, finder):
            rows.append(cells)
            print(f"| {' | '.join(cells)} |", flush=True)
    after = "what platforms add" if options.platforms else "an evasion"
    tokens = "tokens are for each token of the text as it was; " if options.platforms else ""
    recording.record(
        options,
        parser.prog,
        group="Power",
        title=f"Share of marked replies that are still found after {after}",
        sample=SAMPLE.format(len(texts)) + tokens + INTERVALS,
        columns=columns,
        rows=rows,
    )


if __name__ == "__main__":
    main()

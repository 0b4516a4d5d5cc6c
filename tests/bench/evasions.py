"""What is still found of marked texts after each evasion: `python -m tests.bench.evasions`, the table of its guide.

The marked replies of the demo's sample (version 3, both formats) are changed by each evasion and looked at with
and without normalised texts, each time at the same false-positive rate of a document. Two minutes of a core.
"""

import argparse
import tempfile
from collections.abc import Sequence
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


def line(name: str, count: int, once: int, twice: int) -> str:
    """A row of the table: shares found, the second with its interval at 95 % (Clopper and Pearson)."""
    low, high = stats.binomtest(twice, count).proportion_ci()
    return f"| {name} | {once / count:.2f} | {twice / count:.2f} | {low:.2f} to {high:.2f} |"


def show_platforms(texts: Sequence[str]) -> None:
    """Print the table of PLATFORMS, with the mean number of tokens for each token of the text as it was."""
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    with tempfile.TemporaryDirectory() as folder:
        make_registry(Path(folder) / "registry")
        finder = Finder(Path(folder) / "registry")
        before = len(tokenizer.encode(texts).ids)
        print(f"n = {len(texts)}\n\n| what is added | tokens | as it stands | with the normalised text | interval |")
        print("|---|---|---|---|---|")
        for name, add in {"nothing": str, **PLATFORMS}.items():
            changed = [add(text) for text in texts]
            ratio = f"{name} | {len(tokenizer.encode(changed).ids) / before:.2f}"
            print(line(ratio, len(texts), *finder.found(changed)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.evasions", description=__doc__)
    parser.add_argument("--texts", type=int, help="only the first so many")
    parser.add_argument(
        "--platforms", action="store_true", help="what platforms add to texts, and tokens for each of before"
    )
    options = parser.parse_args()
    texts = marked_texts()[: options.texts]
    if options.platforms:
        show_platforms(texts)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_registry(Path(folder) / "registry")
        finder = Finder(Path(folder) / "registry")
        print(
            f"n = {len(texts)}\n\n| evasion | as it stands | with the normalised text | interval |\n|---|---|---|---|"
        )
        print(line("none", len(texts), *finder.found(texts)))
        for name, evade in EVASIONS.items():
            print(line(name, len(texts), *finder.found([evade(text) for text in texts])), flush=True)


if __name__ == "__main__":
    main()

"""Row 7: other makers' detectors, and the code that a user would write first, beside ours on the same documents.

All of them score 256 tokens a document and give a p-value or a mean; ours includes everything from flat tokens on. The
last lines are of whole scans: from a Parquet file to p-values, beside vectorised numpy with the same tokenizer.
"""

import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
import scipy.stats
from numpy.typing import NDArray

from scanner.text import load_tokenizer, sha256_file
from scanner.text.tokenizers import SAMPLE_TEXTS
from scanner.watermark import Tokens, scored_positions
from tests.bench.as_init import INIT, ONE, prepare_scan, write_posts
from tests.bench.as_init import LENGTH as POST_LENGTH
from tests.bench.inputs import VOCABULARY, WINDOW, documents
from tests.bench.kernels import both
from tests.bench.measure import Comparison, Work, compare, cpu_seconds
from tests.bench.scan import seconds_of_scan
from tests.bench.tokenising import tokenizer_files

LENGTH = 256


def beside_ours(options: Namespace) -> Iterator[Comparison]:
    """Row 7."""
    yield from _flat_tokens(options)
    yield from _whole_scans(options)


def _flat_tokens(options: Namespace) -> Iterator[Comparison]:
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"row 7 is left out: {error}; the extra `model` brings what it needs")
        return
    torch.set_num_threads(1)
    green, gumbel = both()
    for mark, peer in (
        (green, _hugging_face(2)),
        (gumbel, _synth_id(8)),
        (green, _plain(20, 1, gumbel=False)),
        (gumbel, _plain(20, 1, gumbel=True)),
    ):
        tokens = documents(LENGTH, 1 << 17)
        ours = Work(f"{mark.label}, one message", len(tokens.offsets) - 1, partial(_one_message, mark, tokens))
        yield compare(7, "documents/s", ours, peer, options.repeats)
    for count in (1000, 32_000):
        for mark in (green, gumbel):
            tokens = documents(LENGTH, LENGTH * 32)
            ours = Work(f"{mark.label}, M = {count}", 32, partial(_all_messages, mark, tokens, count))
            peer = _plain(8, count, gumbel=mark is gumbel)
            yield compare(7, "documents/s", ours, peer, options.repeats)


def _one_message(mark: object, tokens: Tokens) -> None:
    positions = scored_positions(tokens, WINDOW, "ngram")
    mark.law.log10_p(mark.score(tokens, positions, 0), positions.scored)


def _all_messages(mark: object, tokens: Tokens, count: int) -> None:
    positions = scored_positions(tokens, WINDOW, "ngram")
    mark.law.log10_p(mark.best_two(tokens, positions, count).score, positions.scored)


def _rows(count: int) -> np.ndarray:
    return documents(LENGTH, LENGTH * count).ids.astype(np.int64).reshape(count, LENGTH)


def _hugging_face(count: int) -> Work:
    """Green list with `lefthash`: a generator is seeded for every bigram; its cache is dropped between calls."""
    import torch
    from transformers import PretrainedConfig, WatermarkDetector

    config = PretrainedConfig(vocab_size=VOCABULARY, bos_token_id=VOCABULARY)
    rows = torch.from_numpy(_rows(count))

    def call() -> None:
        detector = WatermarkDetector(config, "cpu", {"greenlist_ratio": 0.25, "context_width": 1})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            detector(rows, return_dict=True)

    return Work("transformers WatermarkDetector", count, call)


def _synth_id(count: int) -> Work:
    """SynthID's mean score over 30 layers: g values and the mask of repeats."""
    import torch
    from transformers import SynthIDTextWatermarkLogitsProcessor

    processor = SynthIDTextWatermarkLogitsProcessor(
        ngram_len=5, keys=list(range(1, 31)), sampling_table_size=2**16, sampling_table_seed=0,
        context_history_size=1024, device=torch.device("cpu"),
    )  # fmt: skip
    rows = torch.from_numpy(_rows(count))

    def call() -> None:
        values = processor.compute_g_values(rows)
        mask = processor.compute_context_repetition_mask(rows)
        (values * mask[:, :, None]).sum(dim=(1, 2)) / mask.sum(dim=1)

    return Work("transformers SynthID, mean score", count, call)


def _plain(count: int, messages: int, gumbel: bool) -> Work:
    """The paper's method, written plainly: a generator seeded per token, a vector of the vocabulary's length."""
    import torch

    rows = _rows(count)
    generator = torch.Generator()

    def score(document: list[int]) -> float:
        seen: set[tuple[int, ...]] = set()
        total = torch.zeros(messages)
        for t in range(WINDOW, len(document)):
            unit = tuple(document[t - WINDOW : t + 1])
            if unit in seen:
                continue
            seen.add(unit)
            generator.manual_seed(hash(unit[:-1]) & 0x7FFFFFFFFFFFFFFF)
            draws = torch.rand(max(VOCABULARY, messages), generator=generator)
            vector = -torch.log1p(-draws) if gumbel else (draws < 0.25).float()
            total += vector.roll(-document[t])[:messages]
        best, scored = float(total.max()), float(len(seen))
        if gumbel:
            return float(torch.special.gammaincc(torch.tensor(scored), torch.tensor(best)))
        return float(torch.special.log_ndtr(torch.tensor((0.25 * scored - best) / (0.1875 * scored) ** 0.5)))

    name = "plain torch, " + ("gumbel" if gumbel else "greenlist") + (f", M = {messages}" if messages > 1 else "")
    return Work(name, count, lambda: [score(row) for row in rows.tolist()])


def _whole_scans(options: Namespace) -> Iterator[Comparison]:
    """Scans of the same posts in turns: by numpy, by us for one message, and as `brickscan init` writes it."""
    tokenizer, ways = tokenizer_files(options.tokenizers)[0], (ONE, INIT)
    with tempfile.TemporaryDirectory() as name:
        posts = write_posts(Path(name) / "posts.parquet", POST_LENGTH, options)
        megabytes = sum(map(len, map(str.encode, _texts_of(posts)))) / 1e6
        arguments = tokenizer, posts, "greenlist-v3"
        scans = [prepare_scan(Path(name) / str(i), *arguments, way, options) for i, way in enumerate(ways)]
        for scan in scans:
            seconds_of_scan(*scan)  # compiles
        runs = [
            (_seconds_of_numpy(tokenizer, posts), *(seconds_of_scan(*scan) for scan in scans))
            for _ in range(options.repeats)
        ]
    plain, *of_ways = zip(*runs, strict=True)
    for way, ours in zip(ways, of_ways, strict=True):
        ratios = [by_numpy / by_us for by_numpy, by_us in zip(plain, ours, strict=True)]
        what = f"{way.name}, {tokenizer.stem}, {POST_LENGTH} tokens"
        rates = megabytes / median(ours), "numpy, one message, no rows", megabytes / median(plain)
        note = f"{min(ratios):.2f} to {max(ratios):.2f}"
        spread = (max(ratios) - min(ratios)) / median(ratios)
        yield Comparison(7, what, "MB/s", *rates, median(ratios), spread, len(runs), note)


def _texts_of(posts: Path) -> list[str]:
    texts: list[str] = pq.read_table(posts).column("text").to_pylist()
    return texts


def _seconds_of_numpy(tokenizer: Path, posts: Path) -> float:
    """CPU seconds from a Parquet file to p-values, with a new tokenizer."""
    backend = load_tokenizer(tokenizer, sha256_file(tokenizer))
    backend.encode([" "] * SAMPLE_TEXTS)  # the check on the first texts
    begin = cpu_seconds()
    _log_p_of_green_list(backend.encode(_texts_of(posts)))
    return cpu_seconds() - begin


def _log_p_of_green_list(tokens: Tokens) -> NDArray[np.float64]:
    """Compute ln p of each document under a green list of a quarter, each n-gram of a document counted once."""
    ids, odd, length = tokens.ids.astype(np.uint64), np.uint64(0x9E3779B97F4A7C15), len(tokens.ids) - WINDOW
    document = np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets))
    grams = np.zeros(length, np.uint64)
    for k in range(WINDOW + 1):
        grams = (grams ^ ids[k : k + length]) * odd
        grams ^= grams >> np.uint64(32)
    is_whole = document[:length] == document[WINDOW:]
    grams, whose = grams[is_whole], document[WINDOW:][is_whole]
    _, first = np.unique(grams ^ whose.astype(np.uint64) * odd, return_index=True)
    is_green, whose = grams[first] * odd < np.uint64(2**62), whose[first]
    count = len(tokens.offsets) - 1
    scored, score = np.bincount(whose, minlength=count), np.bincount(whose, is_green, minlength=count)
    return np.asarray(scipy.stats.binom.logsf(score - 1, scored, 0.25), np.float64)

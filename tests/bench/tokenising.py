"""Row 5: tokenising alone, with each backend and each tokenizer of a folder; and deciding on a second look."""

import hashlib
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from scanner.errors import BackendUnlike
from scanner.looks.normalising import normal_forms, normalise
from scanner.text import FastTokenizer, HuggingFaceTokenizer
from scanner.text.tokenizers import SAMPLE_TEXTS
from scanner.text.utf8 import Utf8
from tests.bench.inputs import size, texts
from tests.bench.measure import Comparison, Work, compare, rate


def tokenizer_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.json")) if "model" in json.loads(path.read_bytes())]


def own_normal_forms(chosen: list[str], options: Namespace) -> Iterator[Comparison]:
    """What it costs to find that texts are their own normal form, beside their SHA-256, which every scan takes too."""
    for ascii_alone in (True, False):
        stored = [t.encode() for t in chosen if t.isascii() == ascii_alone and normalise(t) == t]
        if not stored:
            continue
        few = [raw.decode() for raw in stored]
        utf8 = Utf8(np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)]))
        megabytes = len(utf8.data) / 1e6
        digests = Work(
            "SHA-256 of each text", megabytes, lambda stored=stored: [hashlib.sha256(raw).digest() for raw in stored]
        )
        name = f"own normal forms, {'ASCII' if ascii_alone else 'other'} texts"
        work = Work(name, megabytes, lambda few=few, utf8=utf8: normal_forms(few, utf8))
        compared = compare(5, "MB/s", work, digests, options.repeats)
        yield compared._replace(note=f"{1e3 / compared.rate:.3g} ms a MB")


def backends(options: Namespace) -> Iterator[Comparison]:
    chosen = texts(options.corpus, options.megabytes)
    yield from own_normal_forms(chosen, options)
    megabytes = size(chosen)
    raw = [text.encode() for text in chosen]
    digests = Work("SHA-256 of each text", megabytes, lambda: [hashlib.sha256(text).digest() for text in raw])
    for path in tokenizer_files(options.tokenizers):
        slow = HuggingFaceTokenizer(path.read_bytes())
        tokens = len(slow.encode(chosen).ids)
        work = Work(f"{path.stem}, tokenizers", megabytes, lambda slow=slow: slow.encode(chosen))
        compared = compare(5, "MB/s", work, digests, options.repeats)
        yield compared._replace(note=f"{1e9 * megabytes / compared.rate / tokens:.4g} ns a token")
        try:
            FastTokenizer(path.read_bytes(), slow)
        except BackendUnlike as error:
            print(f"row 5: {path.stem}: {error}")
            continue

        def new(path: Path = path, slow: HuggingFaceTokenizer = slow) -> FastTokenizer:
            return FastTokenizer(path.read_bytes(), slow)

        yield _cold(f"{path.stem}, fastokens", megabytes, chosen, tokens, new, work, options)


def _cold(
    name: str,
    megabytes: float,
    chosen: list[str],
    tokens: int,
    new: Callable[[], FastTokenizer],
    slow: Work,
    options: Namespace,
) -> Comparison:
    """A new tokenizer for each repeat: the fast backend remembers words, so that texts it has seen cost less."""
    ratios, rates, slows = [], [], []
    for _ in range(options.repeats):
        slows.append(rate(slow, 1))
        backend = new()
        backend.encode([" "] * SAMPLE_TEXTS)  # the check on the first texts
        rates.append(rate(Work(name, megabytes, lambda backend=backend: backend.encode(chosen)), 1))
        ratios.append(rates[-1] / slows[-1])
    fast = median(rates)
    note = f"{1e9 * megabytes / fast / tokens:.4g} ns a token, {megabytes:.3g} MB that it has not seen"
    spread = (max(rates) - min(rates)) / fast
    return Comparison(5, name, "MB/s", fast, slow.name, median(slows), median(ratios), spread, len(rates), note)

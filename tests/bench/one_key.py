"""p-values of unmarked text under one key without a law: `python -m tests.bench.one_key --corpus human.parquet`.

All texts meet the draws of the one key. A frequent n-gram with a high draw lifts all of them, so that p-values of one
key are too small, or too large, for as long as the key is used. Each format is opened with its public default and with
some drawn keys. Beside the rates stands the variance of a key's whole count over keys, relative to the law's: expected
from how often each draw is met, and observed.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Positions, Tokens
from scanner.watermark.formats import make_format
from scanner.watermark.rule import log10_p_of
from scanner.watermark.stacks.synthid.format import PUBLISHED_KEYS
from tests.bench.fresh_keys import LEVELS, entropy, show
from tests.bench.null_counts import DEMO, pieces_of

LIBRARY = (15485863).to_bytes(8, "big")
PUBLIC = b"".join(key.to_bytes(8, "big") for key in PUBLISHED_KEYS)
RESEARCH = (0).to_bytes(8, "big") + (35317).to_bytes(8, "big")
CASES: tuple[tuple[str, dict[str, Any], bytes], ...] = (
    ("hf-lefthash", {"context_width": 1}, LIBRARY),
    ("hf-selfhash", {"context_width": 1}, LIBRARY),
    ("hf-selfhash", {"context_width": 4}, LIBRARY),
    ("three-bricks-maryland", {"window": 2}, RESEARCH),
    ("three-bricks-maryland", {"window": 4}, RESEARCH),
    ("three-bricks-openai", {"window": 2}, RESEARCH),
    ("three-bricks-openai", {"window": 4}, RESEARCH),
    ("synthid-table", {"published": True}, PUBLIC),
    ("synthid-mixed", {"published": True}, PUBLIC),
)


class OneKey(NamedTuple):
    """Figures of a key. rates: observed over stated, float64[J]; variance: of its whole count, over the law's."""

    rates: NDArray[np.float64]
    variance: float


def one_key(mark: Any, tokens: Tokens) -> OneKey:
    """The figures of an opened key."""
    positions = mark.rule.positions(tokens, "ngram")
    score = mark.score(tokens, positions, 0)
    log10_p = log10_p_of(mark.law, score, positions.scored)
    rates = (log10_p[:, None] <= np.log10(LEVELS)).mean(axis=0) / LEVELS
    mean, variance, whole = mark.law.mean, mark.law.variance, float(score.sum())
    if hasattr(mark, "ones"):  # the score is made from a p-value; the ones of all layers are counted instead
        mean, variance, whole = (
            mark._weights.sum() / 2,
            (mark._weights**2).sum() / 4,
            float(_ones(mark, tokens, positions)),
        )
    scored = float(positions.scored.sum())
    return OneKey(rates, (whole - scored * mean) ** 2 / (scored * variance))


def _ones(mark: Any, tokens: Tokens, positions: Positions) -> int:
    return int((mark.ones(tokens, positions) @ mark._weights).sum())


def met_again(mark: Any, tokens: Tokens) -> float:
    """Expected variance of a key's whole count, over the law's: Σ n² / Σ n over the n positions that share a draw."""
    places = mark.rule.positions(tokens, "ngram").index
    if hasattr(mark, "seeds"):
        draws = mark.seeds(tokens)[places].astype(np.uint64) << np.uint64(32) | tokens.ids[places]
    else:
        draws = np.array([hash(mark.rule.ngram(tokens, int(place))) for place in places])
    counts = np.unique(draws, return_counts=True)[1].astype(np.float64)
    return float((counts**2).sum() / counts.sum())


def row(name: str, parameters: dict[str, Any], public: bytes, tokens: Tokens, keys: int) -> dict[str, Any]:
    """A format's row: figures under its public key, and their range over drawn keys."""
    form: Any = make_format(name, parameters)
    marks = [form.open(public), *(form.open(form.decoy_key(entropy(name, "one", i))) for i in range(keys))]
    each = [one_key(mark, tokens) for mark in marks]
    drawn = np.array([found.rates for found in each[1:]])
    width = parameters.get("window", parameters.get("context_width", 4))
    shown: dict[str, Any] = {"format": f"{name}, h = {width}"}
    for j, level in enumerate(LEVELS[:4]):
        shown[f"{level:.0e}"] = f"{each[0].rates[j]:.2f} ({drawn[:, j].min():.2f}-{drawn[:, j].max():.2f})"
    observed = np.mean([found.variance for found in each[1:]])
    return shown | {"variance, expected": f"{met_again(marks[0], tokens):.1f}", "observed": f"{observed:.1f}"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.one_key", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text, of people")
    parser.add_argument("--tokenizer", type=Path, default=DEMO / "tokenizer.json")
    parser.add_argument("--pieces", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=64, help="tokens of a piece")
    parser.add_argument("--keys", type=int, default=9, help="that are drawn")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokens, size = pieces_of(options), load_tokenizer(options.tokenizer, sha256_file(options.tokenizer)).vocab_size
    for name, parameters, public in CASES:
        vocabulary = {} if name.startswith("synthid") else {"vocab_size": size}
        show([row(name, parameters | vocabulary, public, tokens, options.keys)])


if __name__ == "__main__":
    main()

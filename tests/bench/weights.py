"""What weights from a model save, in tokens at p = 1e-6: `python -m tests.bench.weights write|weigh|table FOLDER …`.

`write` has SmolLM2 write marked texts, `weigh` asks proxies of it for the probability of each token, and `table` prints
for each proxy and shape of weights how many tokens a flag takes. Proxies never see the prompt. Each step keeps what it
has made, so that it can be interrupted. Hours of one core; the tables stand in docs/concepts/weighted-evidence.md.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.evaluation.attacks import Tools, substitute
from scanner.generation import LocalModel, Sampling, complete, load_model
from scanner.watermark import Watermark, batch_tokens
from scanner.watermark.format import ScoresParts
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels

METHODS = ("gumbel", "greenlist")
TEMPERATURES = (0.3, 0.6, 1.0)
KINDS = ("prose", "code", "json")
EDITS = (0.0, 0.06, 0.15)
CELLS = tuple(itertools.product(METHODS, TEMPERATURES, KINDS))
TEXTS, LONGEST, STEP = 12, 400, 10
DELTA = 2.0

THINGS = (
    "a lighthouse", "a train station", "a library", "a bakery", "a hospital", "a football club", "a museum", "a farm",
    "a bicycle shop", "an airport", "a school", "a harbour", "a theatre", "a power plant", "a zoo", "a post office",
    "a hotel", "a bank", "a garden centre", "a cinema", "a pharmacy", "a warehouse", "a ski resort", "a restaurant",
    "a radio station", "a law firm", "a town hall", "a shipyard", "a vineyard", "a laboratory", "a fire station",
    "a call centre",
)  # fmt: skip
PROMPTS = {
    "prose": "Write a long story about one day at {thing}, told by somebody who works there.",
    "code": "Write a Python module with classes and functions, with docstrings, that runs {thing}.",
    "json": "Write a JSON array of twelve records about {thing}; each has id, name, date, price, tags and a note.",
}

Floats = NDArray[np.float64]


def mark_of(method: str) -> Watermark:
    """The mark of all texts of a method: one user."""
    parameters: dict[str, Any] = {"window": 4} | ({"gamma": "1/4"} if method == "greenlist" else {})
    return make_format(method, parameters).open(b"tests.bench.weights " + method.encode())


def write(folder: Path, model: LocalModel) -> None:
    """Write every cell's texts that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for method, temperature, kind in CELLS:
        file = folder / f"{method}-{temperature:g}-{kind}.json"
        if file.exists():
            continue
        prompts = [PROMPTS[kind].format(thing=thing) for thing in THINGS[:TEXTS]]
        sampling = Sampling(max_new_tokens=LONGEST, temperature=temperature, delta=DELTA)
        texts = complete(model, prompts, sampling, 1, mark_of(method), [0] * TEXTS)
        file.write_text(json.dumps([text.text for text in texts]))
        print(file.name, sum(text.tokens for text in texts), flush=True)


class Ngrams:
    """Probabilities of tokens from counts of n-grams, each length backed off to the next shorter one.

    Args:
        texts: token ids of texts that nobody marked.
        longest: n.
    """

    def __init__(self, texts: Sequence[Sequence[int]], longest: int = 4) -> None:
        ids = np.fromiter(itertools.chain.from_iterable((*text, 2**32 - 1) for text in texts), np.uint64)
        self._counts = [np.unique(self._hashes(ids, n), return_counts=True) for n in range(longest + 1)]

    @staticmethod
    def _hashes(ids: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
        """A hash of the n tokens that end at each place; shorter at the beginning."""
        value = np.zeros(len(ids), np.uint64)
        for back in range(n):
            shifted = np.concatenate([np.full(min(back, len(ids)), 2**32 - 2, np.uint64), ids[: len(ids) - back]])
            value = (value * np.uint64(0x9E3779B97F4A7C15)) ^ (shifted + np.uint64(1))
            value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return value

    def _count(self, n: int, hashes: NDArray[np.uint64]) -> Floats:
        known, counts = self._counts[n]
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[at] == hashes, counts[at].astype(np.float64), 0.0)

    def probabilities(self, text: Sequence[int]) -> Floats:
        """p̂ of each token, float64[T]."""
        ids = np.array(text, np.uint64)
        p = np.full(len(ids), 1e-5)
        before = np.concatenate([np.full(1, 2**32 - 1, np.uint64), ids[:-1]])
        for n in range(1, len(self._counts)):
            whole, context = self._count(n, self._hashes(ids, n)), self._count(n - 1, self._hashes(before, n - 1))
            p = (whole + 2.0 * p) / (context + 2.0)
        return np.minimum(p, 1.0)


class Proxies:
    """Everything that gives p̂ of each token of a text, by name.

    Args:
        model: the model that wrote the texts.
        corpus: texts that nobody marked.
        other: another tokenizer, for n-grams of its tokens.
    """

    def __init__(self, model: LocalModel, corpus: Sequence[str], tools: Tools) -> None:
        self._model, self._tools = model, tools
        ids = [tools.ids(text) for text in corpus]
        self._tables = {"n-grams of 4 M tokens": Ngrams(ids), "n-grams of 0.5 M tokens": Ngrams(ids[: len(ids) // 8])}
        assert tools.other is not None
        other = [tools.other.encode(text, add_special_tokens=False).ids for text in corpus]
        self._other = Ngrams(other)
        self._by_place = self._places(ids[: len(ids) // 8])

    def of(self, text: str) -> dict[str, Floats]:
        """p̂ of each token by each proxy: float64[T]."""
        ids = self._tools.ids(text)
        found = {name: table.probabilities(ids) for name, table in self._tables.items()}
        found["n-grams of another tokenizer"] = self._through_characters(text)
        found["a table by place in the word"] = self._by_place[self._place_in_word(ids)]
        for dropped, name in ((0, "the writer"), (10, "10 of 30 layers left out")):
            logits = self._logits(ids, dropped)
            found[name] = _probabilities(logits, ids)
            if not dropped:
                found["the writer at temperature 2"] = _probabilities(logits / 2.0, ids)
                noise = np.random.default_rng(len(ids)).standard_normal(logits.shape, np.float32)
                found |= {
                    f"the writer, logits with noise of {size}": _probabilities(logits + size * noise, ids)
                    for size in (1, 2)
                }
        return found

    def _logits(self, ids: Sequence[int], dropped: int) -> NDArray[np.float32]:
        """Logits for each token from those before it, [T, |V|]; the first one's are zero."""
        import torch

        inner = self._model.model.model
        layers = inner.layers
        out = np.zeros((len(ids), self._model.model.config.vocab_size), np.float32)
        gone = {round(2 + i * (len(layers) - 4) / dropped) for i in range(dropped)} if dropped else set()
        inner.layers = torch.nn.ModuleList(layer for i, layer in enumerate(layers) if i not in gone)
        inner.config.num_hidden_layers = len(inner.layers)
        try:
            with torch.inference_mode():
                out[1:] = self._model.model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0].numpy()
        finally:
            inner.layers, inner.config.num_hidden_layers = layers, len(layers)
        return out

    def _through_characters(self, text: str) -> Floats:
        """Surprise by the other tokenizer's n-grams, shared out evenly over characters and summed over our tokens."""
        assert self._tools.other is not None
        encoded = self._tools.other.encode(text, add_special_tokens=False)
        surprise = np.zeros(len(text) + 1)
        for (begin, end), p in zip(encoded.offsets, self._other.probabilities(encoded.ids), strict=True):
            surprise[begin:end] += -np.log(p) / max(end - begin, 1)
        total = np.concatenate([[0.0], np.cumsum(surprise)])
        ours = self._tools.tokenizer.encode(text, add_special_tokens=False)
        return np.array([np.exp(total[begin] - total[end]) for begin, end in ours.offsets])

    def _place_in_word(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """How many tokens of its word stand before each: 0 to 4."""
        places, place = [], 0
        for token in ids:
            begins = not (self._tools.tokenizer.id_to_token(token) or "").isalpha()
            place = 0 if begins else min(place + 1, 4)
            places.append(place)
        return np.array(places)

    def _places(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Mean p̂ at each place in a word by the n-grams of the other texts: float64[5]."""
        table = Ngrams(texts[: len(texts) // 2])
        sums, counts = np.zeros(5), np.zeros(5)
        for text in texts[len(texts) // 2 :]:
            place = self._place_in_word(text)
            sums += np.bincount(place, table.probabilities(text), 5)
            counts += np.bincount(place, minlength=5)
        return sums / np.maximum(counts, 1.0)


def _probabilities(logits: NDArray[np.float32], ids: Sequence[int]) -> Floats:
    import torch

    of_token = logits[np.arange(len(ids)), ids].astype(np.float64)
    return np.exp(of_token - torch.logsumexp(torch.from_numpy(logits), 1).numpy().astype(np.float64))


def weigh(folder: Path, model: LocalModel, tools: Tools) -> None:
    """Keep p̂ and draws of every text, unedited and edited, that are not there yet."""
    proxies = Proxies(model, tools.human, tools)
    files = [folder / f"{method}-{temperature:g}-{kind}.json" for method, temperature, kind in CELLS]
    for file, edit in itertools.product(filter(Path.exists, files), EDITS):
        target = file.with_name(f"{file.stem}-{edit:g}.npz")
        if target.exists():
            continue
        mark = mark_of(file.name.split("-")[0])
        assert isinstance(mark, ScoresParts)
        kept: dict[str, NDArray[Any]] = {}
        for number, written in enumerate(json.loads(file.read_text())):
            text = substitute(written, edit, np.random.default_rng(number), tools) if edit else written
            ids = tools.ids(text)
            tokens = batch_tokens([ids])
            positions = mark.rule.positions(tokens, "ngram")
            kept |= {f"{number}/terms": mark.terms(tokens, positions, 0), f"{number}/index": positions.index}
            kept |= {f"{number}/{name}": p[positions.index] for name, p in proxies.of(text).items()}
        np.savez_compressed(target, **kept)
        print(target.name, flush=True)


SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "1 − p̂": lambda p: 1.0 - p,
    "1 − √p̂": lambda p: 1.0 - np.sqrt(p),
    "−ln p̂, at most 4": lambda p: np.minimum(-np.log(p), 4.0) / 4.0,
}


def log10_tail(score: Floats, cumulants: Callable[[Floats], tuple[Floats, Floats, Floats]], highest: Floats) -> Floats:
    """log10 P(S ≥ score) by the saddlepoint (Lugannani and Rice 1980), float64[N]; 0 at the mean and below.

    cumulants: K, K′ and K″ at tilts, float64[N] each; highest: tilts below which they are finite.
    """
    low, high = np.zeros_like(score), highest.copy()
    for _ in range(80):
        middle = (low + high) / 2.0
        above = cumulants(middle)[1] > score
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    tilt = low
    k, _, second = cumulants(tilt)
    with np.errstate(all="ignore"):
        w, u = np.sqrt(2.0 * np.maximum(tilt * score - k, 0.0)), tilt * np.sqrt(second)
        mills = np.sqrt(np.pi / 2.0) * special.erfcx(w / np.sqrt(2.0))
        ln_p = -(w**2) / 2.0 - np.log(2.0 * np.pi) / 2.0 + np.log(np.maximum(mills + 1.0 / u - 1.0 / w, 1e-300))
    return np.where(
        (score > cumulants(np.zeros_like(score))[1]) & (w > 0.05), np.minimum(ln_p / np.log(10.0), 0.0), 0.0
    )


def weighted_log10_p(method: str, terms: Floats, weights: Floats, ends: NDArray[np.int64]) -> Floats:
    """log10 p of Σ w·x over the first `ends` scored tokens; weights rounded to LEVELS."""
    level = np.rint(weights * LEVELS).astype(np.int64)
    counts = np.array([np.bincount(level[:end], minlength=LEVELS + 1) for end in ends])
    score, values = np.concatenate([[0.0], np.cumsum(level * terms)])[ends], np.arange(LEVELS + 1)
    if method == "gumbel":
        return log10_gumbel_levels(score, counts, values)
    return log10_greenlist_levels(score, counts, values, Fraction(1, 4))


@functools.cache
def _mixed_moments(share: float) -> tuple[Floats, Floats]:
    """g = ln(1 − w + w·f(r)) at nodes of −ln(1−r), and the nodes' chances; f(r) = E1(−ln r)/r, p of a token uniform."""
    x: Floats = (np.arange(60_000) + 0.5) * 1e-3
    chance = np.exp(-x)
    return _mixed_terms(share, x), chance / chance.sum()


def _mixed_terms(share: float, x: Floats) -> Floats:
    """ln(1 − w + w·f(r)) for x = −ln(1−r)."""
    minus_ln_r = -np.log1p(-np.exp(-np.maximum(x, 1e-12)))
    return np.log(1.0 - share + share * special.exp1(minus_ln_r) * np.exp(minus_ln_r))  # type: ignore[no-any-return]


def mixed_log10_p(share: float, terms: Floats, ends: NDArray[np.int64]) -> Floats:
    """log10 p of Σ ln(1 − w + w·f(r)) over the first `ends` scored tokens."""
    g, chance = _mixed_moments(share)
    score = np.concatenate([[0.0], np.cumsum(_mixed_terms(share, terms))])[ends]
    count = ends.astype(np.float64)
    grid = np.linspace(0.0, 6.0, 241)
    moments = np.array([_cumulants(tilt, g, chance) for tilt in grid])

    def iid(tilt: Floats) -> tuple[Floats, Floats, Floats]:
        of_one = [np.interp(tilt, grid, moments[:, i]) for i in range(3)]
        return count * of_one[0], count * of_one[1], count * of_one[2]

    return log10_tail(score, iid, np.full(len(ends), 6.0))


def _cumulants(tilt: float, g: Floats, chance: Floats) -> tuple[float, float, float]:
    powers = chance * np.exp(tilt * g)
    total = powers.sum()
    mean = (powers * g).sum() / total
    return float(np.log(total)), float(mean), float((powers * g**2).sum() / total - mean**2)


def evidence_log10_p(terms: Floats, p: Floats, ends: NDArray[np.int64], kept: float = 0.3) -> Floats:
    """log10 1/E, E = ∏(ε + (1−ε)·r^(1/p̂−1)/p̂): valid whatever p̂ is."""
    ln_r = np.log(-np.expm1(-np.maximum(terms, 1e-12)))
    p = np.clip(p, 1e-6, 1.0 - 1e-9)
    factors = np.logaddexp(np.log(kept), np.log(1.0 - kept) + (1.0 / p - 1.0) * ln_r - np.log(p))
    return np.minimum(-np.concatenate([[0.0], np.cumsum(factors)])[ends] / np.log(10.0), 0.0)


class Text(NamedTuple):
    """A text's terms, the indices of its scored tokens, and p̂ of these by each proxy."""

    terms: Floats
    at: NDArray[np.int64]
    p: dict[str, Floats]


def texts_of(file: Path) -> Iterator[Text]:
    """The texts that `weigh` kept in a file."""
    with np.load(file) as kept:
        names = sorted({name.split("/", 1)[1] for name in kept.files} - {"terms", "index"})
        for number in range(sum(name.endswith("/terms") for name in kept.files)):
            p = {name: kept[f"{number}/{name}"] for name in names}
            yield Text(kept[f"{number}/terms"].astype(np.float64), kept[f"{number}/index"], p)


def looks(method: str, text: Text, ends: NDArray[np.int64]) -> dict[str, Floats]:
    """log10 p, corrected for the looks of each kind, of the text's first tokens: float64[lengths]."""
    law = mark_of(method).law
    assert law is not None
    plain = law.log10_p(np.concatenate([[0.0], np.cumsum(text.terms)])[ends], ends)
    found = {"the sum": plain}
    if method == "gumbel":
        mixed = [mixed_log10_p(share, text.terms, ends) + np.log10(6.0) for share in (1 / 4, 1 / 16)]
        found["a mixture, no model"] = np.minimum.reduce([plain + np.log10(1.5), *mixed])
    for name, p in text.p.items():
        for shape, weights_of in SHAPES.items():
            weighted = weighted_log10_p(method, text.terms, weights_of(np.clip(p, 1e-9, 1.0)), ends)
            found[f"{name}: {shape}"] = np.minimum(plain + np.log10(3.0), weighted + np.log10(1.5))
        if method == "gumbel":
            bet = evidence_log10_p(text.terms, p, ends)
            found[f"{name}: e-value"] = np.minimum(plain + np.log10(3.0), bet + np.log10(1.5))
    return found


def table(folder: Path) -> None:
    """Print, for each cell and look, the tokens at which half of the texts are flagged, and shares that are found."""
    lengths = np.arange(STEP, LONGEST + 1, STEP)
    for method, temperature, edit in itertools.product(METHODS, TEMPERATURES, EDITS):
        first: dict[str, list[list[float]]] = {}
        for kind in KINDS:
            file = folder / f"{method}-{temperature:g}-{kind}-{edit:g}.npz"
            for text in texts_of(file) if file.exists() else ():
                ends = np.searchsorted(text.at, lengths)
                for name, log10_p in looks(method, text, ends).items():
                    row = first.setdefault(name, [])
                    row.append([next(iter(lengths[log10_p <= -rate]), np.inf) for rate in (6.0, 15.0)])
        for name, rows in first.items():
            one, many = np.array(rows).T
            low, high = _interval(one)
            half = f"half found at {np.median(one):5.0f} ({low:.0f} to {high:.0f})"
            shares = [f"{np.mean(which <= length):.2f}" for which in (one, many) for length in (200, 400)]
            cell = f"{method} T={temperature:g} edited {edit:.0%} n={len(one)}"
            print(f"{cell}  {name:45} {half}, of 200 and 400 tokens {shares[:2]}; 1e9 users {shares[2:]}", flush=True)


def _interval(values: Floats) -> tuple[float, float]:
    """95 % of medians of texts drawn with replacement."""
    drawn = np.random.default_rng(1).integers(0, len(values), (2000, len(values)))
    low, high = np.quantile(np.median(values[drawn], axis=1), [0.025, 0.975], method="nearest")
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.weights", description=__doc__)
    parser.add_argument("step", choices=["write", "weigh", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--corpus", type=Path, help="human.parquet, for n-grams")
    parser.add_argument("--other", type=Path, help="another tokenizer.json")
    options = parser.parse_args()
    if options.step == "table":
        table(options.folder)
        return
    model = load_model(options.model)
    if options.step == "write":
        write(options.folder, model)
        return
    tools = Tools.load(options.model / "tokenizer.json", options.other)
    texts, size = [], 0
    for batch in pq.ParquetFile(options.corpus).iter_batches(1000, columns=["text"]):
        for text in batch.column("text").to_pylist():
            if size < 4e6:
                texts.append(text)
                size += len(tools.ids(text))
    weigh(options.folder, model, Tools(tools.tokenizer, tools.other, texts))


if __name__ == "__main__":
    main()

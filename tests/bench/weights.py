"""What weights from a model save, in tokens at 1e-6: `python -m tests.bench.weights write|weigh|table|found FOLDER …`.

`write` has SmolLM2 write marked texts, `weigh` asks proxies of it for the probability of each token, and `table` prints
for each proxy and shape of weights how many tokens a flag takes, in a row of such answers as long as it takes: single
answers of a small model at low temperatures are too short for many users. `found` prints how many of single answers
are flagged. Proxies never see the prompt. Each step keeps what it has made, so that it can be interrupted. Hours of one
core; the tables are the files docs/measurements/levels-*.json.
"""

import argparse
import functools
import hashlib
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

from scanner.audit.statistics.judgement import binomial_limits
from scanner.generation import LocalModel, Sampling, complete, load_model
from scanner.research.attacks import Tools, substitute
from scanner.watermark import Watermark, batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels
from tests.bench.level_nulls import STACKS, terms_of
from tests.bench.prompts import PROMPTS, TELLERS, THINGS
from tests.bench.proxies import Proxies

METHODS = ("gumbel", "greenlist")
TEMPERATURES = (0.3, 0.6, 1.0)
KINDS = ("prose", "code", "json")
EDITS = (0.0, 0.06, 0.15)
TEXTS, LONGEST = 12, 400
DELTA, DRAWN = 2.0, 60
USERS = (1, 10**9)
LENGTHS = (30, 40, 60, 100, 200)

Floats = NDArray[np.float64]


class Cell(NamedTuple):
    """Answers that are written alike.

    single: many answers, each under a key of its own and looked at by itself; first: number of the first of them.
    """

    method: str
    temperature: float
    kind: str
    single: int = 0
    first: int = 0

    @property
    def name(self) -> str:
        """Begin of the names of its files."""
        sample = f"-{self.first}" if self.first else ""
        return f"{'single-' if self.single else ''}{self.method}-{self.temperature:g}-{self.kind}{sample}"

    def mark(self, number: int) -> Watermark:
        """The mark of an answer, by its number."""
        return mark_of(self.method, b" %d" % (self.first + number) if self.single else b"")

    def write(self, model: LocalModel) -> list[str]:
        """The texts of its answers."""
        sampling = Sampling(max_new_tokens=200 if self.single else LONGEST, temperature=self.temperature, delta=DELTA)
        prompts = [PROMPTS[self.kind].format(thing=thing, teller=teller) for teller in TELLERS for thing in THINGS]
        found = []
        for begin in range(0, self.single or TEXTS, 64):
            some = range(begin, min(begin + 64, self.single or TEXTS))
            marks = [self.mark(number) for number in some]
            of_some = [prompts[(self.first + number) % len(prompts)] for number in some]
            found += complete(model, of_some, sampling, 1, marks, [0] * len(some))
        return [text.text for text in found]


SAMPLES = {
    "the first 512": (Cell("gumbel", 0.3, "prose", single=512),),
    "the second 512": tuple(Cell("gumbel", 0.3, "prose", 128, first) for first in range(512, 1024, 128)),
    "ordinary text": (Cell("gumbel", 1.0, "prose", single=128),),
} | {
    f"{stack} at {temperature:g}": (Cell(stack, temperature, "prose", single=128),)
    for stack, temperature in itertools.product(STACKS, (0.3, 0.6))
}
"""Single answers that are counted together."""

CELLS = (
    *itertools.chain.from_iterable(SAMPLES.values()),
    *itertools.starmap(Cell, itertools.product(METHODS, TEMPERATURES, KINDS)),
)


def mark_of(method: str, number: bytes = b"") -> Watermark:
    """The mark of all texts of a method, or of one answer: one user."""
    secret = b"tests.bench.weights " + method.encode() + number
    if method in STACKS:
        form: Any = make_format(method, {})
        mark: Watermark = form.open(form.draw_key(hashlib.sha256(secret).digest()))
        return mark
    parameters: dict[str, Any] = {"window": 4} | ({"gamma": "1/4"} if method == "greenlist" else {})
    return make_format(method, parameters).open(secret)


def write(folder: Path, model: LocalModel, cells: Sequence[Cell]) -> None:
    """Write the texts of cells that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        file = folder / f"{cell.name}.json"
        if not file.exists():
            file.write_text(json.dumps(cell.write(model)))
            print(file.name, flush=True)


def weigh(folder: Path, model: LocalModel, tools: Tools, cells: Sequence[Cell]) -> None:
    """Keep p̂ and draws of every text of cells, unedited and edited, that are not there yet."""
    proxies = Proxies(model, tools.human, tools)
    for cell, edit in itertools.product(cells, EDITS):
        file, target = folder / f"{cell.name}.json", folder / f"{cell.name}-{edit:g}.npz"
        if target.exists() or not file.exists() or (cell.single and edit):
            continue
        kept: dict[str, NDArray[Any]] = {}
        for number, written in enumerate(json.loads(file.read_text())):
            mark: Any = cell.mark(number)
            text = substitute(written, edit, np.random.default_rng(number), tools) if edit else written
            ids = tools.ids(text)
            tokens = batch_tokens([ids])
            positions = mark.rule.positions(tokens, "ngram")
            kept |= {f"{number}/terms": terms_of(mark, tokens, positions), f"{number}/index": positions.index}
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


Growth = Callable[[float], float]
"""Function that gives log10 p of a row of answers: of some texts so many times over, each term as large as it was."""


def by_levels(method: str, texts: Sequence["Text"], weights: Sequence[Floats]) -> Growth:
    """log10 p of Σ level · term, of weights rounded to LEVELS."""
    levels = [np.rint(weight * LEVELS).astype(np.int64) for weight in weights]
    score = sum(float(np.dot(level, text.terms)) for level, text in zip(levels, texts, strict=True))
    counts, values = np.bincount(np.concatenate(levels), minlength=LEVELS + 1), np.arange(LEVELS + 1)

    def log10_p(times: float) -> float:
        of_all = np.rint(times * counts)[None]
        if method != "greenlist":
            return float(log10_gumbel_levels([times * score], of_all, values)[0])
        return float(log10_greenlist_levels([np.rint(times * score)], of_all, values, Fraction(1, 4))[0])

    return log10_p


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


def by_mixture(share: float, texts: Sequence["Text"]) -> Growth:
    """log10 p of Σ ln(1 − w + w·f(r))."""
    score = sum(float(_mixed_terms(share, text.terms).sum()) for text in texts)
    count = sum(len(text.terms) for text in texts)
    grid, moments = _grid_of_moments(share)

    def log10_p(times: float) -> float:
        def iid(tilt: Floats) -> tuple[Floats, Floats, Floats]:
            of_one = [np.interp(tilt, grid, moments[:, i]) for i in range(3)]
            return times * count * of_one[0], times * count * of_one[1], times * count * of_one[2]

        return float(log10_tail(np.array([times * score]), iid, np.full(1, 6.0))[0])

    return log10_p


@functools.cache
def _grid_of_moments(share: float) -> tuple[Floats, Floats]:
    """Tilts, and K, K′ and K″ of a term at each: float64[G], float64[G, 3]."""
    grid, (g, chance) = np.linspace(0.0, 6.0, 241), _mixed_moments(share)
    return grid, np.array([_cumulants(tilt, g, chance) for tilt in grid])


def _cumulants(tilt: float, g: Floats, chance: Floats) -> tuple[float, float, float]:
    powers = chance * np.exp(tilt * g)
    total = powers.sum()
    mean = (powers * g).sum() / total
    return float(np.log(total)), float(mean), float((powers * g**2).sum() / total - mean**2)


def by_evidence(texts: Sequence["Text"], name: str, kept: float = 0.3) -> Growth:
    """log10 1/E, E = ∏(ε + (1−ε)·r^(1/p̂−1)/p̂): valid whatever p̂ is."""
    won = 0.0
    for text in texts:
        ln_r, p = np.log(-np.expm1(-np.maximum(text.terms, 1e-12))), np.clip(text.p[name], 1e-6, 1.0 - 1e-9)
        factors = np.logaddexp(np.log(kept), np.log(1.0 - kept) + (1.0 / p - 1.0) * ln_r - np.log(p))
        won += float(factors.sum())
    return lambda times: min(-times * won / np.log(10.0), 0.0)


class Text(NamedTuple):
    """A text's terms, the indices of its scored tokens, and p̂ of these by each proxy."""

    terms: Floats
    at: NDArray[np.int64]
    p: dict[str, Floats]

    def begin(self, longest: int) -> "Text":
        """Its first tokens, so many: an answer that ended there."""
        kept = self.at < longest
        return Text(self.terms[kept], self.at[kept], {name: p[kept] for name, p in self.p.items()})


def texts_of(file: Path) -> Iterator[Text]:
    """The texts that `weigh` kept in a file."""
    with np.load(file) as kept:
        names = sorted({name.split("/", 1)[1] for name in kept.files} - {"terms", "index"})
        for number in range(sum(name.endswith("/terms") for name in kept.files)):
            p = {name: kept[f"{number}/{name}"] for name in names}
            yield Text(kept[f"{number}/terms"].astype(np.float64), kept[f"{number}/index"], p)


PLAIN, ITS = 1 / 3, 2 / 3
"""Shares of α that the sum and another look have where both are taken."""


def looks(method: str, texts: Sequence[Text]) -> dict[str, list[tuple[float, Growth]]]:
    """Looks of each kind, each with its share of α."""
    plain = by_levels(method, texts, [np.ones(len(text.terms)) for text in texts])
    found = {"the sum": [(1.0, plain)]}
    if method == "gumbel":
        mixed = [(1 / 6, by_mixture(share, texts)) for share in (1 / 4, 1 / 16)]
        found["a mixture, no model"] = [(2 / 3, plain), *mixed]
    for name in texts[0].p:
        for shape, weights_of in SHAPES.items():
            weights = [weights_of(np.clip(text.p[name], 1e-9, 1.0)) for text in texts]
            found[f"{name}: {shape}"] = [(PLAIN, plain), (ITS, by_levels(method, texts, weights))]
        if method == "gumbel":
            found[f"{name}: e-value"] = [(PLAIN, plain), (ITS, by_evidence(texts, name))]
    return found


def times_needed(of_kind: Sequence[tuple[float, Growth]], rate: float) -> float:
    """How many times over the texts are flagged at a rate, by the first look that does; ∞: not 100 times over."""
    return min(_times(log10_p, np.log10(rate * share)) for share, log10_p in of_kind)


def _times(log10_p: Growth, target: float) -> float:
    low, high = np.log(0.01), np.log(100.0)
    if log10_p(100.0) > target:
        return float(np.inf)
    for _ in range(13):
        middle = (low + high) / 2.0
        low, high = (middle, high) if log10_p(float(np.exp(middle))) > target else (low, middle)
    return float(np.exp(high))


def table(folder: Path) -> None:
    """Print, for each cell and look, how many scored tokens a flag at 1e-6 takes in a row of such answers."""
    for method, temperature, edit in itertools.product(METHODS, TEMPERATURES, EDITS):
        for kinds in (*((kind,) for kind in KINDS), KINDS):
            files = [folder / f"{Cell(method, temperature, kind).name}-{edit:g}.npz" for kind in kinds]
            texts = [text for file in files if file.exists() for text in texts_of(file)]
            if texts and (len(kinds) == 1 or len(texts) > TEXTS):
                for users in USERS:
                    cell = f"{method} T={temperature:g} {'+'.join(kinds)} edited {edit:.0%} {users:,} users"
                    _print_cell(cell, method, texts, 1e-6 / users)


def _print_cell(cell: str, method: str, texts: Sequence[Text], rate: float) -> None:
    """Lines of a cell, with intervals (95 %) of ratios by texts that are drawn with replacement."""
    scored, drawn = sum(len(text.terms) for text in texts), np.random.default_rng(1)
    of_all = {name: times_needed(of_kind, rate) for name, of_kind in looks(method, texts).items()}
    ratios: dict[str, list[float]] = {name: [] for name in of_all}
    for _ in range(DRAWN):
        again = looks(method, [texts[i] for i in drawn.integers(0, len(texts), len(texts))])
        plain = times_needed(again["the sum"], rate)
        for name, of_kind in again.items():
            ratios[name].append(times_needed(of_kind, rate) / plain)
    for name, times in of_all.items():
        low, high = np.nanquantile(ratios[name], [0.025, 0.975], method="nearest")
        saved = f"{times / of_all['the sum']:.2f} of the sum's ({low:.2f} to {high:.2f})"
        print(f"{cell} n={len(texts)}  {name:45} {times * scored:6.0f} scored tokens, {saved}", flush=True)


def found(folder: Path) -> None:
    """Print how many single answers each look flags at 1e-6 by their first tokens, beside the sum."""
    for name, cells in (SAMPLES | {"both 512": SAMPLES["the first 512"] + SAMPLES["the second 512"]}).items():
        files = [folder / f"{cell.name}-0.npz" for cell in cells]
        texts = [text for file in files for text in texts_of(file)] if all(file.exists() for file in files) else []
        for longest in LENGTHS if texts else ():
            _print_found(f"{name}, {longest} tokens", cells[0].method, [text.begin(longest) for text in texts])


def _print_found(cell: str, method: str, texts: Sequence[Text]) -> None:
    """Limits (95 %) are of binomial counts, those of ratios by texts that are drawn with replacement."""
    of_texts = [looks(method, [text]) for text in texts if len(text.terms)]
    scored = np.median([len(text.terms) for text in texts])
    flagged = {
        name: np.array([any(log10_p(1.0) <= np.log10(1e-6 * share) for share, log10_p in of[name]) for of in of_texts])
        for name in of_texts[0]
    }
    drawn = np.random.default_rng(1).integers(0, len(of_texts), (4000, len(of_texts)))
    of_sum = np.maximum(flagged["the sum"][drawn].sum(axis=1), 1)
    for name, of_look in flagged.items():
        number, won = of_look.sum(), of_look & ~flagged["the sum"]
        low, high = binomial_limits(int(number), len(texts), 0.025)
        least, most = np.quantile(of_look[drawn].sum(axis=1) / of_sum, [0.025, 0.975], method="nearest")
        counts = f"{number} of {len(texts)} ({low:.3f} to {high:.3f}), {won.sum()} won"
        ratio = f"{number / max(flagged['the sum'].sum(), 1):.2f} ({least:.2f} to {most:.2f}) of the sum's"
        print(f"{cell} ({scored:.0f} scored)  {name:45} {counts}, {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.weights", description=__doc__)
    parser.add_argument("step", choices=["write", "weigh", "table", "found"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--corpus", type=Path, help="human.parquet, for n-grams")
    parser.add_argument("--cells", default="", help="those whose names hold this")
    parser.add_argument("--other", type=Path, help="another tokenizer.json")
    options = parser.parse_args()
    if options.step in ("table", "found"):
        (table if options.step == "table" else found)(options.folder)
        return
    cells = [cell for cell in CELLS if options.cells in cell.name]
    model = load_model(options.model, dtype="bfloat16")  # as servers have it, in a third of the time
    if options.step == "write":
        write(options.folder, model, cells)
        return
    tools = Tools.load(options.model / "tokenizer.json", options.other)
    texts, size = [], 0
    for batch in pq.ParquetFile(options.corpus).iter_batches(1000, columns=["text"]) if options.corpus else ():
        for text in batch.column("text").to_pylist():
            if size < 4e6:
                texts.append(text)
                size += len(tools.ids(text))
    weigh(options.folder, model, Tools(tools.tokenizer, tools.other, texts), cells)


if __name__ == "__main__":
    main()

"""Row 8: generation with a mark beside generation without one, by the same model and sampling, in batches of 32."""

from argparse import Namespace
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

from tests.bench.inputs import SECRET, WINDOW
from tests.bench.measure import Comparison, Work, compare

ROWS, TOKENS = 32, 12


def beside_unmarked(options: Namespace) -> Iterator[Comparison]:
    from jobs.demo.get_model import DEFAULT_FOLDER
    from scanner.generation import Sampling, complete, load_model
    from scanner.watermark import GreenList, Gumbel

    if not Path(DEFAULT_FOLDER).exists():
        print("row 8 is left out: run `make model` first")
        return
    model = load_model(DEFAULT_FOLDER)
    prompts = [f"Write a story about the number {i}." for i in range(ROWS)]
    for top_p in (0.95, 1.0):
        how = Sampling(TOKENS, top_p=top_p, delta=2.0)
        unmarked = Work(f"unmarked, top-p {top_p}", ROWS * TOKENS, partial(complete, model, prompts, how, 1))
        for mark in (Gumbel(SECRET, WINDOW), GreenList(SECRET, WINDOW, Fraction(1, 4))):
            call = partial(complete, model, prompts, how, 1, mark, list(range(ROWS)))
            marked = Work(f"marked, {mark.label}, top-p {top_p}, batch of {ROWS}", ROWS * TOKENS, call)
            compared = compare(8, "tokens/s", marked, unmarked, min(options.repeats, 3))
            yield compared._replace(note=f"costs {100 / compared.ratio - 100:+.1f} % of the unmarked time")

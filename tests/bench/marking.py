"""Row 8: generation with a mark beside generation without one, by the same model and sampling, in batches of 32.

Then one row of logits: a step of version 3 for a thousand million users beside version 1, and beside the model's step.
"""

from argparse import Namespace
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.watermark import GreenList, Gumbel
from scanner.watermark.native.format import groups_for
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from tests.bench.inputs import SECRET, WINDOW
from tests.bench.measure import Comparison, Work, compare

if TYPE_CHECKING:
    from scanner.generation import LocalModel

ROWS, TOKENS = 32, 12
GAMMA, DELTA = Fraction(1, 4), 2.0
TOP_P = (0.95, 1.0)
GROUPS = groups_for(1e9)
GREEN = GreenList(SECRET, WINDOW, GAMMA), Version3GreenList(SECRET, WINDOW, GAMMA, GROUPS)
GUMBEL = Gumbel(SECRET, WINDOW), Version3Gumbel(SECRET, WINDOW, GROUPS)


def beside_unmarked(options: Namespace) -> Iterator[Comparison]:
    from scanner.generation import Sampling, complete, load_model
    from tests.support.from_packages import MODEL

    if not Path(MODEL).exists():
        print("row 8 is left out: run `make model` first")
        return
    model = load_model(MODEL)
    prompts = [f"Write a story about the number {i}." for i in range(ROWS)]
    for top_p in TOP_P:
        how = Sampling(TOKENS, top_p=top_p, delta=DELTA)
        unmarked = Work(f"unmarked, top-p {top_p}", ROWS * TOKENS, partial(complete, model, prompts, how, 1))
        for mark in (*GUMBEL, *GREEN):
            call = partial(complete, model, prompts, how, 1, mark, list(range(ROWS)))
            marked = Work(f"marked, {mark.label}, top-p {top_p}, batch of {ROWS}", ROWS * TOKENS, call)
            compared = compare(8, "tokens/s", marked, unmarked, min(options.repeats, 3))
            yield compared._replace(note=f"costs {100 / compared.ratio - 100:+.1f} % of the unmarked time")
    yield from one_row(model, options.repeats)


def one_row(model: "LocalModel", repeats: int) -> Iterator[Comparison]:
    """One step of one row: what each mark does to the model's logits."""
    import torch

    from scanner.generation import GreenListProcessor, GumbelProcessor

    ids, _ = model.encode(["Write a story about the number 1."])
    with torch.inference_mode():
        seen = model.model(ids, use_cache=True)
    logits, length = seen.logits[:, -1].clone(), ids.shape[1]

    def write_one() -> None:
        with torch.inference_mode():
            model.model(ids[:, -1:], past_key_values=seen.past_key_values, use_cache=True)
        seen.past_key_values.crop(-1)

    step = Work("a step of the model", 1, write_one)
    both = {"green list": [GreenListProcessor(mark, [7], [length], delta=DELTA) for mark in GREEN]} | {
        f"Gumbel, top-p {top_p}": [GumbelProcessor(mark, [7], [length], top_p=top_p) for mark in GUMBEL]
        for top_p in TOP_P
    }
    for name, processors in both.items():
        old, new = (
            Work(f"one row of {logits.shape[1]} logits, {name}, version {version}", 1, partial(mark, ids, logits))
            for version, mark in enumerate(processors, start=1)
        )
        yield compare(8, "rows/s", new, old, repeats)
        beside = compare(8, "rows/s", new, step, repeats)
        yield beside._replace(note=f"costs {100 / beside.ratio:.1f} % of a step")

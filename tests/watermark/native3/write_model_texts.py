"""Writes the texts of test_framing_of_a_model.py: `python -m tests.watermark.native3.write_model_texts --texts 20`.

Needs `make model`. Twenty texts a cell take twenty minutes of a core; interrupted, it goes on with the next batch.
"""

import argparse
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from jobs.demo import HERE
from scanner.generation import GreenListProcessor, GumbelProcessor, LocalModel, load_model
from scanner.generation.processor import RowsProcessor, sampling_weights
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.positions import batch_tokens
from tests.support.from_packages import MODEL
from tests.watermark.native3.model_texts import QUERIED, SHARED, STORED, TOKENS, VOCABULARY, Cell, cells, read, write

BATCH = 80
TOP_P = 0.95
DELTA = 3.0
TEMPERATURE = {"greenlist": 0.8, "gumbel": 1.0}


class Sampled(LogitsProcessor):
    """Chooses a token of each row by its logits: 0 for it, −∞ for every other."""

    def __init__(self, temperature: float, seed: int) -> None:
        self._temperature, self._random = temperature, np.random.default_rng(seed)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        out = torch.full_like(scores, -torch.inf)
        for row, logits in enumerate(scores.float().numpy()):
            weights = sampling_weights(logits, self._temperature, 0, TOP_P)
            out[row, self._random.choice(len(weights), p=weights / weights.sum())] = 0.0
        return out


class Moved(LogitsProcessor):
    """Writes x + shift in place of each chosen token x."""

    def __init__(self, shifts: list[int]) -> None:
        self._shifts = torch.tensor(shifts)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        tokens = (scores.argmax(dim=1) + self._shifts) % VOCABULARY
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


class InGroupSteps(LogitsProcessor):
    """Marks the steps alone that a group shares."""

    def __init__(self, mark: Version3Mark, marking: LogitsProcessor) -> None:
        self._mark, self._marking = mark, marking

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        windows = input_ids[:, input_ids.shape[1] - self._mark.window :].numpy().astype(np.uint32)
        tokens = batch_tokens([[*window, 0] for window in windows.tolist()])
        shared = torch.from_numpy(self._mark.group_steps(tokens, self._mark.rule.positions(tokens, "none")))
        return torch.where(shared[:, None], self._marking(input_ids, scores), scores)


def writing(cell: Cell, places: list[int], count: int, lengths: list[int], width: int) -> LogitsProcessorList:
    """Processors of some of a cell's texts, each of which leaves one token possible; places: of their accounts."""
    mark, own, victims = cell.mark(), cell.accounts(count)[places], cell.victims(count)[places]
    temperature = TEMPERATURE[cell.method]
    marking: LogitsProcessor
    if cell.method == "greenlist":
        marking = GreenListProcessor(mark, own.tolist(), lengths, width, delta=DELTA)
    else:
        marking = GumbelProcessor(mark, own.tolist(), lengths, width, temperature=temperature, top_p=TOP_P)
    if cell.kind == SHARED:
        assert isinstance(mark, Version3Mark)
        marking = InGroupSteps(mark, marking)
    chosen = [marking]
    if cell.method == "greenlist" or cell.kind == SHARED:  # Gumbel chooses by itself
        chosen.append(Sampled(temperature, seed=places[0]))
    if cell.kind == QUERIED:
        chosen.append(Moved((own - victims).tolist()))
    return LogitsProcessorList(chosen)


def complete(model: LocalModel, prompts: list[str], parts: list[tuple[Cell, list[int]]], count: int) -> list[list[int]]:
    """Tokens of one batch of texts, of several cells."""
    ids, attention = model.encode(prompts)
    lengths, width = attention.sum(dim=1).tolist(), ids.shape[1]
    groups, at = [], 0
    for cell, places in parts:
        rows = range(at, at + len(places))
        groups.append((rows, writing(cell, places, count, [lengths[row] for row in rows], width)))
        at = rows.stop
    with torch.inference_mode():
        written = model.model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=attention, logits_processor=LogitsProcessorList([RowsProcessor(groups)]),
            max_new_tokens=TOKENS, pad_token_id=model.pad_id, do_sample=False,
        )  # fmt: skip
    return [_until_the_end(model, row) for row in written[:, width:].tolist()]


def _until_the_end(model: LocalModel, tokens: list[int]) -> list[int]:
    return tokens[: next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.watermark.native3.write_model_texts", description=__doc__)
    parser.add_argument("--texts", type=int, default=20, help="of each cell")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    model = load_model(options.model)
    prompts = (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines()
    todo = [(cell, place) for cell in cells() for place in range(options.texts)]
    texts = read(options.out) if options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for begin in range(sum(map(len, texts.values())), len(todo), BATCH):
        some = todo[begin : begin + BATCH]
        asked = [prompts[(begin + i) % len(prompts)] for i in range(len(some))]
        parts = [(cell, [place for _, place in of_cell]) for cell, of_cell in groupby(some, key=itemgetter(0))]
        for (cell, _), ids in zip(some, complete(model, asked, parts, options.texts), strict=True):
            texts.setdefault(cell, []).append(np.array(ids, np.uint32))
        write(options.out, texts)
        print(f"{begin + len(some)} of {len(todo)} texts", flush=True)


if __name__ == "__main__":
    main()

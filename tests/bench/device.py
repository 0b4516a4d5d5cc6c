"""Whether the GPU kernels are right on a device, and how fast, against ceilings of the same run; --json writes JSON.

`python3 -m tests.bench.device` needs torch, triton and numpy alone.
--tiny is for Triton's interpreter on a CPU: the same steps, sizes that say nothing about speed.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from scanner.gpu import runs
from scanner.gpu.runs import devices
from scanner.gpu.vectors import SeededVectors, Vectors, choose, weights
from tests.bench.device_checks import (
    QUARTER,
    Check,
    draw,
    of_draws,
    of_seeded_vectors,
    of_vectors,
    on_fresh_documents,
    seed_source,
)
from tests.bench.device_kernels import core

OPERATIONS = 8 * 4 * 12 + 16
"""Operations of one block: additions, exclusive ors and rotations of the rounds, and the last additions."""

LENGTH = 256
MODEL = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip
"""The shape of SmolLM2-135M; random weights take as long as real ones."""


class Sizes(NamedTuple):
    """Sizes of what is run. work: numbers times tokens of one call."""

    messages: tuple[int, ...]
    work: float
    rounds: int
    copied: int
    fresh: tuple[list[int], int]
    vocabularies: tuple[int, ...]
    rows: tuple[int, ...]
    length: int
    warm_up: int
    repeats: int


FULL = Sizes(
    messages=(10**3, 10**4, 2**16), work=2e11, rounds=20_000, copied=2**31,
    fresh=([200, 1, 3, 90, 33, 256, 17], 9001), vocabularies=(32_000, 128_256),
    rows=(1, 32), length=LENGTH, warm_up=3, repeats=7,
)  # fmt: skip
TINY = Sizes(
    messages=(40,), work=160, rounds=2, copied=2**16,
    fresh=([3, 1, 2], 50), vocabularies=(600,),
    rows=(2,), length=4, warm_up=0, repeats=1,
)  # fmt: skip


class Speed(NamedTuple):
    """One line of the table: `rate` in `unit`, and its share of a ceiling of the same run (0: it has none)."""

    what: str
    rate: float
    unit: str
    share: float
    ceiling: str
    note: str = ""


def seconds(call: Callable[[], Any], device: torch.device, sizes: Sizes) -> float:
    """Median of one call's time, by events on the device, after warming up."""
    for _ in range(sizes.warm_up):
        call()
    times = []
    for _ in range(sizes.repeats):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def ceilings(device: torch.device, sizes: Sizes) -> tuple[float, float]:
    """Blocks per second of the cipher alone; bytes per second of a copy, read and written."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    programs = 16 * processors if device.type == "cuda" else 1
    key = torch.randint(-(2**31), 2**31, (8,), dtype=torch.int64).to(torch.int32).to(device)
    out = torch.empty((programs, 128), dtype=torch.int32, device=device)
    cipher = seconds(lambda: core[(programs,)](key, out, sizes.rounds, BLOCKS=128, num_warps=4), device, sizes)
    source = torch.randint(0, 255, (sizes.copied,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = seconds(lambda: target.copy_(source), device, sizes)
    return programs * 128 * sizes.rounds / cipher, 2 * sizes.copied / copy


def scores(device: torch.device, sizes: Sizes, blocks: float) -> Iterator[Speed]:
    """Rough scores of version 3 under every number of messages, on documents of LENGTH scored tokens."""
    generator = np.random.default_rng(1)
    for count in sizes.messages:
        documents = int(
            min(max(sizes.work / count / sizes.length, 1), runs.SUMS_BYTES // (runs.BYTES_A_NUMBER * count))
        )
        drawn = draw(generator, [sizes.length] * documents)
        batch = drawn.put(device)
        asked = drawn.runs(count)
        spent = seconds(lambda: runs.best_rough(batch, asked, 8), device, sizes)  # noqa: B023
        rate = documents * count * sizes.length / spent
        held = sum(part.nbytes for part in batch) / 2**20
        note = f"{documents / spent:.4g} documents/s; {documents} documents, {held:.3g} MiB in"
        share = rate / blocks / runs.NUMBERS_A_BLOCK
        yield Speed(f"gumbel, M = {count:.0e}", rate, "message·tokens/s", share, "cipher alone", note)


def marking(device: torch.device, sizes: Sizes, blocks: float) -> Iterator[Speed]:
    """One step of generation: vectors of all rows, and Gumbel's choice with top-p."""
    generator = np.random.default_rng(3)
    vectors = Vectors(
        generator.integers(0, 2**32, 8, dtype=np.uint32), generator.integers(0, 2**64, 2, dtype=np.uint64), device
    )
    seeded = SeededVectors(seed_source(generator, 1026), device)
    for rows in sizes.rows:
        for vocabulary in sizes.vocabularies:
            windows = torch.randint(0, vocabulary, (rows, 4), device=device)
            messages = torch.randint(0, 10**6, (rows,), device=device)
            logits = torch.randn((rows, vocabulary), device=device)
            wanted = torch.ones((rows, vocabulary), dtype=torch.bool, device=device)
            draws, probable = vectors.draws(windows, messages, vocabulary), weights(logits, 1.0, 0, 0.95)
            for name, entries, call in (
                ("green vectors", 256, lambda: vectors.green(windows, messages, wanted, QUARTER)),  # noqa: B023
                ("draw vectors", 16, lambda: vectors.draws(windows, messages, vocabulary)),  # noqa: B023
                ("Gumbel's choice", 0, lambda: choose(draws, weights(logits, 1.0, 0, 0.95))),  # noqa: B023
                ("green of version 3", 1, lambda: seeded.green(windows, messages, wanted, QUARTER)),  # noqa: B023
                ("choice of version 3", 0, lambda: seeded.choose(windows, messages, probable)),  # noqa: B023
            ):
                spent = seconds(call, device, sizes)
                share = rows * vocabulary / entries / blocks / spent if entries else 0
                ceiling = "cipher alone" if entries else ""
                yield Speed(f"{name}, {rows} x {vocabulary}", 1e6 * spent, "µs/step", share, ceiling)


def model_forward(device: torch.device, sizes: Sizes) -> Iterator[Speed]:
    """A model's forward pass over 16 documents, as Neyman-Pearson scores need it."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        print(f"the model's forward pass is left out: {error}")
        return
    shape = MODEL if sizes is FULL else MODEL | {"num_hidden_layers": 1, "vocab_size": 600}
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(device, torch.bfloat16).eval()
    ids = torch.randint(0, shape["vocab_size"], (16, sizes.length), device=device)
    with torch.inference_mode():
        spent = seconds(lambda: model(ids).logits, device, sizes)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    note = f"{parameters:.0f} million random weights, bfloat16"
    yield Speed("model's forward pass, 16 documents", ids.numel() / spent, "tokens/s", 0, "", note)


def measured(device: torch.device, sizes: Sizes) -> Iterator[Speed]:
    blocks, copy = ceilings(device, sizes)
    yield Speed("ceiling: ChaCha8 alone", blocks * OPERATIONS, "operations/s", 1, "itself", f"{blocks:.4g} blocks/s")
    yield Speed("ceiling: copy", copy, "bytes/s", 1, "itself", "read and written")
    yield from scores(device, sizes, blocks)
    yield from marking(device, sizes, blocks)
    yield from model_forward(device, sizes)


def checked(device: torch.device, sizes: Sizes, seed: int) -> Iterator[Check]:
    yield on_fresh_documents(device, seed, *sizes.fresh)
    yield of_draws(device, seed, sizes.fresh[0])
    yield from of_vectors(device, seed, sizes.vocabularies[0])
    yield from of_seeded_vectors(device, seed, sizes.vocabularies[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--tiny", action="store_true", help="sizes for Triton's interpreter")
    options = parser.parse_args()
    sizes, seed = TINY if options.tiny else FULL, int.from_bytes(os.urandom(6), "little")
    if not devices():
        print("no device: torch finds no CUDA device, and TRITON_INTERPRET is not 1", file=sys.stderr)
        return 2
    device = devices()[0]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter on a CPU"
    print(f"{name}; torch {torch.__version__}, Triton {triton.__version__}, seed {seed}")
    checks = []
    for check in checked(device, sizes, seed):
        checks.append(check)
        print(f"{'WRONG' if check.wrong else 'right':6} {check.documents:4} documents  {check.name}", flush=True)
    speeds = []
    for speed in measured(device, sizes):
        speeds.append(speed)
        share = f"{speed.share:7.1%} of {speed.ceiling}" if speed.share else ""
        print(f"{speed.what:44} {speed.rate:10.4g} {speed.unit:17} {share:24} {speed.note}", flush=True)
    if options.json:
        found = {
            "device": name, "torch": torch.__version__, "triton": triton.__version__, "seed": seed,
            "checks": [c._asdict() for c in checks], "figures": [speed._asdict() for speed in speeds],
        }  # fmt: skip
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(check.wrong for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())

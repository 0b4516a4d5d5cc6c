"""Write the texts of the paper's Tables 2 and 3 on a GPU: `python -m tests.bench.paper_texts --folder build/paper`.

It writes what the steps strengths, identification, identification-3 and robustness of `tests.bench.paper` need, and
measures nothing, so a GPU is held only for minutes. Texts of Table 3 are written under each strength, since its
own are chosen from texts. It ends after --seconds, and goes on where it ended. Copy the folder to a machine that has
the sentence model, and run `make paper` with it: all texts are there.

--check writes some texts on the CPU and on the GPU, and counts which are the same.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

from scanner.cluster.machines import cluster
from scanner.research.plan import EvaluationPlan, plan_evaluation, read_evaluation
from scanner.research.runs import write_missing
from scanner.research.units import WrittenTexts, folder_sha256, write_texts
from schemas.config import ClusterConfig
from tests.bench import paper
from tests.support.from_packages import MODEL, PROMPTS


def plans(run: paper.PaperRun) -> list[EvaluationPlan]:
    """Return what is written, the most wanted first."""
    configs = [paper.evaluation_config(run, "strengths", paper.strengths_section(run))]
    for version, step in ((1, "identification"), (3, "identification-3")):
        for theta, delta in paper.STRENGTHS:
            section = paper.identification_section(run, theta, delta, paper.MESSAGES_OF[version])
            config = paper.evaluation_config(run, step, section, version)
            configs.append(config.rename(config.with_name(f"{step}-{theta}-{delta}.toml")))
    configs.insert(1, paper.evaluation_config(run, "robustness", paper.table_2_section(run)))
    found = []
    for config in configs:
        evaluation = read_evaluation(config, False)
        found.append(plan_evaluation(evaluation, config.parent, paper.read_prompts(Path(evaluation.prompts))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.paper_texts", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the results")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--workers", type=int, default=6, help="that share the GPU")
    parser.add_argument("--seconds", type=float, default=480.0, help="after which no more batches are begun")
    parser.add_argument("--cpu", action="store_true", help="write on CPUs")
    parser.add_argument("--quick", action="store_true", help="few and short texts")
    parser.add_argument("--check", type=int, default=0, help="texts that are written on the CPU too")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["HF_HUB_OFFLINE"] = "1"
    sizes, folder, model = (
        paper.QUICK if options.quick else paper.FULL,
        options.folder.absolute(),
        options.model.absolute(),
    )
    gpus = "" if options.cpu else f"\ngpus_per_worker = {1 / options.workers:.4f}\nrequire_gpus = true"
    run = paper.PaperRun(
        folder, sizes, (), model, model, (), options.prompts.absolute(), f"workers = {options.workers}{gpus}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    began, counts = time.monotonic(), dict[str, Any]()
    if options.check:
        counts["the same on CPU and GPU"] = compare(plans(run), options.check)
        print(json.dumps(counts), flush=True)

    def watch(step: str, done: int, of: int) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {done} of {of} {step}", flush=True)
        if time.monotonic() - began > options.seconds:
            raise TimeoutError

    with cluster(ClusterConfig(workers=options.workers)) as workers:
        for plan in plans(run):
            texts = WrittenTexts(plan.results / "texts", folder_sha256(plan.model, plan.config.dtype))
            before = time.monotonic()
            try:
                batches = write_missing(plan, texts, workers, watch)
            except TimeoutError:
                print("time is over: the same command goes on", flush=True)
                break
            tokens = sum(sum(texts.lengths(unit)) for unit in set(plan.units()))
            seconds = time.monotonic() - before
            print(
                f"{plan.results.name}: {batches} batches in {seconds:.1f} s; the step has {tokens} tokens", flush=True
            )


def compare(plans: list[EvaluationPlan], rows: int) -> dict[str, str]:
    """Write the first rows of a cell of each mark on the CPU and on the GPU, and count the texts that are the same."""
    import torch

    from scanner.generation import load_model

    same = {}
    for plan in plans[-1:] + plans[:1]:
        devices = ["cpu", "cuda" if torch.cuda.is_available() else "cpu"]
        on = [load_model(plan.model, threads=8, device=device) for device in devices]
        for cell in (*plan.identification, *plan.robustness[:1], *plan.robustness[-1:]):
            unit = cell.units[0]
            setting = dataclasses.replace(unit.setting, max_new_tokens=min(48, unit.setting.max_new_tokens))
            short = dataclasses.replace(
                unit, setting=setting, prompts=unit.prompts[:rows], keys=unit.keys[:rows], messages=unit.messages[:rows]
            )
            texts = [[one.text for one in write_texts(model, short)] for model in on]
            equal = sum(a == b for a, b in zip(*texts, strict=True))
            same[f"{plan.results.name}, {setting.columns()['method']}"] = f"{equal} of {len(short.prompts)}"
    return same


if __name__ == "__main__":
    main()

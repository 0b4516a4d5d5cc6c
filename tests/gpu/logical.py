"""Two scans of the same documents on a Ray cluster with one logical GPU: on workers that hold half of it, and on CPUs.

`python -m tests.gpu.logical FOLDER` under TRITON_INTERPRET=1, so that workers that hold a GPU score on the interpreter.
Prints what a test looks at as JSON.
"""

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from triton import knobs

from scanner import results
from scanner.cluster.machines import device_of_worker, share_gpus
from scanner.cluster.scan import run_scan
from scanner.cluster.worker import Worker
from scanner.errors import Refused
from scanner.registry import add_users, new_key
from scanner.results import current_rows
from scanner.results.transactions import read_whole
from scanner.scan_plan import make_plan
from schemas.config import ClusterConfig
from tests.fixed import fix_secrets

TOKENIZER = Path(__file__).parents[2] / "jobs" / "demo" / "tokenizer.json"
WORDS = ["river", "stone", "light", "garden", "window", "paper", "silver", "morning", "quiet", "letter"]
CONFIG = """\
version = 2
registry = "registry"
results = "{results}"
false_positive_rate = 1e-3
min_scored = 4
[input]
paths = ["in"]
text = "text"
[audit]
share = 0.0
all_messages_share = 1.0
family_error = 1e-6
[cluster]
workers = {workers}
gpus_per_worker = {share}
require_gpus = {required}
"""
VARIES = ("scan_id", "scanned_at")


class Telling(Worker):
    """A worker that writes down the GPUs that it holds and the marks that it scores with."""

    def prepare(self) -> str:
        warning = super().prepare()
        held = [ray.get_gpu_ids(), [repr(test.watermark) for test in self.scoring.detector._keys], warning]
        folder = Path(self._plan.registry).parent / f"held-{Path(self._plan.results).name}"
        folder.mkdir(exist_ok=True)
        (folder / ray.get_runtime_context().get_actor_id()).write_text(json.dumps(held))
        return warning


class Blind(Worker):
    """A worker that holds a GPU which torch cannot use."""

    def prepare(self) -> str:
        knobs.runtime.interpret = False
        return super().prepare()


def scan(folder: Path, share: float) -> dict[str, Any]:
    name = "gpu" if share else "cpu"
    config = folder / f"{name}.toml"
    workers = 4 if share else 1  # each takes seconds to start
    required = str(share > 0).lower()
    config.write_text(CONFIG.format(results=name, share=float(share), required=required, workers=workers))
    outcome = run_scan(make_plan(config), lambda work, totals: None, worker=Telling)
    exact = current_rows.exact(str(folder / name), read_whole(str(folder / name), "verdicts")).collect()
    rows = exact.drop(VARIES).sort("path", "row")
    audited = pl.read_delta(results.table_uri(str(folder / name), "audit_counts")).drop(*VARIES, "text", strict=False)
    return {
        "exit_code": outcome.exit_code,
        "rows": rows.drop("text_sha256", "text_id").to_dicts(),
        "audited": audited.sort(pl.all()).to_dicts(),
        "held": [json.loads(file.read_text()) for file in (folder / f"held-{name}").iterdir()],
    }


def main(folder: Path) -> None:
    registry = folder / "registry"
    fix_secrets(registry, "green", "gum", "grouped")
    new_key(registry, "green", format="greenlist", window=1, gamma="1/4", messages=200, tokenizer=TOKENIZER)
    new_key(registry, "gum", format="gumbel", window=2, messages=100, tokenizer=TOKENIZER)
    new_key(registry, "grouped", format="gumbel-v3", window=1, groups=5, messages=25, seeds=8, tokenizer=TOKENIZER)
    add_users(registry, None, ["alice"])
    (folder / "in").mkdir()
    generator = np.random.default_rng(1)
    for number in range(3):  # a shard each
        texts = [" ".join(generator.choice(WORDS, length)) for length in (6, 2)]
        pq.write_table(pa.table({"text": texts}), folder / "in" / f"{number}.parquet")
    ray.init(
        address="local", num_cpus=4, num_gpus=1, include_dashboard=False, object_store_memory=100 * 2**20,
        log_to_driver=False, logging_level=logging.ERROR,
    )  # fmt: skip
    found = {"gpu": scan(folder, 0.5), "cpu": scan(folder, 0)}
    found["fit"] = [share_gpus(ClusterConfig(gpus_per_worker=share), 8) for share in (0.5, 0.3, 0.1, 1.0)]
    plain = {"env_vars": {"TRITON_INTERPRET": "0"}}
    ask = ray.remote(num_gpus=0.25, runtime_env=plain)(lambda: [str(said) for said in device_of_worker(SHARED)])
    found["cannot use"] = ray.get(ask.remote())
    blind = replace(make_plan(folder / "gpu.toml"), results=str(folder / "blind"))
    try:
        run_scan(blind, lambda work, totals: None, worker=Blind)
    except Refused as refused:
        found["required"] = str(refused)
    found["refused scans"] = results.scans(blind.results).select("exit_code", "documents").collect().rows()
    print(json.dumps(found, default=str))


SHARED = ClusterConfig(gpus_per_worker=0.25)

if __name__ == "__main__":
    main(Path(sys.argv[1]))

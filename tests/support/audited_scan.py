"""A scan and its audit in this process, without Ray, of texts and keys that a test gives."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.cluster.commits import Committer
from scanner.cluster.pieces import FinishedShard, Piece
from scanner.cluster.worker import Worker
from scanner.controls.scan_audit import ScanAudit, audit_scan
from scanner.detection import open_plan
from scanner.input.files import list_files
from scanner.input.shards import Shard, cut, shard_id
from scanner.registry import new_key
from scanner.results.transactions import open_tables
from scanner.scan_plan import Plan, make_plan
from tests.fixed import fix_secrets
from tests.support.demo_texts import DEMO
from tests.support.inspection import inspect

CONFIG = """\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6
{more}
[input]
paths = ["in.parquet"]
[audit]
share = {share}
all_messages_share = {share}
decisions_share = {share}
family_error = 1e-6
"""


class Key(NamedTuple):
    """Parameters of a key of the registry."""

    messages: int
    window: int = 4
    format: str = "greenlist"
    secret: str | None = None
    groups: int | None = None

    @property
    def parameters(self) -> dict:
        of_format = {"gamma": "1/4"} if self.format.startswith("greenlist") else {}
        of_version = {"seeds": 8} if self.format.endswith("-v3") else {}
        return {"window": self.window} | of_format | of_version | ({"groups": self.groups} if self.groups else {})


def make(folder: Path, texts: list[str], *keys: Key, share: float = 1.0, more: str = "") -> Plan:
    folder.mkdir(exist_ok=True)
    fix_secrets(folder / "registry", *(f"k{i}" for i, key in enumerate(keys) if key.secret is None))
    for i, key in enumerate(keys):
        new_key(
            folder / "registry", f"k{i}", format=key.format, **key.parameters, messages=key.messages,
            tokenizer=DEMO / "tokenizer.json", secret=key.secret,
        )  # fmt: skip
    pq.write_table(pa.table({"text": texts}), folder / "in.parquet", row_group_size=2000)
    config = folder / "scan.toml"
    config.write_text(CONFIG.format(share=share, more=more))
    return make_plan(config)


def shards_of(plan: Plan, draw: int = 0) -> list[Shard]:
    (file,) = list_files(plan.locations)
    # decoys are drawn by the shard's id, so that a fixed path and time give the same decoys in every run
    always = replace(file, path="/in.parquet", modified=draw)
    return [
        Shard(shard_id(always, rows, plan.verdict_settings), file, rows) for rows in cut(inspect(file, plan.columns))
    ]


def scan(plan: Plan, scan_id: str = "scan", parts: int = 1, draw: int = 0) -> ScanAudit:
    """Scan as a worker and the driver do, in this process; no flag is proved, so that sabotage reaches the audit.

    parts: number of pieces that each shard is cut into; draw: which decoys are drawn.
    """
    open_tables(plan.results)
    worker, committer, shards = Worker(plan, scan_id), Committer(plan, scan_id), shards_of(plan, draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_plan, "open_prover", lambda *_, **__: None)
        worker.prepare()
    for shard in shards:
        first, last = shard.rows.start, shard.rows.stop
        ends = [first + (last - first) * part // parts for part in range(parts + 1)]
        committer.add(FinishedShard(shard, [[*worker.scan(Piece(shard, *bounds))][-1] for bounds in pairwise(ends)]))
    committer.flush()
    return audit_scan(plan, scan_id, [shard.shard_id for shard in shards])


def pieces(texts: list[str], words: int, most: int, step: int | None = None) -> list[str]:
    """Distinct runs of so many words, cut from texts; they may overlap, since every text has a decoy of its own."""
    found = []
    for text in texts:
        split = text.split()
        found += [" ".join(split[i : i + words]) for i in range(0, len(split) - words, step or words)]
    return list(dict.fromkeys(found))[:most]

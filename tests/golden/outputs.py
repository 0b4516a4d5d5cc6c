"""What the golden night puts out, as texts without the ids and times of the run."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs import cli
from scanner.cluster.signs_of_life import SignsOfLife
from scanner.registry import load_registry
from scanner.watermark.formats import format_of
from tests.golden.night import NIGHTS
from tests.support.command_line import call
from tests.support.opened_once import keep_inspector, keep_tokenizers
from tests.support.without_ray import put_in_the_place_of_ray

OF_THE_RUN = {
    "scan_id", "audited_scans", "version", "users_head", "head", "registry_sha256", "file", "core_seconds",
    "documents_a_core_hour", "bytes_a_core_hour", "slowest_shard", "slowest_path", "slowest_row", "slowest_seconds",
    "skew",
}  # fmt: skip
"""Columns that differ between two runs of one night, besides times."""

CODE = str(Path(cli.__file__).parents[1])
SCRUBBED = (
    (re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}"), "SCAN"),
    (re.compile(r"(?!2026-0[12]-0[12])20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?)?"), "TIME"),
    (re.compile(r"in [\d.]+ s \([\d,]+ documents/s, [\d.]+ MB/s\)"), "in SECONDS"),
    (re.compile(r"(mb_per_s|seconds)=[\d.]+"), r"\1=…"),
    (re.compile(r"\b\d+:\d\d:\d\d\b"), "DURATION"),
    (re.compile(r"\d+ s: [\d,.]+ documents a second"), "SECONDS"),
    (re.compile(r'"seconds": [\d.]+'), '"seconds": …'),
    (re.compile(r"(?<=published, head )[0-9a-f]{64}"), "HEAD"),  # it hashes the day
)
"""Patterns of what differs between two runs in words for people, and what stands in their place."""

FLAGS = ("marked vllm-gumbel", "quoted gumbel-v3", "two users greenlist-v3", "look-alikes gumbel", "part greenlist-v3")
COMMANDS = {
    "flagged": ("flagged", "scan.toml", "--all"),
    "flagged as JSON": ("flagged", "scan.toml", "--all", "--format", "json"),
    "accounts": ("accounts", "scan.toml", "--all", "--format", "json"),
    "status": ("status", "scan.toml"),
    "quarantine": ("quarantine", "scan.toml"),
    "export": ("export", "scan.toml"),
    "keys": ("keys", "list", "--registry", "registry"),
    "users": ("users", "list", "--registry", "registry"),
    "plan": ("plan", "--method", "greenlist", "--green-share", "0.6", "--users", "1e9"),
    "formats": ("formats",),
    **{f"explain/{doc}": ("explain", "scan.toml", doc) for doc in FLAGS},
    **{f"replay/{doc}": ("replay", "scan.toml", doc) for doc in FLAGS},
}


def outputs_of(folder: Path) -> dict[str, str]:
    """Scan both dates of the golden folder and gather what comes out: a text a part, by name."""
    texts: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_tokenizers(patch)
        keep_inspector(patch)
        # a pace differs from run to run, and flags are listed by when their part of a batch was scored
        patch.setattr(SignsOfLife, "pace", None)
        patch.chdir(folder)
        patch.setenv("COLUMNS", "100")
        for night in NIGHTS:
            texts[f"scan {night}"] = _said("scan", "scan.toml", "--date", night)
        texts |= {f"tables/{name}": text for name, text in _tables(folder / "results")}
        texts |= {f"commands/{name}": _said(*arguments) for name, arguments in COMMANDS.items()}
        texts["commands/report"] = _said("report", "scan.toml", "--date", NIGHTS[1], "--out", "report")
        texts["commands/publish"] = _said("keys", "publish", "commitments.txt", "--registry", "registry")
        texts["commands/claim"] = _said("replay", "scan.toml", "alice greenlist-v3", "--proof", "claim")
        for name in ("report", "claim"):
            texts |= {f"{name}/{file}": text for file, text in _files(folder / name)}
    texts["labels"] = "".join(f"{key.key_id} {format_of(key).label()} {key.commitment}\n" for key in _keys(folder))
    return texts | {f"help/{name}": text for name, text in _help(cli.brickscan, ())}


def _keys(folder: Path) -> tuple[Any, ...]:
    return load_registry(folder / "registry").keys


def _said(*arguments: str) -> str:
    code, out, err = call(*arguments)
    return _scrubbed(f"{' '.join(arguments)}\nexit code {code}\n{out}\n{err}")


def _scrubbed(text: str) -> str:
    for pattern, word in SCRUBBED:
        text = pattern.sub(word, text)
    return text.replace(CODE, "CODE")


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield str(path.relative_to(folder)), _scrubbed(path.read_text(encoding="utf-8"))


def _tables(results: Path) -> Iterator[tuple[str, str]]:
    for log in sorted(results.glob("*/_delta_log")):
        table = pa.table(DeltaTable(log.parent).to_pyarrow_table())
        times = {field.name for field in table.schema if pa.types.is_timestamp(field.type)} - {"created_at"}
        rows = table.drop_columns([name for name in table.column_names if name in times | OF_THE_RUN]).to_pylist()
        lines = sorted(json.dumps(row, default=_plain, ensure_ascii=False) for row in map(_rounded, rows))
        columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        yield log.parent.name, _scrubbed("\n".join([columns, *lines]))


def _rounded(value: Any) -> Any:
    """A value whose floats have ten digits: processors may differ in the last bits of a logarithm."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 64 else hashlib.sha256(value).hexdigest()
    return str(value)


def _help(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    arguments = (*path, "--help")
    yield " ".join(path) or "brickscan", _scrubbed(call(*arguments)[1])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _help(command.get_command(context, name) or command, (*path, name))

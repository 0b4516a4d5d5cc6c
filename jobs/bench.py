"""`brickscan bench`: what a document costs on this machine, for `brickscan plan --night`."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from jobs.options import NamedPath, groups_of
from jobs.text import complain, tell

FIGURES = Path(click.get_app_dir("brickscan")) / "bench.json"
"""File of figures, unless another one is named."""

figures_option = click.option(
    "--figures",
    type=NamedPath(path_type=Path, dir_okay=False),
    default=FIGURES,
    show_default="bench.json in brickscan's folder of the user",
    help="File of what `brickscan bench` measured.",
)


@click.command()
@click.option("--quick", is_flag=True, help="Three rounds of each figure, in place of ten.")
@click.option(
    "--users",
    type=click.FloatRange(min=1),
    multiple=True,
    default=(1e9,),
    show_default=True,
    help="Users of a key; may be given several times.",
)
@click.option("--tokenizer", type=NamedPath(path_type=Path), help="A tokenizer.json.  [default: that of the demo]")
@figures_option
def bench(quick: bool, users: tuple[float, ...], tokenizer: Path | None, figures: Path) -> None:
    """Measure what a document costs on this machine: core-seconds to read, tokenise, score, prove and write.

    A worker of a scan, in this process, scans documents made of the demo's text under new keys of version 2; decoys are
    scored as in every scan. CPU seconds are counted, so that other work on the machine disturbs little. No GPU is
    measured.

    \b
    Example:
      brickscan bench --quick
      brickscan bench --quick --users 1e7 --tokenizer tokenizer.json
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jobs.demo.demo_keys import HERE, TOKENIZER
    from scanner.cluster.quick import GROUPED, measure

    for number in users:
        groups_of(number)
    stored = pq.read_table(HERE / "sample-1.parquet", columns=["text"])["text"].cast(pa.binary()).to_pylist()
    texts = [text.decode(errors="ignore") for text in stored if text]
    rows = []
    for row in measure(GROUPED, users, tokenizer or TOKENIZER, texts, 3 if quick else 10):
        rows.append(row._asdict())
        a_document = sorted(sum(cost.values()) for cost in row.rounds)
        complain(
            f"event=bench format={row.key_format} users={row.users:g} tokens={row.tokens:.0f} "
            f"documents={row.documents} us_a_document={1e6 * a_document[0]:.0f}..{1e6 * a_document[-1]:.0f}"
        )
    figures.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "version": version("brickscan"),
        "tokenizer": str(tokenizer or TOKENIZER.name),
        "measured": rows,
    }
    figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tell(f"wrote {figures}")


def _machine() -> str:
    """The processor and its cores, in words."""
    facts = {}
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        first = cpus.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        facts = dict(line.replace("\t", "").split(":", 1) for line in first.splitlines() if ":" in line)
    name = facts.get("model name", platform.processor()).strip()
    family = f", family {facts['cpu family'].strip()}" if "cpu family" in facts else ""
    return f"{name}{family}, {len(os.sched_getaffinity(0))} cores"

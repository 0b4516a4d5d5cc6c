"""`brickscan evaluate CONFIG`, the same as `python -m jobs.evaluate --config CONFIG`: the paper's experiments."""

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.cli import end, run, when_interrupted
from jobs.mark import read_prompts
from jobs.options import NamedPath
from jobs.text import tell
from scanner.errors import Refused

if TYPE_CHECKING:
    from scanner.evaluation.plan import EvaluationPlan
    from scanner.evaluation.scores import Figure
    from scanner.evaluation.units import WrittenTexts

_CONFIG = NamedPath(path_type=Path)
_paper = click.option("--paper-size", is_flag=True, help="The sizes of the paper's tables, instead of the configured.")


@click.command()
@click.argument("config", type=_CONFIG)
@_paper
def evaluate(config: Path, paper_size: bool) -> None:
    """Run the paper's experiments with a local model, and write tables, a report and plots.

    CONFIG: a TOML file; `brickscan schema evaluate` prints its fields.
    Every text that is written is kept: run it again after anything,
    and it goes on from there.

    \b
    Example:
      brickscan evaluate evaluation.toml
    """
    evaluate_and_tell(config, paper_size)


@click.command(name="python -m jobs.evaluate")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.evaluation.EvaluationConfig.")
@_paper
def module(config: Path, paper_size: bool) -> None:
    """Do what `brickscan evaluate CONFIG` does; for schedulers and `ray job submit`."""
    evaluate_and_tell(config, paper_size)


def evaluate_and_tell(config_file: Path, paper_size: bool = False) -> None:
    """Run the experiments with progress on stderr; the files that were written are listed on stdout.

    Raises:
        BrickscanError: see scanner.errors.
    """
    for name, extra in (("torch", "model"), ("transformers", "model"), ("scipy", "audit"), ("matplotlib", "audit")):
        if importlib.util.find_spec(name) is None:
            raise Refused(f"evaluate needs {name}; install it with `pip install 'brickscan[{extra}]'`")
    from jobs.text import StepProgress
    from scanner.cluster.evaluate import measure, take_missing, write_missing
    from scanner.cluster.machines import cluster
    from scanner.evaluation.exams import ExamRecords, utility_figures
    from scanner.evaluation.plan import plan_evaluation, read_evaluation
    from scanner.evaluation.units import WrittenTexts, folder_sha256

    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    config, base = read_evaluation(config_file, paper_size), config_file.absolute().parent
    plan = plan_evaluation(config, base, read_prompts(base / config.prompts, "prompts"))
    if plan.exams and importlib.util.find_spec("lm_eval") is None:
        raise Refused("[utility] needs lm_eval; install it with `pip install 'brickscan[utility]'`, or leave it out")
    model_sha256 = folder_sha256(plan.model)
    texts, answers = (
        WrittenTexts(plan.results / "texts", model_sha256),
        ExamRecords(plan.results / "answers", model_sha256),
    )
    units = len(set(plan.units()))
    began = time.monotonic()
    with (
        when_interrupted("evaluate: texts and answers that were finished are kept; run it again to go on") as check,
        contextlib.redirect_stdout(sys.stderr),
        cluster(config.cluster) as workers,
    ):
        watch = StepProgress("evaluate", check)
        written = write_missing(plan, texts, workers, watch)
        taken = take_missing(plan, answers, workers, watch)
        figures = measure(plan, texts, workers, watch)
    figures += utility_figures({exam: answers.read(exam) for exam in plan.exams})
    tell(
        f"{units} batches of texts, {written} of them written now; {len(plan.exams)} exams, {taken} of them taken now; "
        f"{len(figures)} figures, {time.monotonic() - began:.0f} s"
    )
    for path in _write(plan, texts, figures):
        tell(f"wrote {path}")


def _write(plan: "EvaluationPlan", texts: "WrittenTexts", figures: "list[Figure]") -> list[Path]:
    """Table, report and plots, in the folder of results."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from scanner.evaluation.report import identification_png, report, robustness_png
    from schemas.evaluation import FIGURES

    table = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(figures, FIGURES), table)
    files = {
        "figures.parquet": table.getvalue().to_pybytes(),
        "report.md": report(figures, _heading(plan, texts)).encode(),
        "robustness.png": robustness_png(figures),
        "identification.png": identification_png(figures),
    }
    written = []
    for name, data in files.items():
        if data is not None:
            path = plan.results / name
            path.write_bytes(data)
            written.append(path)
    return written


def _heading(plan: "EvaluationPlan", texts: "WrittenTexts") -> list[str]:
    """The settings of a run, in sentences."""
    config = plan.config
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("brickscan", "torch", "transformers"))
    lines = [
        f"{', '.join(versions)}. Model `{plan.model.name}` (SHA-256 of its files {texts.model_sha256[:16]}…), prompts"
        f" `{Path(config.prompts).name}`, seed {config.seed!r}, top-p {config.top_p:g}, top-k off, at most"
        f" {config.max_new_tokens} new tokens."
    ]
    robust, named, setting = config.robustness, config.identification, config.utility
    if robust is not None:
        lines.append(
            f"Robustness: {robust.prompts} prompts, each under {robust.keys_a_prompt} of {robust.keys} keys (the paper:"
            f" 1,000 under 10 of 10); green list γ = {robust.gamma}, θ = {robust.greenlist_temperature:g}."
        )
    if named is not None:
        lines.append(
            f"Identification: {named.users} users of {named.texts} texts (the paper: 1,000 of 100), h = {named.window};"
            f" green list δ = {named.delta:g}, γ = {named.gamma}, θ = {named.greenlist_temperature:g}; Gumbel θ ="
            f" {named.gumbel_temperature:g}."
        )
    if setting is not None:
        documents = "all documents" if setting.documents is None else f"the first {setting.documents} documents"
        lines.append(
            f"Utility: {documents} of each task (the paper: all); green list δ = {setting.delta:g},"
            f" γ = {setting.gamma}, greedy; Gumbel θ = {setting.gumbel_temperature:g};"
            " the tasks say how long answers are."
        )
    return lines


if __name__ == "__main__":
    end(run(module))

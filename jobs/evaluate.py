"""Run `brickscan evaluate`, the paper's experiments, and `error-rates`, a page on a provider's own keys and texts.

`brickscan evaluate CONFIG` is the same as `python -m jobs.evaluate --config CONFIG`.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.cli import end, run, when_interrupted
from jobs.mark import read_prompts
from jobs.options import NamedPath
from jobs.text import StepProgress, tell
from scanner.errors import Refused, install_of
from scanner.interrupts import interrupts_noted
from schemas.evaluation import FIGURES

if TYPE_CHECKING:
    import polars as pl

    from scanner.detection.one_text import TextCheck
    from scanner.research.plan import EvaluationPlan
    from scanner.research.scores import Figure
    from scanner.research.units import WrittenTexts

_CONFIG = NamedPath(path_type=Path)
_paper = click.option("--paper-size", is_flag=True, help="The paper's sizes instead of the configured ones")


@click.command()
@click.argument("config", type=_CONFIG)
@_paper
def evaluate(config: Path, paper_size: bool) -> None:
    """Run the paper's experiments with a local model, and write tables, a report and plots.

    CONFIG is a TOML file; `brickscan schema evaluate` lists its fields. Every text is kept, so you can run it again
    after any interruption.

    \b
    Example:
      brickscan evaluate evaluation.toml
      brickscan evaluate evaluation.toml --paper-size
    """
    evaluate_and_tell(config, paper_size)


@click.command(name="python -m jobs.evaluate")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.evaluation.EvaluationConfig")
@_paper
def module(config: Path, paper_size: bool) -> None:
    """Do what `brickscan evaluate CONFIG` does; for schedulers and `ray job submit`."""
    evaluate_and_tell(config, paper_size)


def evaluate_and_tell(config_file: Path, paper_size: bool) -> None:
    """Run the experiments with progress on stderr, and list the files that were written on stdout.

    Raises:
        BrickscanError: see scanner.errors.
    """
    for name, extra in (("torch", "model"), ("transformers", "model"), ("scipy", "audit"), ("matplotlib", "audit")):
        if importlib.util.find_spec(name) is None:
            raise Refused(f"evaluate needs {name}; install it with {install_of(extra)}")
    from scanner.cluster.machines import cluster
    from scanner.research.plan import ExamRecords, plan_evaluation, read_evaluation, utility_figures
    from scanner.research.runs import measure, take_missing, write_missing
    from scanner.research.units import WrittenTexts, folder_sha256

    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    config, base = read_evaluation(config_file, paper_size), config_file.absolute().parent
    plan = plan_evaluation(config, base, read_prompts(base / config.prompts, "prompts"))
    if plan.exams and importlib.util.find_spec("lm_eval") is None:
        raise Refused(f"[utility] needs lm_eval; leave it out, or install it with {install_of('research')}")
    model_sha256 = folder_sha256(plan.model, config.dtype)
    texts, answers = (
        WrittenTexts(plan.results / "texts", model_sha256),
        ExamRecords(plan.results / "answers", model_sha256),
    )
    units = len(set(plan.units()))
    began = time.monotonic()
    with (
        when_interrupted("evaluate: finished texts and answers are kept; run it again to continue") as check,
        contextlib.redirect_stdout(sys.stderr),
        cluster(config.cluster) as workers,
    ):
        watch = StepProgress("evaluate", check)
        written = write_missing(plan, texts, workers, watch)
        answered = take_missing(plan, answers, workers, watch)
        figures = measure(plan, texts, workers, watch)
    figures += utility_figures({exam: answers.read(exam) for exam in plan.exams})
    tell(
        f"{units} batches of texts, {written} of them written now; {len(plan.exams)} exams, {answered} of them taken "
        f"now; {len(figures)} figures, {time.monotonic() - began:.0f} s"
    )
    for path in _write(plan, texts, figures):
        tell(f"wrote {path}")


def _write(plan: "EvaluationPlan", texts: "WrittenTexts", figures: "list[Figure]") -> list[Path]:
    from scanner.research.report import identification_png, report, robustness_png

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
    config = plan.config
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("brickscan", "torch", "transformers"))
    lines = [
        f"{', '.join(versions)}. Model `{plan.model.name}` in {config.dtype} (SHA-256 of both"
        f" {texts.model_sha256[:16]}…), prompts `{Path(config.prompts).name}`, seed {config.seed!r}, top-p"
        f" {config.top_p:g}, top-k off, at most {config.max_new_tokens} new tokens."
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

COLUMNS = ("user_id", "kind", "language", "source")
"""Columns of the texts' files that are used if they exist, besides `text`."""

_FILE = NamedPath(path_type=Path, dir_okay=False, exists=True)


@click.command(name="error-rates")
@click.argument("config", type=_FILE)
@click.option("--unmarked", type=_FILE, multiple=True, required=True, help="Parquet file of unmarked texts")
@click.option(
    "--marked", type=_FILE, multiple=True, required=True, help="Parquet file of texts marked under these keys"
)
@click.option(
    "--out", type=NamedPath(path_type=Path), default="error-rates", show_default=True, help="Folder for the page"
)
@click.option("--model", type=NamedPath(path_type=Path), help="Folder of a model that paraphrases and translates")
@click.option("--seed", default="1", show_default=True, help="Seed of the edits")
def error_rates(
    config: Path, unmarked: tuple[Path, ...], marked: tuple[Path, ...], out: Path, model: Path | None, seed: str
) -> None:
    """Measure error rates, and write a page that you can publish: error-rates.html and .json.

    CONFIG is the file of a scan, whose registry, keys, rate and looks are used. The Parquet files need a column `text`;
    `kind`, `language` and `source` become rows of tables, and `user_id` lets the page count who is named. The page
    holds no text, no user's name, and nothing of a key but its commitment.

    \b
    Example:
      brickscan error-rates scan.toml --unmarked human.parquet --marked marked.parquet
    """
    import polars as pl

    from scanner.detection.one_text import TextCheck
    from scanner.registry import unknown_users
    from scanner.research.error_rates import Decider, Rewriter, page, twin
    from scanner.research.error_rates import error_rates as measure

    check = TextCheck.of_config(config)
    unmarked_texts, marked_texts = _read("--unmarked", unmarked), _read("--marked", marked)
    both = unmarked_texts.join(marked_texts, on="text", how="semi").height
    if both:
        raise Refused(f"--unmarked and --marked: {both} texts are in both; each text must be either marked or unmarked")
    decider = Decider(check)
    unmarked_texts, marked_texts = decider.measured(unmarked_texts), decider.measured(marked_texts)
    rewriter = None if model is None else Rewriter(model, int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16))
    with interrupts_noted() as noted:
        rewrites = {} if rewriter is None else rewriter.steps()
        cells = measure(decider, unmarked_texts, marked_texts, seed, rewrites, StepProgress("error-rates", noted))
    named = marked_texts["user_id"].drop_nulls() if "user_id" in marked_texts.columns else pl.Series(dtype=pl.String)
    users = named.unique().to_list()
    too_short = {cell.row: cell.hits for cell in cells if cell.part == "too short"}
    options = [("unmarked", path) for path in unmarked] + [("marked", path) for path in marked]
    options += [("model", model)] if model else []
    words = [f"--{name} {path.name}" for name, path in options]
    header = {
        "version": importlib.metadata.version("brickscan"),
        "command": " ".join(["brickscan error-rates", config.name, *words, "--seed", seed]),
        "the_keys": _keys(check),
        "rules": _rules(check),
        "unmarked": _about(unmarked_texts, unmarked, too_short["unmarked"]),
        "marked": _about(marked_texts, marked, too_short["marked"])
        | {"users": len(users), "without_user": marked_texts.height - len(named)}
        | {"unknown_users": len(unknown_users(check.registry, users))},
        "seed": seed,
        "model": rewriter and rewriter.about(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("error-rates.html", page(header, cells)), ("error-rates.json", twin(header, cells))):
        (out / name).write_text(text, encoding="utf-8")
        tell(f"wrote {out / name}")


def _read(option: str, paths: Sequence[Path]) -> "pl.DataFrame":
    """Read distinct texts of files, with those of COLUMNS that exist."""
    import polars as pl

    frames = []
    for path in paths:
        try:
            table = pl.scan_parquet(path)
            types = table.collect_schema()
            if "text" not in types:
                raise Refused(f"{option} {path}: no column `text`; its columns are {', '.join(types)}")
            names = ["text", *(name for name in COLUMNS if name in types)]
            for name in names:
                if types[name].is_nested() or (name == "text" and types[name].is_numeric()):
                    raise Refused(f"{option} {path}: column `{name}` is {types[name]}; a text column is needed")
            frame = table.select(pl.col(names).cast(pl.String)).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            why = str(error).partition("\n")[0]
            raise Refused(f"{option} {path}: cannot be read as Parquet with UTF-8 texts ({why})") from None
        frames.append(frame)
    texts = pl.concat(frames, how="diagonal").drop_nulls("text").unique(maintain_order=True, subset="text")
    if texts.is_empty():
        raise Refused(f"{option}: no text in {', '.join(map(str, paths))}; give files with texts")
    return texts


def _about(texts: "pl.DataFrame", paths: Sequence[Path], too_short: int) -> dict[str, Any]:
    from scanner.text import sha256_file

    return {"texts": texts.height, "too_short": too_short, "files": [sha256_file(path) for path in paths]}


def _keys(check: "TextCheck") -> list[dict[str, Any]]:
    from scanner.watermark.formats import format_of

    return [
        {"commitment": key.commitment, "format": format_of(key).label(), "messages": key.messages}
        | {"tokenizer_sha256": key.tokenizer.sha256}
        for key in check.keys
    ]


def _rules(check: "TextCheck") -> dict[str, Any]:
    rules, weights = check.rules, check.rules.weights
    looks = {"the text without characters that hide a mark": weights.normalised, "parts of the text": weights.span}
    stated = ("false_positive_rate", "misnaming_rate", "dedup", "min_scored", "keys_tested")
    values = (rules.false_positive_rate, rules.rates[1], rules.dedup, rules.min_scored, rules.keys_tested)
    return dict(zip(stated, values, strict=True)) | {
        "looks": [look for look, weight in looks.items() if weight is not None]
    }

"""`brickscan error-rates`: a page of error rates that a provider can publish, on the provider's own keys and texts."""

import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.options import NamedPath
from jobs.text import StepProgress, tell
from scanner.errors import Refused
from scanner.interrupts import interrupts_noted

if TYPE_CHECKING:
    import polars as pl

    from scanner.detection.one_text import Check

COLUMNS = ("user_id", "kind", "language", "source")
"""Columns of the texts' files that are used where they are there, besides `text`."""

_FILE = NamedPath(path_type=Path, dir_okay=False, exists=True)


@click.command(name="error-rates")
@click.argument("config", type=_FILE)
@click.option("--unmarked", type=_FILE, multiple=True, required=True, help="Parquet of texts that nobody marked.")
@click.option("--marked", type=_FILE, multiple=True, required=True, help="Parquet of texts marked under these keys.")
@click.option("--out", type=NamedPath(path_type=Path), default="error-rates", show_default=True, help="Folder.")
@click.option("--model", type=NamedPath(path_type=Path), help="Folder of a model that paraphrases and translates.")
@click.option("--seed", default="1", show_default=True, help="Seed of the edits; the same gives the same page.")
def error_rates(
    config: Path, unmarked: tuple[Path, ...], marked: tuple[Path, ...], out: Path, model: Path | None, seed: str
) -> None:
    """Measure error rates, and write a page that can be published: error-rates.html, and error-rates.json beside it.

    CONFIG: the file of a scan, whose registry, keys, rate, variants and spans are taken. The Parquet files need a
    column `text`; columns `kind`, `language` and `source` become rows of tables, and with `user_id` marked texts are
    counted as named, too. The page has no text, no name of a user and nothing of a key but its commitment.

    \b
    Example:
      brickscan error-rates scan.toml --unmarked human.parquet --marked marked.parquet
    """
    from scanner.detection.one_text import Check
    from scanner.evaluation.error_page import page, twin
    from scanner.evaluation.error_rates import Decider
    from scanner.evaluation.error_rates import error_rates as measure
    from scanner.evaluation.rewriting import Rewriter
    from scanner.registry import unknown_users

    check = Check.of_config(config)
    human, ours = _read("--unmarked", unmarked), _read("--marked", marked)
    both = human.join(ours, on="text", how="semi").height
    if both:
        raise Refused(f"--unmarked and --marked: {both} texts stand in both; say of each whether it is marked")
    decider = Decider(check)
    human, ours = decider.measured(human), decider.measured(ours)
    rewriter = None if model is None else Rewriter(model, int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16))
    with interrupts_noted() as noted:
        rewrites = {} if rewriter is None else rewriter.steps()
        cells = measure(decider, human, ours, seed, rewrites, StepProgress("error-rates", noted))
    users = ours["user_id"].drop_nulls().unique().to_list() if "user_id" in ours.columns else []
    too_short = {cell.row: cell.hits for cell in cells if cell.part == "too short"}
    options = [("unmarked", path) for path in unmarked] + [("marked", path) for path in marked]
    options += [("model", model)] if model else []
    words = [f"--{name} {path.name}" for name, path in options]
    about = {
        "version": importlib.metadata.version("brickscan"),
        "command": " ".join(["brickscan error-rates", config.name, *words, "--seed", seed]),
        "the_keys": _keys(check),
        "rules": _rules(check),
        "unmarked": _about(human, unmarked, too_short["unmarked"]),
        "marked": _about(ours, marked, too_short["marked"])
        | {"users": len(users), "unknown_users": len(unknown_users(check.registry, users))},
        "seed": seed,
        "model": rewriter and rewriter.about(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("error-rates.html", page(about, cells)), ("error-rates.json", twin(about, cells))):
        (out / name).write_text(text, encoding="utf-8")
        tell(f"wrote {out / name}")


def _read(option: str, paths: Sequence[Path]) -> "pl.DataFrame":
    """Distinct texts of files, with the columns that are there."""
    import polars as pl

    frames = []
    for path in paths:
        try:
            there = pl.scan_parquet(path)
            types = there.collect_schema()
            if "text" not in types:
                raise Refused(f"{option} {path}: no column `text`; its columns are {', '.join(types)}")
            names = ["text", *(name for name in COLUMNS if name in types)]
            for name in names:
                if types[name].is_nested() or (name == "text" and types[name].is_numeric()):
                    raise Refused(f"{option} {path}: column `{name}` is {types[name]}; texts are needed")
            frame = there.select(pl.col(names).cast(pl.String)).collect()
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


def _keys(check: "Check") -> list[dict[str, Any]]:
    from scanner.watermark.formats import format_of

    return [
        {"commitment": key.commitment, "format": format_of(key).label(), "messages": key.messages}
        | {"tokenizer_sha256": key.tokenizer.sha256}
        for key in check.keys
    ]


def _rules(check: "Check") -> dict[str, Any]:
    rules, weights = check.rules, check.rules.weights
    looks = {"the text without what hides a mark": weights.normalised, "parts of the text": weights.span}
    stated = ("false_positive_rate", "misnaming_rate", "dedup", "min_scored", "keys_tested")
    values = (rules.false_positive_rate, rules.rates[1], rules.dedup, rules.min_scored, rules.keys_tested)
    return dict(zip(stated, values, strict=True)) | {
        "looks": [look for look, weight in looks.items() if weight is not None]
    }

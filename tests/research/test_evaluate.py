"""`brickscan evaluate` whole, with a tiny random model: figures, report, plots, and no text twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cli import run
from jobs.evaluate import evaluate, module
from scanner.cluster.pool import on_actors
from scanner.errors import Refused, ScanFailed
from schemas.evaluation import FIGURES, MEASURES, TEXTS

CONFIG = """\
results = "out"
model = "{model}"
prompts = "prompts.txt"
batch = 8
max_new_tokens = {tokens}
[cluster]
workers = 1
"""
ROBUST = """\
[robustness]
prompts = 8
keys = 2
keys_a_prompt = 2
windows = [1]
temperatures = [1.0]
deltas = [4.0]
attacks = ["substitute:0.3", "substitute:0.9", "paste:0.1", "lower", "retokenise"]
sentence_model = "{sentence}"
[robustness.human]
paths = ["human.parquet"]
"""
NAMED = """\
[identification]
users = 4
texts = 4
window = 2
messages = [10, 1000, 1000000, 1000000000]
"""


def config(folder: Path, model: Path, *more: str, tokens: int = 100) -> Path:
    path = folder / "evaluation.toml"
    path.write_text(CONFIG.format(model=model, tokens=tokens) + "".join(more))
    return path


def kept(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted((folder / "out" / "texts").iterdir())}


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_both_experiments_give_tables_a_report_and_plots(tmp_path, prompts, tiny_folder, sentence_folder, capsys):
    human = ["w0 " * 300, "\n", None, "people wrote this " * 80]
    pq.write_table(pa.table({"text": human}), tmp_path / "human.parquet")
    path = config(tmp_path, tiny_folder, ROBUST.format(sentence=sentence_folder), NAMED)
    assert run(evaluate, [str(path)]) == 0
    said = capsys.readouterr()
    assert "16 batches of texts, 16 of them written now" in said.out
    assert "1 of 13 left out, blank lines (counted from 1): 13\n" in said.err
    texts = pl.read_parquet(tmp_path / "out" / "texts" / "*.parquet")
    assert texts.columns == TEXTS.names
    assert len(texts) == 2 * 16 + 2 * 2 * 8 + 4 * 16  # two cells, two temperatures twice unmarked, two methods twice
    rows = pl.read_parquet(tmp_path / "out" / "figures.parquet")
    assert rows.columns == FIGURES.names
    assert set(rows["measure"]) == set(MEASURES) - {"correct"}  # only utility measures it
    assert (rows["low"] <= rows["value"]).all()
    assert (rows["value"] <= rows["high"]).all()
    robust = rows.filter(pl.col("experiment") == "robustness", pl.col("method").is_not_null())
    assert set(robust["n"]) == {16}
    assert set(robust["clusters"]) == {"8 prompts, 2 keys"}
    flagged = {(m, a): v for m, a, v in robust.filter(measure="flagged").select("method", "attack", "value").rows()}
    for method in ("gumbel-v3", "greenlist-v3"):
        assert flagged[method, None] == 1.0  # 100 tokens of a model of much entropy
        assert flagged[method, "not marked"] == 0.0
        assert flagged[method, "substitute:0.9"] == 0.0
        assert flagged[method, "lower"] == flagged[method, "retokenise"] == 1.0  # the words are in lower case already
    baseline = rows.filter(pl.col("method").is_null())
    assert baseline.select("measure", "n", "temperature").rows() == [("similarity", 8, 0.8), ("similarity", 8, 1.0)]
    named = rows.filter(pl.col("experiment") == "identification", pl.col("least_scored").is_null())
    found = named.filter(pl.col("most_scored").is_null(), measure="found", false_positive_rate=1e-6)
    assert found.select("method", "messages", "hits", "n").rows() == [
        (method, count, 16, 16)
        for counts in ((10, 1000), (10**6, 10**9))
        for method in ("gumbel-v3", "greenlist-v3")
        for count in counts
    ]
    assert rows.filter(measure="wrong")["hits"].sum() == 0
    report = (tmp_path / "out" / "report.md").read_text()
    for line in ("| paste:0.1 |", "4 users of 4 texts", "n: 16 texts of 8 prompts, 2 keys.", "| 0.001 | Kirchenbauer"):
        assert line in report
    for name in ("robustness.png", "identification.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")

    before = kept(tmp_path)
    assert run(module, ["--config", str(path)]) == 0
    assert "16 batches of texts, 0 of them written now" in capsys.readouterr().out
    assert kept(tmp_path) == before
    assert pl.read_parquet(tmp_path / "out" / "figures.parquet").equals(rows)


def batches(folder: Path) -> dict[str, int]:
    """Batches that are kept whole, and when each was written."""
    return {name: at for name, at in kept(folder).items() if name.endswith(".parquet") and not name.startswith(".")}


DRIVER = """\
import sys, time
import pytest
from jobs.cli import run
from jobs.evaluate import module
from scanner.research import runs
from tests.support.without_ray import put_in_the_place_of_ray

if sys.argv[2:] == ["without Ray"]:
    put_in_the_place_of_ray(pytest.MonkeyPatch())

def waits(number: int) -> None:
    if number == 2:
        print("two more are written", file=sys.stderr)
        time.sleep(300)

write_missing = runs.write_missing
runs.write_missing = lambda plan, texts, workers, watch: write_missing(
    plan, texts, workers, lambda what, number, count: (watch(what, number, count), waits(number))
)
sys.exit(run(module, ["--config", sys.argv[1]]))
"""
"""Script that drives an evaluation until two batches of texts are written, and then waits to be ended."""


@pytest.mark.long
@pytest.mark.usefixtures("prompts", "without_ray")
def test_a_run_that_was_told_to_end_and_then_killed_goes_on_where_it_was(tmp_path, tiny_folder, capsys):
    """Two drivers, each in its own process, the first with Ray; this process finishes what they leave."""
    units = 6
    path = config(
        tmp_path, tiny_folder, NAMED.replace("texts = 4", "texts = 6").replace(", 1000000, 1000000000", ""), tokens=60
    )

    def until_two_are_written(*how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(path), *how],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("two more are written"):
                return process
        raise AssertionError("".join(seen))

    process = until_two_are_written()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    said = [line for line in err.splitlines() if line.startswith("brickscan: ")]
    assert said == [
        "brickscan: evaluate: finished texts and answers are kept; run it again to continue",
        "brickscan: interrupted by SIGTERM",
    ]
    assert not (tmp_path / "out" / "report.md").exists()
    ended = batches(tmp_path)
    assert len(ended) == 2

    process = until_two_are_written("without Ray")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = batches(tmp_path)
    assert len(before) == 4
    assert ended.items() < before.items()

    assert run(evaluate, [str(path)]) == 0
    assert f"{units} batches of texts, {units - len(before)} of them written now" in capsys.readouterr().out
    after = batches(tmp_path)
    assert before.items() < after.items()
    assert len(after) == units


def test_a_file_of_prompts_is_refused_by_the_field_that_names_it(tmp_path, tiny_folder, capsys):
    path = config(tmp_path, tiny_folder, NAMED)
    assert run(evaluate, [str(path)]) == 2
    err = capsys.readouterr().err
    assert f"prompts {tmp_path}/prompts.txt: cannot be read" in err
    assert "--prompts" not in err


@pytest.mark.usefixtures("prompts")
def test_a_prompt_that_is_too_long_is_refused_before_anything_is_made(tmp_path, tiny_folder, capsys):
    path = config(tmp_path, tiny_folder, NAMED, tokens=255)
    assert run(evaluate, [str(path)]) == 2
    assert "do not fit the model's 256 positions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.costly
@pytest.mark.usefixtures("prompts", "ray_cluster")
def test_without_a_gpu_texts_are_written_on_cpus_or_not_at_all(tmp_path, tiny_folder, capsys, caplog):
    named = NAMED.replace("texts = 4", "texts = 1").replace("[10, 1000, 1000000, 1000000000]", "[10]")
    path = config(tmp_path, tiny_folder, tokens=20)
    asked = path.read_text() + "gpus_per_worker = 0.5\n"
    path.write_text(asked + "require_gpus = true\n" + named)
    assert run(evaluate, [str(path)]) == 2
    assert "cluster.gpus_per_worker = 0.5: the cluster has 0 GPUs" in capsys.readouterr().err
    path.write_text(asked + named)
    assert run(evaluate, [str(path)]) == 0
    assert "2 batches of texts, 2 of them written now" in capsys.readouterr().out
    assert "CPUs are used instead" in caplog.text
    texts = pl.read_parquet(tmp_path / "out" / "texts" / "*.parquet")
    path.write_text('dtype = "bfloat16"\n' + asked + named)
    assert run(evaluate, [str(path)]) == 0
    assert "2 batches of texts, 2 of them written now" in capsys.readouterr().out  # another precision, other texts
    both = pl.read_parquet(tmp_path / "out" / "texts" / "*.parquet")
    assert both.height == 2 * texts.height
    assert both["model_sha256"].n_unique() == 2


class Doubler:
    """An actor for tests: doubles, refuses 5, fails at 6, dies of 7."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def do(self, number: int) -> int:
        if number == 5:
            raise Refused("5 is refused")
        if number == 6:
            raise ZeroDivisionError("6")
        if number == 7:
            os._exit(1)
        return self._factor * number


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_actors_do_every_item_once_and_tell_what_goes_wrong():
    assert sorted(on_actors(Doubler, (2,), range(100, 123), 1)) == [(i, 2 * i) for i in range(100, 123)]
    assert list(on_actors(Doubler, (2,), [], 1)) == []
    with pytest.raises(Refused, match="5 is refused"):
        list(on_actors(Doubler, (2,), [1, 5], 1))
    with pytest.raises(ScanFailed, match="Doubler failed: ZeroDivisionError: 6"):
        list(on_actors(Doubler, (2,), [6, 1], 1))
    with pytest.raises(ScanFailed, match="Doubler failed"):
        list(on_actors(Doubler, (2,), [7], 1))

"""The first minutes: init, the schema of a configuration, completion."""

import datetime
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cli import brickscan
from jobs.options import Day
from scanner.detection.scan_plan import make_plan
from scanner.errors import Refused
from scanner.registry import load_registry
from scanner.storage.toml import read_toml_text
from schemas.config import ScanConfig
from tests.support.command_line import call

ROOT = Path(__file__).parents[1]
TOKENIZER = ROOT / "jobs" / "demo" / "tokenizer.json"
NOW = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
LONG = "a text that somebody posted, of some length"
SHAPES = {
    "plain": (
        {"text": [LONG], "doc_id": ["1"], "account_id": ["a"], "created_at": [NOW]},
        ("text", "doc_id", "account_id", "created_at"),
    ),
    "other names": (
        {"id": [1], "author": ["a"], "body": [LONG], "posted": [NOW.date()]},
        ("body", "id", "author", "posted"),
    ),
    "no names": ({"a": ["x"], "b": [LONG], "c": [1.5]}, ("b", None, None, None)),
    "a year is no time": ({"Text": [LONG], "created_at": ["2026"]}, ("Text", None, None, None)),
    "a time that is text": ({"a": [LONG] * 2, "time": ["2026-11-20T10:00:00Z", None]}, ("a", None, None, "time")),
    "and one that is not": ({"a": [LONG] * 2, "posted_at": ["2026-11-20 10:00", "noon"]}, ("a", None, None, None)),
    "binary": ({"payload": [LONG.encode()], "user": [7]}, ("payload", None, "user", None)),
    "text shorter than a note": ({"text": ["hi"], "note": [LONG]}, ("text", None, None, None)),
}  # fmt: skip


def test_yesterday_is_the_day_before_today_in_utc():
    earliest = datetime.datetime.now(datetime.UTC).date()
    day = Day().convert("yesterday", None, None).date() + datetime.timedelta(days=1)
    assert earliest <= day <= datetime.datetime.now(datetime.UTC).date()
    with pytest.raises(click.BadParameter, match="tomorrow"):
        Day().convert("tomorrow", None, None)


@pytest.mark.parametrize("shape", SHAPES)
def test_init_makes_what_a_scan_needs_and_says_what_it_guessed(tmp_path, shape):
    columns, wanted = SHAPES[shape]
    folder = tmp_path / "incoming" / "2026-11-20"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet")
    code, out, err = call("init", folder / "part-0.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)
    assert (code, err) == (0, "")
    config = tmp_path / "scan.toml"
    plan = make_plan(config, NOW.date())
    assert tuple(plan.columns)[:4] == wanted
    assert plan.config.variants.normalised
    assert (plan.config.spans.windows, plan.config.spans.segments) == (True, True)
    assert plan.locations == (str(folder),)
    assert [key.key_id for key in load_registry(tmp_path / "registry").keys] == ["first"]
    for name in filter(None, wanted):
        assert repr(name) in out
    assert out.count("none: ") == wanted.count(None)
    odd = [name for name in columns if name in ("created_at", "posted_at") and wanted[3] is None]
    assert [f"none: {name!r} holds no time" in out for name in odd] == [True] * len(odd)
    assert "commitment" in out
    assert f"brickscan scan {config} --date" in out
    before = config.read_text()
    again = call("init", folder / "part-0.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)
    assert again[0] == 2
    assert "is there already" in again[2]
    assert config.read_text() == before


def test_a_file_beside_what_init_makes_is_named_alone(tmp_path):
    """`init` names the file, not its folder: the folder would hold the results too, which no scan may read."""
    pq.write_table(pa.table({"text": [LONG * 20]}), tmp_path / "posts.parquet")
    code, out, _ = call("init", tmp_path / "posts.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)
    assert (code, "the file alone" in out) == (0, True)
    assert make_plan(tmp_path / "scan.toml").locations == (str(tmp_path / "posts.parquet"),)


def test_what_init_made_can_be_scanned(tmp_path, without_ray, opened_once):
    pq.write_table(pa.table({"text": [LONG * 20, None]}), tmp_path / "sample.parquet")
    made = tmp_path / "made"
    made.mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "sample.parquet").rename(tmp_path / "in" / "sample.parquet")
    assert call("init", tmp_path / "in" / "sample.parquet", "--tokenizer", TOKENIZER, "--folder", made)[0] == 0
    code, out, _ = call("scan", made / "scan.toml")
    assert code == 0
    assert "2 documents" in out


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "cannot be read as Parquet"),
        (lambda path: path.write_text("a,b\n1,2\n"), "cannot be read as Parquet"),
        (lambda path: pq.write_table(pa.table({"text": pa.array([], pa.string())}), path), "has no rows"),
        (lambda path: pq.write_table(pa.table({"n": [1]}), path), "has no column of texts"),
    ],
)
def test_a_file_that_tells_nothing_is_refused_and_nothing_is_made(tmp_path, write, words):
    write(tmp_path / "x.parquet")
    code, _, err = call("init", tmp_path / "x.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)
    assert code == 2
    assert words in err
    assert not (tmp_path / "registry").exists()
    assert not (tmp_path / "scan.toml").exists()


GOOD = 'registry = "r"\nresults = "s"\nfalse_positive_rate = 1e-6\n[input]\npaths = ["in"]\n'


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (GOOD, True),
        (GOOD + 'account = "a"\n[audit]\nshare = 0.5\n', True),
        (GOOD + "[cluster]\nworkers = 2\ngpus_per_worker = 0.5\n", True),
        (GOOD.replace("1e-6", "1.0"), False),
        (GOOD.replace("1e-6", '"1e-6"'), False),
        (GOOD.replace('["in"]', "[]"), False),
        (GOOD.replace("results", "result"), False),
        (GOOD.replace('results = "s"\n', ""), False),
        ("min_scored = 0\n" + GOOD, False),
        ('dedup = "all"\n' + GOOD, False),
        (GOOD + "[audit]\nshare = 2\n", False),
    ],
)
def test_the_schema_allows_what_a_scan_allows(text, allowed):
    code, out, _ = call("schema", "scan")
    assert code == 0
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(tomllib.loads(text)) == allowed
    try:
        read_toml_text("scan.toml", text, ScanConfig)
    except Refused:
        assert not allowed
    else:
        assert allowed


@pytest.mark.parametrize("command", ["calibrate", "evaluate"])
def test_the_other_schemas_are_schemas(command):
    jsonschema.Draft202012Validator.check_schema(json.loads(call("schema", command)[1]))


def test_the_shell_completes_commands_and_options():
    line = [sys.executable, "-c", "import sys; sys.argv = ['brickscan']; from jobs.cli import main; main()"]

    def completed(words: str, number: int) -> str:
        asked = {"_BRICKSCAN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **asked})
        return done.stdout

    assert {part.split(",")[1] for part in completed("brickscan s", 1).split()} >= {"scan", "schema", "selftest"}
    assert "--date" in completed("brickscan scan --d", 2)
    asked = {**os.environ, "_BRICKSCAN_COMPLETE": "bash_source"}
    source = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, env=asked)
    assert "_brickscan_completion" in source.stdout


def every_command(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        yield (*words, name)
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*words, name))


def test_every_help_shows_an_example():
    commands = [" ".join(words) for words in every_command(brickscan)]
    helps = {name: call(*name.split(), "--help")[1] for name in commands}
    assert [name for name in commands if not re.search(rf"Example:\n    brickscan {name}\s", helps[name])] == []
    assert len(commands) > 20


def test_init_names_the_input_as_it_was_named(tmp_path, monkeypatch):
    """A relative path stays relative, so that input and configuration can be moved together."""
    monkeypatch.chdir(tmp_path)
    folder = Path("incoming/2026-11-20")
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": [LONG]}), folder / "part-0.parquet")
    code, _, _ = call("init", folder / "part-0.parquet", "--tokenizer", TOKENIZER, "--folder", "made")
    assert code == 0
    assert 'paths = [\n    "../incoming/{date}",\n]' in Path("made/scan.toml").read_text()
    assert make_plan(Path("made/scan.toml"), NOW.date()).locations == (str(tmp_path / folder),)


def test_a_page_says_how_to_install_and_which_names_that_takes():
    """An installation takes the names of its top-level packages, which another program may use too."""
    page = (Path(__file__).parents[1] / "docs/guides/first-steps.md").read_text(encoding="utf-8")
    section = page.partition("## Install it\n")[2].partition("\n## ")[0]
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    owned = {
        name.removesuffix("*").rstrip(".") for name in settings["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert {name for name in owned if f"`{name}`" in section} == owned == {"scanner", "jobs", "schemas"}
    assert "pip install" in section
    assert "-m venv" in section
    assert "an environment of its own" in section
    assert "_BRICKSCAN_COMPLETE=bash_source brickscan" in page

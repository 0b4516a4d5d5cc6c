"""The first minutes: init, the schema of a configuration, completion."""

import ast
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
import duckdb
import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.cli import brickscan, run
from jobs.options import TRIAL_LINE, Day
from scanner.errors import Refused
from scanner.input import named_files
from scanner.input.documents import read
from scanner.input.named_files import SampleFile, guess_columns
from scanner.registry import load_registry, new_key, open_key
from scanner.scan_plan import make_plan, read_config
from scanner.storage.toml import read_toml_text
from scanner.watermark import Positions, Tokens
from schemas.config import COST_OF_LOOKS, ScanConfig
from tests.support.command_line import call
from tests.support.hostile_files import encrypted
from tests.support.icebergs import make_table, name_catalog
from tests.support.syntax_trees import tree_of
from tests.support.two_keys import message_of, words_of_one_token

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


def test_a_night_has_a_date_that_has_begun():
    """A night of year 1 ended in a traceback, one of the year 2062 dropped all that the filter had learnt."""
    today = datetime.datetime.now(datetime.UTC).date()
    after = datetime.timedelta(days=1)
    for day in ("0001-01-01", "1969-12-31", "9999-12-31", str(today + 3 * after)):
        with pytest.raises(click.BadParameter, match="1970-01-01 to"):
            Day().convert(day, None, None)
    for date in (datetime.date(1970, 1, 1), today, today + after):
        assert Day().convert(str(date), None, None).date() == date


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
    lacking = [line for line in out.splitlines() if "none: " in line and not line.startswith("beacon ")]
    assert len(lacking) == wanted.count(None)
    assert ("columns  of the file: " + ", ".join(map(repr, columns)) in out) == (None in wanted[1:])
    odd = [name for name in columns if name in ("created_at", "posted_at") and wanted[3] is None]
    assert [f"none: {name!r} holds no time" in out for name in odd] == [True] * len(odd)
    assert "commitment" in out
    assert f"brickscan scan {config} --date" in out
    before = config.read_text()
    again = call("init", folder / "part-0.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)
    assert again[0] == 2
    assert "already exists" in again[2]
    assert config.read_text() == before


CHAT = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": LONG}]
NESTED = {
    "a list of structs": (pa.array([CHAT, CHAT]), ["Hi.", LONG] * 2),
    "a list as of ShareGPT": (pa.array([[{"from": "gpt", "value": LONG, "tag": "x"}]]), [LONG]),
    "a list of texts": (pa.array([[LONG, "x"], None, ["y"]]), [LONG, "x", "y"]),
    "a struct": (pa.array([{"n": 1, "body": LONG}]), [LONG]),
    "a struct of a list": (pa.array([{"n": 1, "all": [LONG, "z"]}]), [LONG, "z"]),
    "a map": (pa.array([[(1, LONG), (2, "z")]], pa.map_(pa.int8(), pa.large_string())), [LONG, "z"]),
    "lists of lists": (pa.array([[[LONG], ["x"]]]), None),
}


@pytest.mark.parametrize("shape", NESTED)
def test_init_refuses_nested_texts_and_says_how_to_write_them_out(tmp_path, shape):
    """It named the column `id`. The command that it shows writes each text into a row, which the next `init` reads."""
    column, texts = NESTED[shape]
    path = tmp_path / "chat's.parquet"
    rows = len(column)
    model = ["a model"] * rows
    pq.write_table(pa.table({'say "it"': column, "id": [f"c{i}" for i in range(rows)], "model": model}), path)
    init = ("init", path, "--tokenizer", TOKENIZER, "--folder", tmp_path / "made")
    code, _, err = call(*init)
    assert (code, "the texts seem to be in 'say \"it\"', a " in err) == (2, True)
    assert not (tmp_path / "made").exists()
    assert ("COPY (" in err) == (texts is not None)
    if texts is None:
        return
    sql = err[err.index("COPY (") :].strip().replace("'texts.parquet'", f"'{tmp_path / 'texts.parquet'}'")
    duckdb.sql(sql)
    assert pq.read_table(tmp_path / "texts.parquet")["text"].to_pylist() == texts
    path.unlink()
    code, out, _ = call("init", tmp_path / "texts.parquet", *init[2:])
    assert (code, "text     'text': texts of" in out) == (0, True)


def test_init_takes_a_folder(tmp_path):
    """It called a folder a FIFO, socket, device or folder. The newest file counts, and all of the folder is read."""
    folder = tmp_path / "in" / "2026-11-20"
    for number, name in enumerate(("new", "old")):
        (folder / f"day={number}").mkdir(parents=True)
        path = folder / f"day={number}" / "1.parquet"
        pq.write_table(pa.table({"text": [LONG], f"{name}_id": ["1"], "user": ["a"] if name == "new" else [1.5]}), path)
        os.utime(path, (10 - number, 10 - number))
    init = ("--tokenizer", TOKENIZER, "--folder")
    code, out, err = call("init", folder, *init, tmp_path / "made")
    assert (code, err, "1.parquet:" in out, "the folder" in out) == (0, "", True, True)
    assert "--date 2026-11-20 --check" in out
    plan = make_plan(tmp_path / "made" / "scan.toml", NOW.date())
    assert (plan.columns.text, plan.columns.account, plan.locations) == ("text", "user", (str(folder),))
    assert "new_id" in out
    for made in (folder, folder / "day=0" / "made"):
        code, _, err = call("init", folder, *init, made)
        assert (code, "name a --folder outside it" in err) == (2, True)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "posts.jsonl").write_text("{}")
    for path, said in (
        (tmp_path / "none", "has no Parquet file"),
        (tmp_path / "none" / "posts.jsonl", "begins with"),
    ):
        code, _, err = call("init", path, *init, tmp_path / "other")
        assert (code, said in err, "Where text lives" in err) == (2, True, True)


def test_init_reads_what_a_scan_reads(tmp_path):
    """Texts as dictionaries, as JSON and beside an encrypted column, which is not guessed though its name fits."""
    dictionary = pa.array([LONG, LONG]).dictionary_encode()
    for number, column in enumerate((dictionary, pa.array([LONG] * 2, pa.json_()), dictionary.cast(pa.binary()))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"account": ["a" * 99] * 2, "said": column, "tag": ["t"] * 2}), path)
        assert guess_columns(SampleFile(path))[:4] == ("said", None, "account", None)
    path = encrypted(tmp_path / "e.parquet", "doc_id")
    assert guess_columns(SampleFile(path))[:4] == ("text", None, None, None)
    path = encrypted(tmp_path / "f.parquet", "text")
    with pytest.raises(Refused, match=r"no column of texts \(string or binary\) that can be read"):
        guess_columns(SampleFile(path))


def test_init_looks_into_columns_that_can_be_chosen(tmp_path, monkeypatch):
    """A map of strings of 4 KB took 90 s and 4.4 GB."""
    asked = []
    monkeypatch.setattr(
        named_files, "read", lambda file, columns, *rows: asked.append(columns.names) or read(file, columns, *rows)
    )
    rows = 2000
    stored = {"text": [LONG] * rows, "map": [[("k", "v" * 100)]] * rows, "n": range(rows), "note": ["x" * 999] * rows}
    table = pa.table({**stored, "map": pa.array(stored["map"], pa.map_(pa.string(), pa.string()))})
    pq.write_table(table, tmp_path / "a.parquet")
    assert guess_columns(SampleFile(tmp_path / "a.parquet")).text == "text"
    assert asked == [{"text": "text", "id": None, "account": None, "time": None}]


def test_a_file_beside_what_init_makes_is_named_alone(tmp_path):
    """`init` names the file, not its folder: the folder would hold the results too, which no scan may read."""
    pq.write_table(pa.table({"text": [LONG * 20]}), tmp_path / "posts.parquet")
    code, out, _ = call("init", tmp_path / "posts.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)
    assert (code, "the file alone" in out) == (0, True)
    written = (tmp_path / "scan.toml").read_text(encoding="utf-8")
    assert all(f"{look}{' costs' * (look == 'normalised')} {times}" in written for look, times in COST_OF_LOOKS.items())
    assert make_plan(tmp_path / "scan.toml").locations == (str(tmp_path / "posts.parquet"),)


def test_a_file_beside_a_table_is_named_alone(tmp_path):
    """Its folder, which `init` would have named, is refused by the scan."""
    folder = tmp_path / "posts"
    write_deltalake(str(folder / "table"), pa.table({"text": [LONG]}))
    pq.write_table(pa.table({"text": [LONG * 20]}), folder / "part-0.parquet")
    code, out, _ = call("init", folder / "part-0.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path / "made")
    assert (code, "the file alone, since its folder cannot be used: " in out) == (0, True)
    assert make_plan(tmp_path / "made" / "scan.toml").locations == (str(folder / "part-0.parquet"),)


def test_init_scans_by_the_keys_of_a_registry_that_is_there(tmp_path):
    """Whoever began with `keys new`, as pages say, had to write scan.toml by hand."""
    pq.write_table(pa.table({"text": [LONG * 20]}), tmp_path / "posts.parquet")
    init, registry = ("init", tmp_path / "posts.parquet", "--folder", tmp_path), tmp_path / "registry"
    assert call(*init)[::2] == (
        2,
        "error: --tokenizer: is missing\nhint: name the tokenizer.json of the model that will be marked\n",
    )
    assert call("keys", "new", "site-a", "--registry", registry, "--tokenizer", TOKENIZER)[0] == 0
    assert call("users", "add", "alice", "--registry", registry)[0] == 0
    before = {path: path.read_bytes() for path in registry.rglob("*") if path.is_file()}
    for more in (("--tokenizer", TOKENIZER), ("--key", "site-b"), ("--trial",)):
        code, _, err = call(*init, *more)
        assert (code, f"and {more[0]} would make a key" in err) == (2, True)
        assert not (tmp_path / "scan.toml").exists()
    code, out, err = call(*init)
    assert (code, err) == (0, "")
    assert "already exists, with 1 key: site-a" in out
    assert "users add" not in out
    assert [key.key_id for key in make_plan(tmp_path / "scan.toml").keys] == ["site-a"]
    assert {path: path.read_bytes() for path in registry.rglob("*") if path.is_file()} == before
    (tmp_path / "scan.toml").unlink()
    (registry / "keys.toml").write_text("version = 2\n", encoding="utf-8")
    code, _, err = call(*init)
    assert (code, "has no key\nhint: make its first key" in err) == (2, True)


def test_init_asks_for_users_where_a_key_names_some(tmp_path):
    pq.write_table(pa.table({"text": [LONG * 20]}), tmp_path / "posts.parquet")
    init, registry = ("init", tmp_path / "posts.parquet", "--folder", tmp_path), tmp_path / "registry"
    new_key(registry, "stack", format="vllm-gumbel", messages=1, tokenizer=TOKENIZER)
    assert "users add" not in call(*init)[1]
    (tmp_path / "scan.toml").unlink()
    new_key(registry, "ours", format="greenlist", window=4, gamma="1/4", messages=1000, tokenizer=TOKENIZER)
    assert "users add" in call(*init)[1]


def test_init_recognises_a_delta_table_and_its_dates(tmp_path):
    lake = tmp_path / "lake"
    for date in ("2026-08-30", "2026-08-31"):
        rows = {"body": ["some words " * 20] * 3, "post_id": ["a", "b", "c"], "date": [date] * 3, "author": ["ann"] * 3}
        write_deltalake(lake, pa.table(rows), partition_by=["date", "author"], mode="append")
    for sample in (lake, next(lake.rglob("*.parquet"))):
        folder = tmp_path / f"made from {sample.name}"
        folder.mkdir()
        code, out, _ = call("init", str(sample), "--tokenizer", str(TOKENIZER), "--folder", str(folder))
        assert code == 0
        assert "--date 2026-08-31 --check" in out
        made = read_config(folder / "scan.toml").input
        assert made.paths == (f"delta:{lake}",)
        assert made.where == "date = '{date}'"
        assert (made.text, made.id, made.account, made.time) == ("body", "post_id", "author", "date")
    code, _, err = call("init", str(lake), "--tokenizer", str(TOKENIZER), "--folder", str(lake / "here"))
    assert code == 2
    assert f"is inside {lake}, which a scan would read" in err


@pytest.mark.costly
def test_a_night_on_a_delta_table_from_init_to_flagged(tmp_path, without_ray, opened_once):
    lake, config = tmp_path / "lake", tmp_path / "made" / "scan.toml"
    for day in ("2026-08-30", "2026-08-31"):
        rows = pa.table({"body": [LONG * 20, LONG * 30], "post_id": [f"a{day}", f"b{day}"], "day": [day] * 2})
        write_deltalake(lake, rows, partition_by=["day"], mode="append")
    config.parent.mkdir()
    assert call("init", lake, "--tokenizer", TOKENIZER, "--folder", config.parent)[0] == 0
    code, out, _ = call("scan", config, "--date", "2026-08-31")
    assert (code, "2 documents" in out) == (0, True)  # of four
    assert call("flagged", config)[0] == 0
    write_deltalake(lake, rows.slice(0, 1), partition_by=["day"], mode="append")
    DeltaTable(lake).delete("post_id = 'b2026-08-31'")
    code, out, _ = call("scan", config, "--date", "2026-08-31")
    assert (code, "1 document" in out) == (0, True)
    assert call("scan", config, "--date", "2026-09-01")[0] == 4  # a day without rows


@pytest.mark.costly
def test_a_night_on_an_iceberg_table_from_init_to_flagged(tmp_path, monkeypatch, without_ray, opened_once):
    name_catalog(tmp_path, monkeypatch)
    rows = pa.table({"body": [LONG * 20, LONG * 30], "post_id": ["a", "b"], "day": ["2026-08-31"] * 2})
    table = make_table(rows.schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    table.append(rows)
    name, config = "iceberg:lake.forum.posts", tmp_path / "made" / "scan.toml"
    config.parent.mkdir()
    code, out, _ = call("init", name, "--tokenizer", TOKENIZER, "--folder", config.parent)
    assert (code, "--date 2026-08-31 --check" in out) == (0, True)
    assert read_config(config).input.where == "day = '{date}'"
    code, out, _ = call("scan", config, "--date", "2026-08-31")
    assert (code, "2 documents" in out) == (0, True)
    assert call("flagged", config)[0] == 0
    table.append(rows.slice(0, 1))
    table.delete("post_id = 'b'")
    code, out, _ = call("scan", config, "--date", "2026-08-31")
    assert (code, "1 document" in out) == (0, True)
    assert call("scan", config, "--date", "2026-09-01")[0] == 4  # a day without rows


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


GOOD = 'version = 2\nregistry = "r"\nresults = "s"\nfalse_positive_rate = 1e-6\n[input]\npaths = ["in"]\n'


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (GOOD, True),
        (GOOD + 'account = "a"\n[audit]\nshare = 0.5\n', True),
        (GOOD + "[cluster]\nworkers = 2\ngpus_per_worker = 0.5\n", True),
        (GOOD.replace("version = 2\n", ""), False),
        (GOOD.replace("version = 2", "version = 1"), False),
        (GOOD.replace("version = 2", "version = 3"), False),
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


def test_a_configuration_without_a_version_is_told_the_line_to_add_and_a_newer_one_what_to_install():
    line = "put the line `version = 2` at its top"
    with pytest.raises(Refused, match=f"^scan.toml: was made before 0.1.0; [^;]*{line}$") as refused:
        read_toml_text("scan.toml", GOOD.replace("version = 2\n", ""), ScanConfig)
    told = re.search("`(.*)`", str(refused.value))
    assert told is not None
    read_toml_text("scan.toml", told[1] + "\n" + GOOD.replace("version = 2\n", ""), ScanConfig)
    with pytest.raises(Refused, match=r"field 'version' = 1: was made before 0\.1\.0; .*, write `version = 2`$"):
        read_toml_text("scan.toml", GOOD.replace("version = 2", "version = 1"), ScanConfig)
    with pytest.raises(
        Refused,
        match="field 'version' = 3: 2 is the newest version that this brickscan reads; a larger one is from a newer "
        "brickscan",
    ):
        read_toml_text("scan.toml", GOOD.replace("version = 2", "version = 3"), ScanConfig)


@pytest.mark.parametrize("command", ["calibrate", "evaluate"])
def test_the_other_schemas_are_schemas(command):
    jsonschema.Draft202012Validator.check_schema(json.loads(call("schema", command)[1]))


@pytest.mark.costly
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
    # a backslash that ends a line of an example would join it to the next one, unless the docstring doubles it
    assert [name for name in commands if re.search(r"\n    brickscan .*\S {3,}-", helps[name])] == []


@pytest.mark.costly
def test_no_sentence_names_a_file_of_a_checkout():
    """A wheel has no `docs`: sentences of the product name a guide by its title, or a command that prints the same."""
    sources = [path for folder in ("jobs", "scanner", "schemas") for path in Path(folder).rglob("*.py")]
    found = []
    for path in sources:
        tree = tree_of(path)
        of_module = ast.get_docstring(tree, clean=False)
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str}
        found += [(str(path), text) for text in texts - {of_module} if re.search(r"docs/\w+/[\w-]+\.md", text)]
    assert len(sources) > 200
    assert found == []


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
    assert {name for name in owned if f"`{name}`" in section} == owned == {"brickscan", "scanner", "jobs", "schemas"}
    assert "pip install" in section
    assert "-m venv" in section
    assert "an environment of its own" in section
    assert "_BRICKSCAN_COMPLETE=bash_source brickscan" in page


def marked_for(registry: Path, key_id: str, user: str) -> str:
    """Text of 300 words, each the one of 20 candidates that scores highest for the user."""
    words = words_of_one_token()
    (key,) = load_registry(registry).keys
    mark, message, rng = open_key(registry, key), message_of(registry, key_id, user), np.random.default_rng(7)
    width, tries = mark.rule.window + 1, 20
    chosen = list(rng.integers(len(words.words), size=width - 1))
    while len(chosen) < 300:
        last = rng.integers(len(words.words), size=tries)
        ngrams = words.tokens[[[*chosen[1 - width :], each] for each in last]].astype(np.uint32)
        tokens = Tokens(ngrams.reshape(-1), np.arange(tries + 1) * width)
        positions = Positions(np.arange(tries) * width + width - 1, np.arange(tries + 1))
        chosen.append(last[np.argmax(mark.score(tokens, positions, np.full(tries, message)))])
    return "".join(" " + words.words[i] for i in chosen)


@pytest.fixture
def trial(tmp_path) -> Path:
    """A folder in which `init --trial` was called."""
    (tmp_path / "in").mkdir()
    made = tmp_path / "made"
    made.mkdir()
    pq.write_table(pa.table({"text": [LONG * 20], "id": ["a"]}), tmp_path / "in" / "sample.parquet")
    code, out, err = call(
        "init", tmp_path / "in" / "sample.parquet", "--tokenizer", TOKENIZER, "--folder", made, "--trial"
    )
    assert (code, err) == (0, "")
    assert "users trial-01 to trial-20 exist already" in out
    assert "Publish" not in out  # a trial proves nothing to others
    return made


@pytest.mark.costly
def test_a_trial_names_its_users_in_text_of_last_week_and_says_everywhere_that_it_is_one(
    trial, without_ray, opened_once, tmp_path
):
    text = marked_for(trial / "registry", "trial", "trial-07")
    path = tmp_path / "in" / "sample.parquet"
    pq.write_table(pa.table({"text": [text], "id": ["a"]}), path)
    os.utime(path, (NOW.timestamp() - 7 * 86_400,) * 2)
    code, out, _ = call("scan", trial / "scan.toml")
    assert (code, out.splitlines()[0]) == (0, TRIAL_LINE)
    code, out, err = call("flagged", trial / "scan.toml")
    assert (code, "trial-07" in out, err.splitlines()[0]) == (0, True, TRIAL_LINE)
    assert call("report", trial / "scan.toml", "--out", tmp_path / "pages")[0] == 0
    assert "a trial: its key and users are dated back" in (tmp_path / "pages" / "index.html").read_text()
    code, out, err = call("export", trial / "scan.toml")
    assert (code, out, "results of a trial" in err) == (2, "", True)


@pytest.mark.costly
def test_a_trial_is_never_mixed_with_real_keys_users_or_results(trial, without_ray, opened_once, tmp_path):
    registry, config = trial / "registry", trial / "scan.toml"
    code, _, err = call("users", "add", "alice", "--registry", registry)
    assert (code, "user 'alice': this registry was made for a trial" in err) == (2, True)
    code, _, err = call("keys", "new", "real", "--registry", registry, "--tokenizer", TOKENIZER)
    assert (code, "key 'real': this registry was made for a trial" in err) == (2, True)
    assert call("scan", config)[0] == 0
    real = tmp_path / "real"
    assert call("init", tmp_path / "in" / "sample.parquet", "--tokenizer", TOKENIZER, "--folder", real)[0] == 0
    config.write_text(config.read_text().replace('registry = "registry"', f'registry = "{real / "registry"}"'))
    code, _, err = call("scan", config)
    assert (code, "was not signed under the audit secret of registry" in err) == (2, True)


def test_a_scan_that_finds_nothing_says_what_it_could_find(trial, without_ray, opened_once):
    assert "a scan finds only text that was marked under a key of its registry" in call("scan", trial / "scan.toml")[1]


@pytest.mark.costly
def test_init_gives_the_date_of_the_folder(tmp_path):
    (tmp_path / "2026-11-18").mkdir()
    pq.write_table(pa.table({"text": [LONG * 20]}), tmp_path / "2026-11-18" / "a.parquet")
    out = call("init", tmp_path / "2026-11-18" / "a.parquet", "--tokenizer", TOKENIZER, "--folder", tmp_path)[1]
    assert f"brickscan scan {tmp_path / 'scan.toml'} --date 2026-11-18\n" in out
    assert "have a model mark text under key first" in out
    for command in ("status", "flagged", "accounts"):
        assert call(command, tmp_path / "scan.toml")[1].endswith("scan.toml --date 2026-11-18` first.\n")


def test_the_command_by_itself_prints_its_help_in_lines():
    code, out, err = call()
    assert (code, out) == (2, "")
    assert " [OPTIONS] COMMAND [ARGS]...\n\n  Find text that carries" in err


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(["flaged"], "'flagged'"), (["keys", "adn"], "'add'"), (["flagged", "scan.toml", "--limt", "3"], "'--limit'")],
)
def test_mistyped_commands_and_options_are_answered_with_the_nearest(arguments, near, capsys):
    assert run(brickscan, arguments) == 2
    assert near in capsys.readouterr().err


def test_mistyped_fields_are_answered_with_the_nearest(tmp_path):
    for text, near in (
        ("false_positive_rat = 1e-6", "'false_positive_rate'"),
        ("[input]\npath = ['x']", "'paths'"),
        ("zzz = 1", ""),
    ):
        with pytest.raises(Refused, match=f"did you mean {near}" if near else "is unknown; allowed"):
            read_toml_text("scan.toml", text, ScanConfig)

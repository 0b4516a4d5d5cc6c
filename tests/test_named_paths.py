"""Whatever a path leads to, each command ends at once: no FIFO is waited for, no device read without end."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import cli
from jobs.mark import read_prompts
from jobs.options import Folder, NamedPath, Real, Whole
from scanner.errors import Refused
from scanner.registry.tokenizer_files import _repeats_what_repeats
from tests.support.command_line import call
from tests.support.footers import File
from tests.support.hostile_files import FATAL, written
from tests.support.night import Night
from tests.support.two_keys import TOKENIZER, message_of

SECONDS = 60
"""Longest time of a command, imports included."""

PATHS = ("CONFIG|RESULTS", "PATH", "FOLDER", "DIR", "FILE", "REFERENCE")
"""Words that stand for a path in the help of a parameter that is read as text."""

ALSO = {
    "init": ["--folder", "new"],
    "keys add": ["--format", "hf-lefthash", "--set", "vocab_size=50000"],
    "users add": ["somebody"],
    "users remove": ["--erase", "--yes"],
    "check": ["--registry", "REGISTRY"],
    "decide": ["--from", "DECISIONS"],
    "probe": ["--answers", "ANSWERS", "--out", "page"],
}
"""Options without which a command does not look at its paths."""


def commands(group: click.Command = cli.brickscan, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield name, group
        return
    context = click.Context(group)
    for word in group.list_commands(context):
        yield from commands(group.get_command(context, word), f"{name} {word}".strip())


def is_path(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, Folder | NamedPath) or parameter.metavar in PATHS


def value_of(parameter: click.Parameter, night) -> str:
    """Something that a required parameter takes."""
    if isinstance(parameter.type, click.Choice):
        return str(parameter.type.choices[0])
    if isinstance(parameter.type, click.DateTime):
        return "2026-08-31"
    if isinstance(parameter.type, Whole | Real):
        return "1"
    known = {
        "key_id": "green",
        "tokenizer": TOKENIZER,
        "registry": night.registry,
        "config": night.config,
        "results": night.config,
        "sample": night.input / "a.parquet",
        "unmarked": night.input / "a.parquet",
        "marked": night.input / "a.parquet",
    }
    return str(known.get(parameter.name, night.folder / f"new-{parameter.name}"))


def arguments_of(name: str, command: click.Command, about: click.Parameter, path: str, night) -> list[str]:
    """A call in which one parameter is a path, and all that are required have some value."""
    decisions = night.folder / "decisions.csv"
    decisions.write_text("id,decision,decided_by\nflag,dismissed,ruth\n")
    answers = night.folder / "answers.parquet"
    pq.write_table(pa.table({"text": ["some words"]}), answers)
    places = {"REGISTRY": str(night.registry), "DECISIONS": str(decisions), "ANSWERS": str(answers)}
    also = [places.get(word, word) for word in ALSO.get(name, [])]
    words, places = [*name.split(), *([] if about.opts[0] in also else also)], []
    for parameter in command.params:
        if parameter is not about and not parameter.required:
            continue
        value = path if parameter is about else value_of(parameter, night)
        value = f"file:{value}" if parameter.metavar == "REFERENCE" else value
        if isinstance(parameter, click.Argument):
            places.append(value)
        else:
            words += [parameter.opts[0], value]
    return [*words, *places]


def late(*_signal: object) -> None:
    raise AssertionError("a command waits for a file, or reads one without end")


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_no_command_waits_for_a_special_file(night, tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    night.write("a", ["text"])
    path = "/dev/zero"
    if kind == "fifo":
        path = str(tmp_path / "fifo")
        os.mkfifo(path)
    wrong, asked = [], 0
    before = signal.signal(signal.SIGALRM, late)
    try:
        for name, command in commands():
            for parameter in filter(is_path, command.params):
                words = arguments_of(name, command, parameter, path, night)
                began = time.monotonic()
                signal.alarm(SECONDS)
                code, out, err = call(*words)
                signal.alarm(0)
                asked += 1
                if code != 2 or path not in err or "Traceback" in err or len(err) > 1000:
                    wrong.append((words, code, out[-300:], err[-600:], time.monotonic() - began))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not wrong, "\n".join(map(str, wrong))
    assert asked > 60


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("path", ["/", "/proc/nothing", "a" * 300], ids=["root", "no place to write", "too long"])
def test_a_path_that_cannot_be_used_ends_in_a_sentence(night, tmp_path, path, monkeypatch):
    """A folder where a file is needed, a place where none can be written, a name that no system takes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("some words")
    night.write("a", ["text"])
    night.scan()
    wrong = []
    for name, command in commands():
        for parameter in filter(is_path, command.params):
            words = arguments_of(name, command, parameter, path, night)
            also = ["--text", tmp_path / "text"] if name == "check" and "--text" not in parameter.opts else []
            code, out, err = call(*words, *also)
            if code not in (0, 2) or "Traceback" in err:
                wrong.append((words, code, out[-300:], err[-600:]))
    assert not wrong, "\n".join(map(str, wrong))


def test_a_page_that_cannot_be_written(night, marked, registry, without_ray):
    night.write("a", [marked(message_of(registry, "green", "alice"), 80, 1)])
    night.scan()
    for path in ("/", "/proc/nothing", "a" * 300):
        code, _, err = call("explain", night.config, "a:0", "--html", path)
        assert (code, path in err, len(err.splitlines()) <= 2) == (2, True, True), err


def numbers_of(command: click.Command) -> Iterator[click.Parameter]:
    for parameter in command.params:
        if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
            yield parameter


@pytest.mark.parametrize(
    ("name", "number"), [(name, number.name) for name, command in commands() for number in numbers_of(command)]
)
def test_numbers_have_bounds(night, tmp_path, name, number, monkeypatch):
    """Nothing counts to 10^400: a whole number has a largest one, and others are finite."""
    monkeypatch.chdir(tmp_path)
    (command,) = (command for other, command in commands() if other == name)
    (parameter,) = (parameter for parameter in command.params if parameter.name == number)
    assert isinstance(parameter.type, Whole | Real)
    for value in ("9" * 400, "9" * 20) if isinstance(parameter.type, Whole) else ("nan", "inf", "1e999"):
        code, _, err = call(*arguments_of(name, command, parameter, value, night))
        assert (code, "Traceback" in err, len(err) < 1000) == (2, False, True), err


CUTS = {
    "half": lambda log: log[-1].write_bytes(log[-1].read_bytes()[: log[-1].stat().st_size // 2]),
    "without its first": lambda log: log[0].unlink(),
    "garbage": lambda log: log[-1].write_bytes(b"\xff\x00garbage"),
}


@pytest.mark.costly
@pytest.mark.parametrize("table", ["scans", "flags", "users"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_damaged_log_ends_in_a_sentence(tmp_path, registry, marked, without_ray, table, cut):
    """Whatever command meets it; of the registry's users as of the results' tables."""
    night = Night(tmp_path, shutil.copytree(registry, tmp_path / "registry"))
    text = marked(message_of(registry, "green", "alice"), 80, 1)
    night.write("a", [text])
    night.scan()
    (tmp_path / "post.txt").write_text(text)
    folder = night.registry if table == "users" else Path(night.results)
    cut(sorted((folder / table / "_delta_log").glob("*.json")))
    night.write("b", [text])
    for words in (
        ("flagged", night.config),
        ("explain", night.config, "a:0"),
        ("status", night.config),
        ("migrate", night.config),
        ("compact", night.config),
        ("replay", night.config, "a:0"),
        ("report", night.config, "--out", tmp_path / "report"),
        ("check", night.config, "--text", tmp_path / "post.txt"),
        ("users", "verify", "--registry", night.registry, "--results", night.results),
        ("users", "add", "carol", "--registry", night.registry),
        ("scan", night.config),
    ):
        _, out, err = call(*words)
        assert "Traceback" not in out + err, (words, err[-2000:])


WITH_REGISTRY = [
    name for name, command in commands() if name != "plan" and "registry" in {one.name for one in command.params}
]


@pytest.mark.parametrize("name", WITH_REGISTRY)
def test_a_registry_that_is_a_file_is_refused(night, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    (command,) = (command for other, command in commands() if other == name)
    (parameter,) = (parameter for parameter in command.params if parameter.name == "registry")
    code, _, err = call(*arguments_of(name, command, parameter, str(tmp_path / "file"), night))
    assert (code, "registry" in err, len(err.splitlines()) <= 2) == (2, True, True), err


HOSTILE_TOML = {
    "lists in lists": "registry = " + "[" * 900 + "]" * 900,
    "sections in sections": "a = " + "{ a = " * 5000 + "1" + "}" * 5000,
    "a number of 5,000 digits": "false_positive_rate = " + "9" * 5000,
    "a number of 50,000 digits that is hexadecimal": "false_positive_rate = 0x" + "f" * 50_000,
    "a key of 200,000 parts": ".".join(["a"] * 200_000) + " = 1",
    "a quoted key of 200,000 parts": " . ".join(['"a"'] * 200_000) + " = 1",
    "a section of 200,000 parts": "[" + ".".join(["a"] * 200_000) + "]",
    "one long word": "a" * 2**21,
    "one long string": 'registry = "' + "a." * 2**20,
    "quotes": "'" * 2**18 + '"' * 2**18,
    "a null character in a path": 'version = 2\nregistry = "a\\u0000b"\nresults = "r"\n[input]\npaths = ["in"]',
}


@pytest.mark.parametrize("text", HOSTILE_TOML.values(), ids=HOSTILE_TOML)
@pytest.mark.parametrize("name", ["scan", "keys.toml"])
def test_settings_that_no_parser_likes_are_refused_in_a_sentence(tmp_path, text, name):
    file = tmp_path / ("scan.toml" if name == "scan" else "keys.toml")
    file.write_text(text)
    began = time.process_time()
    code, _, err = call("scan", file) if name == "scan" else call("keys", "list", "--registry", tmp_path)
    assert (code, len(err.splitlines()) <= 2, len(err) < 2000) == (2, True, True), err[-2000:]
    assert time.process_time() - began < 10


HOSTILE_TOKENIZERS = {
    "200,000 lists": ("[" * 200_000 + "]" * 200_000, "is not a tokenizer.json"),
    "200,000 lists in a field": ('{"model": ' + "[" * 200_000 + "]" * 200_000 + "}", "is not a tokenizer.json"),
    "a number of 5,000 digits": ('{"model": ' + "9" * 5000 + "}", "is not a tokenizer.json"),
    "a pattern that has a repetition inside a repetition": (
        '{"model": {}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}}}',
        "its pattern '(a+)+$' has a repetition inside a repetition",
    ),
}


@pytest.mark.parametrize(("text", "why"), HOSTILE_TOKENIZERS.values(), ids=HOSTILE_TOKENIZERS)
def test_tokenizers_that_no_parser_likes_are_refused_in_a_sentence(tmp_path, text, why):
    (tmp_path / "tokenizer.json").write_text(text)
    given = "--tokenizer", tmp_path / "tokenizer.json", "--registry", tmp_path / "registry"
    code, _, err = call("keys", "new", "green", "--method", "greenlist", *given)
    assert (code, why in err, len(err.splitlines()) <= 2) == (2, True, True), err


@pytest.mark.parametrize(
    ("pattern", "endless"),
    [
        *(
            (pattern, True)
            for pattern in (
                "(a+)+$",
                "(?:a*)*",
                "(a|b+)+",
                "(a+){2,}",
                "(a{2,})*",
                "(x(a+)y)*",
                "(a+){20}",
                "(?x)#[\n(a+)+$",
            )
        ),
        *(
            (pattern, False)
            for pattern in ("a+b+", r"\(a+\)+", "[(a+)]+", "(a+)?", "(ab)+c*", r"(?i:'s|'t)| ?\p{L}+|\s+(?!\S)")
        ),
    ],
)
def test_repetitions_in_repetitions_are_found(pattern, endless):
    assert _repeats_what_repeats(pattern) is endless


def claiming(path: Path) -> Path:
    """A file of twelve rows that claims 2^40 in every place."""
    file = File(written(path))
    file.claim_rows(1, 2**40, everywhere=True)
    return file.write(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [(claiming, "the footer claims 1099511627782 rows"), (FATAL["a histogram of the texts"], "by SIGABRT")],
    ids=["claims 2^40 rows", "ends its reader"],
)
@pytest.mark.parametrize("command", ["users add", "init", "plan", "prompts"])
def test_parquet_that_no_reader_likes_is_refused_in_a_sentence(night, tmp_path, command, make, why):
    file = make(tmp_path / "hostile.parquet")
    calls = {
        "users add": ["users", "add", "--file", file, "--column", "doc_id", "--registry", night.registry],
        "init": ["init", file, "--tokenizer", TOKENIZER, "--folder", tmp_path / "new"],
        "plan": ["plan", "--from", file, "--registry", night.registry],
    }
    if command == "prompts":  # of `mark` and `canaries`
        with pytest.raises(Refused, match=re.escape(why)):
            read_prompts(file)
        return
    code, _, err = call(*calls[command])
    assert (code, str(file) in err, why in err, len(err.splitlines()) <= 2) == (2, True, True, True), err

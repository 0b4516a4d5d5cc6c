"""Text from outside on its way to a terminal or a log: it steers nothing, forges no line, and does not vanish."""

import ast
import io
import logging
import subprocess
import sys
import unicodedata
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import cli
from jobs.text import columns, complain, width
from scanner.errors import Refused, ScanFailed
from scanner.printable import printable, safe
from tests.support.syntax_trees import tree_of

ROOT = Path(__file__).parents[1]
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\nevent=scan flagged=0\u202e\u200b\u2800\u3164" + "\u0301" * 4 + "\x85\u2028\ud800"
TALKING = {"jobs/text.py"}
"""Files of the commands that write to a terminal themselves."""
SAYING = {"print", "click.echo", "click.secho", "sys.stderr.write", "sys.stdout.write"}


def seen(text: str) -> bool:
    """Whether a terminal shows every character of a text, as a letter or as a mark on one."""
    unseen = [c for c in text if not c.isprintable() or c in "\u2800\u3164\u115f\u1160\uffa0\u034f\ufe0f"]
    piled = [
        text[i : i + 3]
        for i in range(len(text))
        if all(unicodedata.category(c) in ("Mn", "Me") for c in text[i : i + 3]) and len(text[i : i + 3]) == 3
    ]
    return not unseen and not piled and (not text or unicodedata.category(text[0]) not in ("Mn", "Me"))


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_any_text_becomes_one_line_of_visible_letters(text):
    for shown in (safe(text), printable(text), printable(text, 20)):
        assert seen(shown)
        assert safe(shown) == shown
    assert len(printable(text, 20)) <= 20


@given(st.text(st.sampled_from("a  \u3000\t")))
def test_no_value_passes_for_two_columns(text):
    shown = printable(text)
    assert "  " not in shown
    assert shown == shown.strip(" ")


def test_what_people_write_stays_as_it_is():
    for text in ("Grüße, naïve", "नमस्ते दुनिया", "สวัสดีชาวโลก", "שלום", "日本語のテキスト", "cafe\u0301", "a b"):
        assert printable(text) == text


def test_columns_stand_below_each_other_whatever_is_in_them():
    rows = [("a", "x"), ("日本", "y"), ("cafe\u0301", "z"), (printable("b  c"), "w")]
    assert [width(line[: line.rindex(" ")]) for line in columns(rows)] == [width(printable("b  c")) + 1] * 4


def test_nothing_but_one_file_writes_to_a_terminal():
    calls = [
        (str(path.relative_to(ROOT)), node)
        for path in sorted((ROOT / "jobs").rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SAYING
    ]
    talking = [(name, node) for name, node in calls if name not in TALKING and not name.startswith("jobs/demo/")]
    found = [f"{name}:{node.lineno}" for name, node in talking]
    assert found == []


def call(command: click.Command, *arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(command, list(arguments))
    return code, out.getvalue(), err.getvalue()


def raising(error: BaseException) -> click.Command:
    @click.command()
    @click.argument("rest", nargs=-1)
    @click.option("--count", type=int)
    def command(rest: tuple[str, ...], count: int | None) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(f"--file {HOSTILE}: does not exist"), 2),
        (ScanFailed(f"column {HOSTILE}"), 1),
        (click.UsageError(f"no {HOSTILE}"), 2),
        (ValueError(f"unforeseen {HOSTILE}"), 1),
    ],
)
def test_no_error_steers_a_terminal_or_forges_a_line(error, code):
    found, out, err = call(raising(error))
    assert (found, out) == (code, "")
    lines = err.split("\n")
    assert all(map(seen, lines))
    assert not any(line.startswith("event=") for line in lines)
    assert r"\x1b[2J" in err


def test_no_argument_does():
    for arguments in ((f"--{HOSTILE}",), ("--count", HOSTILE)):
        code, out, err = call(raising(ValueError()), *arguments)
        assert (code, out) == (2, "")
        assert all(map(seen, err.split("\n")))
    code, _, err = call(cli.brickscan, HOSTILE)
    assert code == 2
    assert all(map(seen, err.split("\n")))


def test_no_warning_does():
    line = [
        "import logging, warnings, click",
        "from jobs.cli import run",
        "from tests.test_text import HOSTILE",
        "@click.command()",
        "def command():",
        "    logging.getLogger('scanner.cluster.pool').warning('rows of %s in half', HOSTILE)",
        "    warnings.warn(HOSTILE, stacklevel=1)",
        "run(command, [])",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(line)], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(map(seen, lines))
    assert lines[0].startswith(r"rows of \x1b[2J")


def test_what_is_logged_goes_where_it_went_once_a_command_has_ended():
    last, shown = logging.lastResort, warnings.showwarning
    call(raising(Refused("x")))
    assert (logging.lastResort, warnings.showwarning) == (last, shown)


def test_progress_is_one_line_an_event():
    err = io.StringIO()
    with redirect_stderr(err):
        complain(f"event=scan path={HOSTILE}")
    assert err.getvalue().count("\n") == 1

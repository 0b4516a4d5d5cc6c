"""Rules of docs/style.md that a machine can check: no sentence starts with "Of", and constants start with a noun."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.syntax_trees import tree_of

ROOT = Path(__file__).parents[1]
FOLDERS = ("scanner", "jobs", "schemas", "infra", "tests")

STARTS_WITH_OF = re.compile(r"(?:^|[.:;?!]\s+|\n\s*\n\s*)Of\s")
COMMENT_WITH_OF = re.compile(r"#(?: | .*[.:;?!] )Of\s")

NO_NOUN = re.compile(
    r"(?:About|After|As|At|Because|Before|Behind|Below|Beside|Between|Beyond|But|By|During|For|From|Here|How|If|In|It|Its"
    r"|Not|Of|On|Over|So|Such|That|Their|Then|There|These|They|This|Those|Through|To|Under|Until|Up|What|When|Where"
    r"|Which|While|Who|Whom|Whose|Why|With|Within|Without)\b"
)
"""First words, prepositions, pronouns and question words, with which no constant's docstring starts."""


def faults_of(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment of a file that breaks a rule."""
    for number, line in enumerate(source.splitlines(), 1):
        if COMMENT_WITH_OF.search(line):
            yield number, line.strip()
    for node in _statements(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in pairwise([None, *body]):
            text = _text_of(statement)
            of_a_constant = isinstance(before, ast.Assign | ast.AnnAssign)
            if STARTS_WITH_OF.search(text) or (of_a_constant and NO_NOUN.match(text)):
                yield statement.lineno, text


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and the statements in it, without their expressions, which are most of a tree and hold no docstring."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(child)


def _text_of(statement: ast.stmt | None) -> str:
    """The text of a statement that is a docstring, else empty."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else ""
    return ""


@pytest.mark.seconds
def test_docstrings_and_comments_follow_the_style_page() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {text[:100]}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in faults_of(path.read_text(encoding="utf-8"), tree_of(path))
    ]
    assert not faults, "\n".join(["docs/style.md: begin with the noun", *faults])


@pytest.mark.parametrize(
    "source",
    [
        '"""Of a file."""',
        'def f():\n    """The rule. Of each key it has one."""',
        'def f():\n    """The rule.\n\n    Of each key it has one.\n    """',
        'x = 1\n"""Of a key."""',
        'x = 1\n"""What a key is."""',
        'class A:\n    x: int = 1\n    """For people."""',
        "x = 1  # " + "Of a key",
        "# a rule. " + "Of each key one\nx = 1",
    ],
)
def test_what_breaks_a_rule_is_seen(source: str) -> None:
    assert len(list(faults_of(source, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source", ['"""What a file holds."""', 'x = 1\n"""Keys of a registry."""', "x = 1  # seconds of a look"]
)
def test_other_words_are_allowed(source: str) -> None:
    assert not list(faults_of(source, ast.parse(source)))

"""No code outside the formats asks which format a key has: such code would need a change for every new format."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scanner.watermark.format import Format
from scanner.watermark.formats import FORMATS
from scanner.watermark.native.keyed import GreenListMark, GumbelMark
from scanner.watermark.stacks.shared import StackMark
from tests.support.syntax_trees import tree_of

ROOT = Path(__file__).parents[1]


def below(base: type) -> Iterator[type]:
    """All classes that are made from one, at any remove."""
    for subclass in base.__subclasses__():
        yield subclass
        yield from below(subclass)


CLASSES = {one.__name__ for base in (Format, StackMark, GreenListMark, GumbelMark) for one in below(base)}
"""Formats, and what they are when opened: `scanner.watermark.formats` imports the files of all."""
PARAMETERS = {"gamma", "window", "method"}
FORMATS_AND_TABLES = {
    "scanner/watermark": "the formats",
    "scanner/gpu/marks.py": "which are scored on a GPU",
    "scanner/generation/mark.py": "which mark text",
    "scanner/generation/stacks": "how other stacks do",
    "scanner/generation/processor.py": "how the native ones do",
    "scanner/probe/hypotheses.py": "which a server may have in place of another",
    "scanner/power.py": "of which power is known",
    "scanner/research": "the paper's experiments, whose files name the paper's methods",
    "scanner/audit/calibration/calibration_plan.py": "the paper's experiment of p-values, likewise",
    "jobs/evaluate.py": "likewise",
    "jobs/keys.py": "the method of a new key that names none",
    "jobs/demo/__init__.py": "the demo's keys",
    "schemas/key_record.py": "reads labels of published records, which say whether messages are in groups",
    "scanner/evidence/check_claim.py": "a script for third parties, which stands alone and reads labels",
}
"""Places that may ask which format a key has, and their reasons."""


def formats_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in FORMATS:
            yield repr(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in PARAMETERS:
            yield f".{node.attr}"
        elif isinstance(node, ast.Name) and node.id in CLASSES:
            yield node.id
        elif isinstance(node, ast.alias) and node.name in CLASSES:
            yield f"import {node.name}"


@cache
def found() -> dict[str, list[str]]:
    """Names of formats, of their classes and parameters, by the file that uses them."""
    files = [path for top in ("schemas", "scanner", "jobs") for path in sorted((ROOT / top).rglob("*.py"))]
    names_of = {path: list(formats_in(tree_of(path))) for path in files}
    return {str(path.relative_to(ROOT)): names for path, names in names_of.items() if names}


@pytest.mark.seconds
def test_nobody_asks_which_format_it_is():
    outside = {file: names for file, names in found().items() if not file.startswith(tuple(FORMATS_AND_TABLES))}
    assert outside == {}


@pytest.mark.seconds
def test_nobody_is_allowed_to_who_does_not():
    idle = {place for place in FORMATS_AND_TABLES if not any(file.startswith(place) for file in found())}
    assert idle == set()


def test_all_opened_formats_are_known():
    assert {"Kgw", "SynthId", "ThreeBricks", "Vllm", "SglangUsers", "Sbw", "GreenList", "LogGumbel"} <= CLASSES
    assert {entry.__name__ for entry in FORMATS.values()} <= CLASSES


def test_a_question_is_found():
    code = "from x import Gumbel\nif key.method == 'gumbel' or isinstance(mark, GreenList): pass"
    assert sorted(formats_in(ast.parse(code))) == ["'gumbel'", ".method", "GreenList", "import Gumbel"]

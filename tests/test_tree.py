"""The tree as a reader meets it: one class a name, no function written twice, functions and files that can be read."""

import ast
import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax_trees import nodes_of

ROOT = Path(__file__).parents[1]
TAKE_MANY = {"kernel", "jit", "command", "option", "argument"}
"""Words of decorators of functions that may take more than eight parameters: kernels and commands."""

MANY = {
    "scanner/generation/mark.py: __init__": 10,
    "scanner/generation/processor.py: __init__": 11,
    "scanner/registry/keys.py: new_key": 10,
}
"""Functions that users call by keywords, each of which documentation names, and how many parameters they take."""


@functools.cache
def all_files() -> dict[str, tuple[ast.AST, ...]]:
    """All nodes of the syntax tree of each file of the product, its module first."""
    return {
        str(path.relative_to(ROOT)): nodes_of(path)
        for package in ("schemas", "scanner", "jobs", "infra")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not {"build", ".venv"} & set(path.parts)
    }


class WithoutNames(ast.NodeTransformer):
    """Replaces every name by the number of its first use, and drops annotations."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}

    def number(self, name: str) -> str:
        return self.numbers.setdefault(name, f"_{len(self.numbers)}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.number(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self.number(node.arg), None
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self.number("." + node.attr)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        node.arg = self.number(node.arg) if node.arg else None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(0)
        return node


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file, nodes in all_files().items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file}: {node.name}", node


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    return [one.arg for one in every if one.arg not in ("self", "cls")]


def body_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


@pytest.mark.seconds
def test_a_class_name_stands_for_one_class():
    found = defaultdict(list)
    for file, nodes in all_files().items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(file)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.seconds
def test_no_function_is_written_twice():
    """No two bodies of eight statements and more are equal up to names."""
    found = defaultdict(list)
    for name, node in functions():
        body = body_of(node)
        if sum(isinstance(one, ast.stmt) for statement in body for one in ast.walk(statement)) >= 8:
            without = WithoutNames()
            for parameter in parameters(node):
                without.number(parameter)
            text = ";".join(ast.dump(without.visit(ast.parse(ast.unparse(one)).body[0])) for one in body)
            found[hashlib.sha256(text.encode()).hexdigest()].append(name)
    assert len(found) > 500
    assert [names for names in found.values() if len(names) > 1] == []


def test_functions_take_eight_parameters_at_most():
    many = {}
    for name, node in functions():
        decorated = {
            one.id for decorator in node.decorator_list for one in ast.walk(decorator) if isinstance(one, ast.Name)
        }
        decorated |= {
            one.attr
            for decorator in node.decorator_list
            for one in ast.walk(decorator)
            if isinstance(one, ast.Attribute)
        }
        if len(parameters(node)) > 8 and not decorated & TAKE_MANY:
            many[name] = len(parameters(node))
    assert many == MANY


def test_a_file_is_read_in_one_sitting():
    long = {file: n for file in all_files() if (n := len((ROOT / file).read_text(encoding="utf-8").splitlines())) > 500}
    assert long == {}


NO_NAMES = {"asked", "instead", "located", "looked", "own", "pooled", "said", "seen", "shown", "taken", "told"}
"""Words that say what was done with a value and not what it is, as docs/contributing.md has it."""

NO_NOUNS = {
    *("Changed", "Decided", "Finished", "Given", "Gone", "How", "Like", "Listed", "Located", "Look", "Lost", "Made"),
    *("Marked", "OfFile", "Pooled", "Recorded", "Remembered", "Scored", "Stated", "Together", "Watched", "Which"),
    *("Written",),
}
"""Words that say how or what became of a thing, and not what the thing is: no class is named by one alone."""


def test_a_function_imports_nothing_that_its_file_has():
    """A module of ours that the file imports at its top, or the file itself, costs nothing late: files were merged."""
    late = []
    for path, nodes in all_files().items():
        known = {path.removesuffix(".py").replace("/", ".")}
        known |= {
            node.module for node in ast.iter_child_nodes(nodes[0]) if isinstance(node, ast.ImportFrom) and node.module
        }
        late += [
            f"{path}: {node.module}"
            for function in nodes
            if isinstance(function, ast.FunctionDef)
            for node in function.body  # what is tried may be missing
            if isinstance(node, ast.ImportFrom) and node.module in known
            if str(node.module).partition(".")[0] in ("schemas", "scanner", "jobs")
        ]
    assert not late


def test_names_say_what_a_value_is():
    found = set()
    for file, nodes in all_files().items():
        for node in nodes:
            match node:
                case ast.arg(arg=name):
                    found.add((file, name))
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add((file, name))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add((file, name))
    assert len(found) > 5000
    assert {f"{file}: {name}" for file, name in found if name.lower() in NO_NAMES} == set()


@pytest.mark.seconds
def test_a_class_is_named_by_a_noun():
    found = {node.name for nodes in all_files().values() for node in nodes if isinstance(node, ast.ClassDef)}
    assert len(found) > 500
    assert {name for name in found if name.strip("_") in NO_NOUNS} == set()


FIELDS_OF_DOCSTRING = re.compile(r"(?:^|[.;]\s+|\n)([a-z_]\w*(?:(?:, | and )[a-z_]\w*)*):\s")
"""Words before a colon that begins what a docstring says of a field, or of several."""

NO_FIELD = {"empty"}
"""Words before a colon that mean a value: `None` and numbers are no words that a field could be."""


def names_of_class(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Fields, methods and attributes of a class and of those it is made from."""
    found = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return found.union(*(names_of_class(base, classes) for base in bases))


def described_fields(node: ast.ClassDef) -> set[str]:
    """Fields of which the docstring of a class says something."""
    groups = FIELDS_OF_DOCSTRING.findall(ast.get_docstring(node) or "")
    return {name for group in groups for name in re.split(r", | and ", group)} - NO_FIELD


@pytest.mark.seconds
def test_the_docstring_of_a_class_speaks_of_its_fields():
    classes = {node.name: node for nodes in all_files().values() for node in nodes if isinstance(node, ast.ClassDef)}
    described = {
        node.name: described_fields(node)
        for node in classes.values()
        if any(isinstance(statement, ast.AnnAssign) for statement in node.body)
    }
    assert sum(map(len, described.values())) > 300
    gone = {name: fields - names_of_class(classes[name], classes) for name, fields in described.items()}
    assert {name: fields for name, fields in gone.items() if fields} == {}


def test_a_field_that_was_renamed_is_found_in_the_docstring():
    code = 'class Page:\n    """rows: of it, empty: none; first, last: of these."""\n    rows: int\n    last: int'
    tree = ast.parse(code).body[0]
    assert isinstance(tree, ast.ClassDef)
    assert described_fields(tree) - names_of_class(tree, {}) == {"first"}

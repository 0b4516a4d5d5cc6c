"""No function of the product is written twice."""

import ast
import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax_trees import nodes_of

ROOT = Path(__file__).parents[1]


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

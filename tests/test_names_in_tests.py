"""Names of the product that tests and documents speak of exist: no types are checked there, and imports may be late."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax_trees import tree_of

ROOT = Path(__file__).parents[1]
OURS = ("scanner", "jobs", "schemas", "infra", "tests")
DOTTED = re.compile(r"(?:scanner|jobs|schemas|tests)(?:\.\w+)+")
ADD_NO_NAMES = {"ABC", "Generic", "NamedTuple", "Protocol"}
"""Bases of others that give a class no name that tests take, but those of every tuple."""
OF_EVERY_TUPLE = {"_fields", "_make", "_field_defaults"}
IN_PROSE = re.compile(r"(?<![\w./-])(?:scanner|jobs|schemas)(?:\.[a-zA-Z]\w*){2,}")
OF_MODULE = re.compile(r"`(\w+(?:\.\w+)?)(?:\(\))?` of `?((?:scanner|jobs|schemas)[\w./]*\w)")
IMPORT = re.compile(r"^(?:from|import) scanner\b", re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@functools.cache
def file_of(module: str) -> Path | None:
    """The file of a module of ours; None: there is none."""
    path = ROOT / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that the statements of a module or a class bind, those in `if` and `try` too, but in no function."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name.partition(".")[0] for one in names)
            case ast.If() | ast.Try() | ast.With() | ast.For():
                parts = (getattr(node, field, []) for field in ("body", "orelse", "handlers", "finalbody"))
                inner = [one for part in parts for one in part]
                yield from bound_names([one for one in inner if isinstance(one, ast.stmt)])
                yield from bound_names([s for one in inner if isinstance(one, ast.ExceptHandler) for s in one.body])
            case _:
                for one in ast.walk(node):
                    if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                        yield one.id


@functools.cache
def names_of_module(module: str) -> frozenset[str]:
    """Names of a module: what it binds, the modules in its folder, and what its `__getattr__` finds by a string."""
    file = file_of(module)
    assert file is not None
    tree = tree_of(file)
    found = set(bound_names(tree.body))
    if "__getattr__" in found:
        found |= {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    if file.name == "__init__.py":
        found |= {path.stem for path in file.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
    return frozenset(found)


def source_of_name(module: str, name: str) -> tuple[str, str] | None:
    """Module and name that a name of a module stands for, through imports; None: it is not there."""
    file = file_of(module)
    if file is None or name not in names_of_module(module):
        return None
    for node in tree_of(file).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            for one in node.names:
                if (one.asname or one.name) == name and (node.module, one.name) != (module, name):
                    return source_of_name(node.module, one.name)
    return module, name


@functools.cache
def names_of_class(module: str, name: str) -> frozenset[str] | None:
    """Attributes of a class and of its bases; None: it is no class of ours, or one with a base of others."""
    source = source_of_name(module, name)
    if source is None:
        return None
    file = file_of(source[0])
    nodes = [] if file is None else [one for one in tree_of(file).body if isinstance(one, ast.ClassDef)]
    node = next((one for one in nodes if one.name == source[1]), None)
    if node is None:
        return None
    found = set(bound_names(node.body))
    found |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    for base in node.bases:
        of_base = ast.unparse(base).partition("[")[0]
        inherited = names_of_class(source[0], of_base)
        if inherited is None and of_base not in ADD_NO_NAMES:
            return None
        found |= inherited or set()
    return frozenset(found)


def is_there(dotted: str) -> bool:
    """Whether a module, a name of one, or an attribute of a class of one is what a dotted name says."""
    module, _, name = dotted.rpartition(".")
    if file_of(dotted) or (ROOT / dotted.replace(".", "/")).is_dir():
        return True
    if file_of(module):
        return name in names_of_module(module)
    outer, _, owner = module.rpartition(".")
    if not file_of(outer) or owner not in names_of_module(outer):
        return False
    attributes = names_of_class(outer, owner)
    return attributes is None or name in attributes


def replaced_names(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Owner and name of what `monkeypatch.setattr(owner, "name", …)` replaces."""
    match node:
        case ast.Call(func=ast.Attribute(attr=verb), args=[owner, ast.Constant(str(name)), *_]):
            if verb in ("setattr", "delattr", "object"):
                yield owner, name


def missing_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports, replaces or takes of a module, and that is not there."""
    imported, nodes = {}, list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            for one in node.names:
                dotted = f"{node.module}.{one.name}"
                imported[one.asname or one.name] = dotted
                if one.name != "*" and not is_there(dotted):
                    yield node.lineno, dotted
        elif isinstance(node, ast.Import):
            imported |= {one.asname: one.name for one in node.names if one.asname and file_of(one.name)}
    bound = {one.arg for one in nodes if isinstance(one, ast.arg)}
    bound |= {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    modules = {name: dotted for name, dotted in imported.items() if name not in bound}
    for node in nodes:
        taken = [(owner, name) for owner, name in replaced_names(node) if isinstance(owner, ast.Name)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            taken.append((node.value, node.attr))
        for owner, name in taken:
            dotted = modules.get(owner.id, "")
            known = bool(dotted) and (file_of(dotted) or is_class(dotted))
            if known and not name.startswith("__") and name not in OF_EVERY_TUPLE and not is_there(f"{dotted}.{name}"):
                yield node.lineno, f"{dotted}.{name}"
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(str(text)), *_]):
                if DOTTED.fullmatch(text) and not is_there(text):
                    yield node.lineno, text


def is_class(dotted: str) -> bool:
    """Whether a dotted name is a class of ours whose attributes are all known."""
    module, _, name = dotted.rpartition(".")
    return bool(file_of(module)) and names_of_class(module, name) is not None


def programs_in_strings(tree: ast.Module) -> Iterator[tuple[int, ast.Module]]:
    """Programs that a test hands to another process as a string of several lines, with the line they begin at."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and IMPORT.search(node.value):
            try:
                yield node.lineno, ast.parse(node.value)
            except SyntaxError:
                continue  # a template that is filled in first


@pytest.mark.seconds
def test_names_that_tests_and_examples_take_of_the_product_exist():
    missing, files, programs = [], 0, 0
    for folder in ("tests", "docs", "infra"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"build", ".venv"} & set(path.parts):
                files += 1
                strings = programs_in_strings(tree_of(path)) if path != Path(__file__) else ()
                for first, tree in ((1, tree_of(path)), *strings):
                    programs += first > 1
                    found = missing_names(tree)
                    missing += [f"{path.relative_to(ROOT)}:{first + line - 1}: {name}" for line, name in found]
    assert files > 400
    assert programs > 10
    assert missing == []


def test_names_that_code_of_documents_imports_exist():
    missing, blocks = [], 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for code in CODE.findall(path.read_text(encoding="utf-8")):
            blocks += 1
            missing += [f"{path.relative_to(ROOT)}: {name}" for _, name in missing_names(ast.parse(code))]
    assert blocks >= 4
    assert missing == []


def names_in_prose(text: str) -> Iterator[str]:
    """Dotted names of the product in a text, such as `scanner.power`, and those that it says to be of a module."""
    yield from IN_PROSE.findall(text)
    for name, module in OF_MODULE.findall(text):
        yield f"{module.removesuffix('.py').replace('/', '.')}.{name}"


@pytest.mark.seconds
def test_names_that_documents_docstrings_and_comments_speak_of_exist():
    missing, names = [], 0
    paths = [path for folder in ("scanner", "jobs", "schemas", "infra", "docs") for path in (ROOT / folder).rglob("*")]
    for path in [ROOT / "README.md", *sorted(paths)]:
        if path.suffix in (".md", ".py", ".toml", ".yaml", ".j2") and not {"build", ".venv"} & set(path.parts):
            found = set(names_in_prose(path.read_text(encoding="utf-8")))
            names += len(found)
            missing += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(found) if not is_there(name)]
    assert names > 400
    assert missing == []


def test_a_name_that_is_gone_is_found():
    code = """
from scanner.watermark import rule, text_windows as span_module
from scanner.watermark.rule import corrected, nothing
def test(monkeypatch):
    rule.gone(rule.corrected)
    monkeypatch.setattr(span_module, "not_there", 1)
    monkeypatch.setattr("scanner.watermark.rule.lost", 1)
    monkeypatch.setattr("scanner.watermark.rule.corrected", 1)
"""
    found = {name.rpartition(".")[2] for _, name in missing_names(ast.parse(code))}
    assert found == {"nothing", "gone", "not_there", "lost"}
    prose = (
        "as scanner.watermark.rule.lost has it, and `corrected` of `scanner/watermark/rule.py`, `Lost.of` of `jobs.cli`"
    )
    assert [name for name in names_in_prose(prose) if not is_there(name)] == [
        "scanner.watermark.rule.lost",
        "jobs.cli.Lost.of",
    ]

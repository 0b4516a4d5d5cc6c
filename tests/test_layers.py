"""The floors of the tree (lowest first) and who may import heavy packages; imports are read with ast, not run."""

import ast
import builtins
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.floors import FLOORS
from tests.support.syntax_trees import nodes_of, tree_of

ROOT = Path(__file__).parents[1]

EMPTY = {"scanner", "scanner.audit"}  # packages that hold packages only
OURS = {"schemas", "scanner", "jobs"}
TORCH = {"torch", "transformers", "triton", "accelerate", "safetensors", "gguf"}
HOLD_IMPORTS = ast.stmt | ast.ExceptHandler | ast.match_case
"""Nodes that an import can stand in or be."""
WITH_TORCH = {"scanner.gpu", "scanner.generation", "scanner.research"}


class Import(NamedTuple):
    """One imported module: where, and whether importing the file already imports it."""

    file: str
    line: int
    module: str
    eager: bool

    @property
    def package(self) -> str:
        return self.module.split(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    file = str(path.relative_to(ROOT))
    pending: list[tuple[ast.AST, bool]] = [(tree_of(path), True)]
    while pending:
        node, eager = pending.pop()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the floor; name the package"
            assert node.module is not None
            names = [node.module]
            if node.module in OURS:  # from scanner import watermark
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_type_checkers(node):
                eager = False
            pending += [(child, eager) for child in ast.iter_child_nodes(node) if isinstance(child, HOLD_IMPORTS)]
            continue
        for name in names:
            yield Import(file, node.lineno, name, eager)


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> str | None:
    return next((floor for floor in FLOORS if module == floor or module.startswith(floor + ".")), None)


FILES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


@functools.cache
def all_imports() -> list[tuple[str, Import]]:
    """Each import of the product, with the module that it stands in."""
    return [(module_name(path), found) for path in FILES for found in imports_of(path)]


def test_every_module_has_a_floor():
    assert [m for m in map(module_name, FILES) if floor_of(m) is None and m not in EMPTY] == []


def test_each_floor_imports_only_floors_below_it():
    wrong = []
    for module, found in all_imports():
        if found.package not in OURS:
            continue
        here, there = floor_of(module), floor_of(found.module)
        if here is None or there is None or (here != there and FLOORS.index(there) > FLOORS.index(here)):
            wrong.append(f"{found.file}:{found.line}: {here} imports {found.module}")
    assert wrong == []


def test_schemas_imports_nothing_of_ours_but_itself():
    others = [found for module, found in all_imports() if module.startswith("schemas") and found.package in OURS]
    assert [found for found in others if found.package != "schemas"] == []


def users_of(packages: set[str], *, allowed: set[str], eager_only: bool = False) -> list[str]:
    return [
        f"{found.file}:{found.line}: {found.module}"
        for module, found in all_imports()
        if found.package in packages and floor_of(module) not in allowed and (found.eager or not eager_only)
    ]


def test_the_science_takes_arrays_only():
    """Pydantic is allowed besides, since the parameters of formats are its models."""
    heavy = {"pyarrow", "ray", "torch", "polars", "pandas", "deltalake", "transformers", "tokenizers"}
    assert users_of(heavy, allowed=set(FLOORS) - {"scanner.watermark"}) == []


def test_only_the_cluster_imports_ray():
    assert users_of({"ray"}, allowed={"scanner.cluster"}) == []


def test_tables_are_opened_in_one_place():
    """`load_table` refuses a log that deltalake would read for ever. The input's tables have processes of their own."""
    openers = [
        file.relative_to(ROOT)
        for folder in ("scanner", "jobs")
        for file in (ROOT / folder).rglob("*.py")
        if any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DeltaTable"
            for node in nodes_of(file)
        )
    ]
    assert [str(file) for file in openers if file.parts[:2] != ("scanner", "input")] == ["scanner/storage/delta.py"]


def test_no_scan_imports_research():
    users = {module for module, found in all_imports() if found.module.startswith("scanner.research")}
    assert {module for module in users if floor_of(module) != "scanner.research"} == {"jobs.evaluate"}


def test_torch_is_eager_only_where_text_is_marked_or_a_device_used():
    assert users_of(TORCH, allowed=WITH_TORCH, eager_only=True) == []


def test_tests_are_imported_by_nothing():
    assert users_of({"tests", "hypothesis", "pytest"}, allowed=set()) == []


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("jobs.cli", TORCH | {"ray"}),
        ("scanner.detection.detector", TORCH | {"ray"}),
        ("scanner.controls.observation", TORCH | {"ray", "polars", "deltalake"}),  # of each worker
        ("scanner.watermark", TORCH | {"ray", "pyarrow", "polars", "deltalake", "tokenizers"}),
        # these also run alone, where nothing else of ours is installed
        (
            "scanner.gpu.runs, scanner.gpu.vectors",
            {"numba", "scanner.watermark", "transformers", "ray", "pyarrow", "pydantic"},
        ),
    ],
)
def test_importing_stays_light(modules, forbidden):
    code = f"import sys, {modules}; print(*sorted(set(sys.modules) & set({sorted(forbidden)!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_folders_of_tests_are_the_packages_of_scanner():
    """Five folders more belong to the whole tree: benchmarks, faults, the golden night, manifests, shared helpers."""
    of_the_whole = {"bench", "chaos", "golden", "infra", "support"}
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/*.py")}
    packages = {path.parent.name for path in (ROOT / "scanner").glob("*/__init__.py")}
    assert folders - of_the_whole == packages


def test_no_test_imports_from_a_test():
    """Helpers of several tests stand in tests/support, or beside the tests under a name of their own."""
    imported = [found for path in (ROOT / "tests").rglob("*.py") for found in imports_of(path)]
    assert [f for f in imported if f.module.startswith("tests.") and f.module.split(".")[-1].startswith("test_")] == []


def test_every_error_of_ours_stands_in_one_tree():
    """All stand in scanner.errors but `Terminated`, which ends a process and has to be a KeyboardInterrupt."""
    raised = {"BaseException", *(name for name, kind in vars(builtins).items() if is_error(kind))}
    roots = [
        (module_name(path), node.name)
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and raised & {ast.unparse(base) for base in node.bases}
    ]
    assert sorted(roots) == [
        ("scanner.errors", "BrickscanError"),
        ("scanner.errors", "InternalFault"),
        ("scanner.interrupts", "Terminated"),
    ]


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)

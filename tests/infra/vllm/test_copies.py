"""The wheel of brickscan-vllm holds files of this repository, which import no other module of ours."""

import ast
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DISTRIBUTION = ROOT / "infra" / "vllm"
COPIES = runpy.run_path(str(DISTRIBUTION / "copies.py"))

ALONE = """
import importlib, pathlib, sys
names = [".".join(p.relative_to(sys.argv[1]).with_suffix("").parts) for p in pathlib.Path(sys.argv[1]).rglob("*.py")]
for name in names:
    if name != "brickscan_vllm.plugin":  # which needs vLLM
        importlib.import_module(name.removesuffix(".__init__"))
heavy = {"scanner", "schemas", "jobs", "numba", "pyarrow", "transformers", "ray", "polars"}
print(len(names), *sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def imported(path: Path) -> set[str]:
    """Modules of brickscan that a file imports when it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("scanner.", "schemas."))
    }


@pytest.mark.parametrize("name", COPIES["COPIED"])
def test_a_copied_file_imports_copied_files(name):
    names = {module.replace(".", "/") + ".py" for module in imported(ROOT / name)}
    assert names <= {*COPIES["COPIED"]}


@pytest.mark.costly
def test_the_wheel_carries_the_files_of_this_repository(tmp_path):
    package = tmp_path / "brickscan_vllm"
    shutil.copytree(DISTRIBUTION / "brickscan_vllm", package, ignore=shutil.ignore_patterns("__pycache__"))
    COPIES["write_copies"](ROOT, tmp_path)
    for name in COPIES["COPIED"]:
        copy = (package / "copied" / name).read_text(encoding="utf-8")
        assert copy.replace("brickscan_vllm.copied.", "") == (ROOT / name).read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, sys.argv[1])\n{ALONE}", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, *heavy = done.stdout.split()
    assert int(count) >= len(COPIES["COPIED"]) + 10
    assert heavy == []

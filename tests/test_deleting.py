"""A capability is a folder and its lines in tables: without them the tree imports, has sound types, and scans."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from scanner.watermark.kernel import cache_folder
from tests.support.deleted import OURS
from tests.support.signed_tables import delete_results

ROOT = Path(__file__).parents[1]


class Capability(NamedTuple):
    """What is deleted: folders and files, and of some other files what matches a pattern, at least once."""

    paths: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]


def stack(name: str) -> Capability:
    formats = "scanner/watermark/formats.py"
    folder = f"scanner/watermark/stacks/{name}"
    return Capability((folder,), ((formats, rf"\b{name},\s*"), (formats, rf"\b{name}\.STACK,\s*")))


def marking_stack(name: str) -> Capability:
    """A stack by which text is marked, too."""
    paths, lines = stack(name)
    mark = "scanner/generation/mark.py"
    own = ((mark, rf"\b{name},\s*"), (mark, rf"\*\*{name}\.MARKING,\s*"))
    return Capability((*paths, f"scanner/generation/stacks/{name}.py"), lines + own)


def control(name: str, line: str) -> Capability:
    controls = "scanner/controls/controls.py"
    imported = rf"from scanner\.controls\.{name}\..*\n"
    return Capability((f"scanner/controls/{name}",), ((controls, imported), (controls, rf"\b{line}\(\),\s*")))


CAPABILITIES = {
    "ngram_filter": Capability(
        ("scanner/ngram_filter",),
        (
            ("scanner/filtering.py", r"from scanner\.ngram_filter.*\n"),
            ("scanner/filtering.py", r"\bCOMMON_NGRAMS,"),
        ),
    ),
    "night_comparison": Capability(
        ("scanner/night_comparison",),
        (
            ("scanner/comparing.py", r"from scanner\.night_comparison.*\n"),
            ("scanner/comparing.py", r"\bNIGHT_COMPARISON,"),
        ),
    ),
    "claims": Capability(("scanner/claims", "jobs/claim.py"), (("jobs/cli.py", r'    "claim": .*\n'),)),
    "probe": Capability(
        ("scanner/probe", "jobs/probe.py"),
        (("jobs/cli.py", r'    "probe": .*\n'), ("jobs/formats.py", r'    "probe": .*\n')),
    ),
    "huggingface": stack("huggingface"),
    "sbw": stack("sbw"),
    "sglang": marking_stack("sglang"),
    "synthid": stack("synthid"),
    "three_bricks": stack("three_bricks"),
    "vllm": marking_stack("vllm"),
    "accounts": Capability(
        ("scanner/looks/accounts",),
        (
            ("scanner/looks/looks.py", r"from scanner\.looks\.accounts.*\n"),
            ("scanner/looks/looks.py", r"\bAccounts\(\),"),
            ("scanner/looks/marked_accounts.py", r"from scanner\.looks\.accounts.*\n"),
            ("scanner/looks/marked_accounts.py", r"\bexplanation,"),
        ),
    ),
    "levels": Capability(
        ("scanner/looks/levels",),
        (
            ("scanner/looks/looks.py", r"from scanner\.looks\.levels.*\n"),
            ("scanner/looks/looks.py", r"\bLevels\(\),"),
            ("scanner/looks/rescoring.py", r"from scanner\.looks\.levels.*\n"),
            ("scanner/looks/rescoring.py", r"\bLevelRows\(\),"),
        ),
    ),
    "normal_form": Capability(
        ("scanner/looks/normal_form",),
        (
            ("scanner/looks/normalising.py", r"from scanner\.looks\.normal_form.*\n"),
            ("scanner/looks/normalising.py", r"\bfind_normal_forms,"),
        ),
    ),
    "parts": Capability(
        ("scanner/looks/parts",),
        (
            ("scanner/looks/text_parts.py", r"from scanner\.looks\.parts.*\n"),
            ("scanner/looks/text_parts.py", r"(?<=\()look,(?=\))"),
        ),
    ),
    "decoys": control("decoys", "DecoyControl"),
    "reserved": control("reserved", "ReservedControl"),
    "canaries": control("canaries", "CanaryControl"),
}


NAMES = [*CAPABILITIES]
ROWS = [NAMES[row::4] for row in range(4)]
COLUMNS = [NAMES[at : at + 4] for at in range(0, len(NAMES), 4)]
"""Capabilities that are deleted together, of a grid: by rows each once, by columns too while any other stays."""


def without(names: list[str], tree: Path) -> Path:
    """Copy the product, less capabilities."""
    for package in OURS:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", tree)
    for name in names:
        _delete(CAPABILITIES[name], tree)
    return tree


def _delete(capability: Capability, tree: Path) -> None:
    for path in (tree / name for name in capability.paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, pattern in capability.lines:
        file = tree / name
        text, deleted = re.subn(pattern, "", file.read_text(encoding="utf-8"))
        assert deleted, f"{name} has no line {pattern!r}"
        file.write_text(text, encoding="utf-8")


def run(tree: Path, *command: str) -> None:
    paths = os.pathsep.join(map(str, [tree, tree / "scanner/api", ROOT]))
    kernels = str(Path(cache_folder()).parent)
    environment = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": kernels}
    done = subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param(names, marks=pytest.mark.costly) for names in ROWS),
        *(pytest.param(names, marks=pytest.mark.long) for names in COLUMNS),
    ],
    ids=" ".join,
)
def test_deleting_a_capability(names, night, plain, marked, tmp_path, without_ray):
    """It takes a minute: the types of the tree are read from the cache of the last run of mypy, where there is one."""
    tree = without(names, tmp_path / "tree")
    if (cache := ROOT / ".mypy_cache").is_dir():
        shutil.copytree(cache, tree / ".mypy_cache")
    run(tree, "-m", "mypy", *OURS)

    night.write("a", [marked(1, 100, 1), *(plain(60, seed) for seed in range(8))])
    night.scan()
    whole = night.verdicts().drop("scan_id", "scanned_at")
    assert whole["flagged"].sum() == 1
    delete_results(night.results, night.registry)
    run(tree, "-m", "tests.support.deleted", str(night.config))
    assert night.verdicts().drop("scan_id", "scanned_at").equals(whole)

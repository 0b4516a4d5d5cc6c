"""Tables and files of a version are frozen; a later version reads them, and `brickscan migrate` moves tables on."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from scanner.storage.data_files import SCHEMAS
from scanner.watermark.kernel import cache_folder
from schemas.versions import FIRST_VERSION, NEW_COLUMNS, VERSION
from tests.support.command_line import call
from tests.support.deleted import OURS
from tests.support.forms import forms_now, recorded

ROOT = Path(__file__).parents[1]


def test_forms_are_those_of_the_version():
    """Where this fails, docs/contributing.md says how to raise the version."""
    assert forms_now() == recorded(VERSION)


def assert_adds_alone(
    before: dict[str, Any], after: dict[str, Any], new_columns: Mapping[str, tuple[str, ...]]
) -> None:
    """A version has all of the forms before it, its new columns are nullable and named, and its new fields optional."""
    for name, columns in before["tables"].items():
        old, new = [*columns.items()], [*after["tables"][name].items()]
        assert new[: len(old)] == old
        assert not [kind for _, kind in new[len(old) :] if kind.endswith("never null")]
        assert tuple(column for column, _ in new[len(old) :]) == new_columns.get(name, ())
    for file, fields in before["files"].items():
        now = after["files"][file]
        assert not [field for field in fields if field not in now]
        assert not [field for field, need in now.items() if need == "needed" and fields.get(field) != "needed"]


def test_versions_add_and_take_nothing_away():
    for version in range(FIRST_VERSION + 1, VERSION + 1):
        assert_adds_alone(recorded(version - 1), recorded(version), NEW_COLUMNS[version])


def assert_new_columns_are_columns() -> None:
    for version, tables in NEW_COLUMNS.items():
        assert FIRST_VERSION < version <= VERSION
        for name, columns in tables.items():
            assert {*columns} <= {*SCHEMAS[name].names}


def test_new_columns_are_columns():
    """Of no table yet; the test below makes one in a copy of the tree, and looks at it there."""
    assert_new_columns_are_columns()


LAST_OF_SCANS = next(
    line for line in (ROOT / "schemas/tables.py").read_text().splitlines(keepends=True) if '"level_shards_left"' in line
)
EDITS = (
    ("schemas/versions.py", f"\nVERSION = {VERSION}\n", f"\nVERSION = {VERSION + 1}\n"),
    (
        "schemas/versions.py",
        "tuple[str, ...]]] = {",
        f'tuple[str, ...]]] = {{{VERSION + 1}: {{"scans": ("machine",)}}, ',
    ),
    ("schemas/tables.py", LAST_OF_SCANS, LAST_OF_SCANS + '        pa.field("machine", pa.string()),\n'),
    (
        "scanner/cluster/scan.py",
        '        "scan_id": begun.scan_id,\n',
        '        "scan_id": begun.scan_id, "machine": "m1",\n',
    ),
)
"""What docs/contributing.md says of a version, done for a column `machine` of `scans`."""


FORMS = """
import json
from tests.support.forms import forms_now
from tests.test_versions import NEW_COLUMNS, assert_new_columns_are_columns
assert NEW_COLUMNS
assert_new_columns_are_columns()
print(json.dumps(forms_now()))
"""
"""Prints the forms of a tree, whose new columns are columns."""


def raised(tree: Path) -> Path:
    """Copy the product, its version raised."""
    for package in OURS:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", tree)
    for name, before, after in EDITS:
        file = tree / name
        text = file.read_text(encoding="utf-8")
        assert text.count(before) == 1, (name, before)
        file.write_text(text.replace(before, after), encoding="utf-8")
    return tree


class Tree:
    """A copy of the product, whose commands run in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: object) -> tuple[int, str]:
        """Exit code and output of a Python command."""
        paths = os.pathsep.join(map(str, [self.folder, self.folder / "scanner/api", ROOT]))
        kernels = str(Path(cache_folder()).parent)
        environment = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": kernels}
        arguments = [sys.executable, *map(str, command)]
        done = subprocess.run(arguments, cwd=self.folder, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


@pytest.mark.costly
def test_tables_and_files_are_moved_one_version_on(night, own_registry, plain, marked, tmp_path, without_ray):
    # 1. a night of this version, with signed tables
    night.configure()
    night.write("a", [marked(1, 100, 1), *(plain(60, seed) for seed in range(8))])
    scan_id = night.scan().scan_id
    results = Path(night.results)
    whole = pl.scan_delta(f"{results / 'verdicts'}").collect()

    # 2. the next version refuses its tables by name, moves them on once, and adds to them
    tree = Tree(raised(tmp_path / "tree"))
    code, said = tree.run("-c", FORMS)
    assert code == 0, said
    assert_adds_alone(recorded(VERSION), json.loads(said), {"scans": ("machine",)})
    brickscan = ("-m", "jobs.cli")
    code, said = tree.run(*brickscan, "status", night.config)
    assert code == 2
    assert f"has version {VERSION} of an earlier brickscan" in said
    assert "brickscan migrate" in said
    code, said = tree.run(*brickscan, "migrate", night.config)
    assert code == 0, said
    assert said.count(f"upgraded from version {VERSION} to {VERSION + 1}") == len([*results.glob("*/_delta_log")])
    code, said = tree.run(*brickscan, "migrate", night.config)
    assert (code, "nothing to upgrade" in said) == (0, True)
    night.write("b", [plain(60, seed) for seed in range(8, 12)])
    code, said = tree.run("-m", "tests.support.deleted", night.config)
    assert code == 0, said

    # 3. old rows are what they were, the new column is empty in them, and every byte is signed still
    verdicts = pl.scan_delta(f"{results / 'verdicts'}").collect()
    earlier = verdicts.filter(scan_id=scan_id).select(whole.columns)
    assert earlier.sort("path", "row").equals(whole.sort("path", "row"))
    assert verdicts.height == whole.height + 4
    machines = dict(pl.scan_delta(f"{results / 'scans'}").select("scan_id", "machine").collect().iter_rows())
    assert machines.pop(scan_id) is None
    assert [*machines.values()] == ["m1"]
    code, said = tree.run(*brickscan, "sign", night.config, "--dry-run")
    assert (code, "as brickscan left it" in said) == (0, True), said

    # 4. files of rows of both versions are read by evidence, rewritten and merged
    for command in (
        ("flagged", night.config),
        ("redate", night.config, scan_id, "--date", "2026-01-02"),
        ("compact", night.config),
    ):
        code, said = tree.run(*brickscan, *command)
        assert code == 0, said
    nights = dict(pl.scan_delta(f"{results / 'scans'}").select("scan_id", "night").collect().iter_rows())
    assert nights[scan_id] == "2026-01-02"

    # 5. keys.toml is read as it is, and written in the new version, which the earlier one refuses as it does the tables
    code, said = tree.run(*brickscan, "keys", "retire", "green", "--registry", own_registry, "--yes")
    assert code == 0, said
    assert f"version = {VERSION + 1}\n" in (own_registry / "keys.toml").read_text()
    for command in (("status", results), ("keys", "list", "--registry", own_registry)):
        code, _, said = call(*command)
        assert (code, "a newer brickscan" in said) == (2, True), said


@pytest.mark.costly
def test_an_edited_table_is_not_moved_on(night, own_registry, plain, tmp_path, without_ray):
    night.write("a", [plain(60, seed) for seed in range(8)])
    night.scan()
    table = Path(night.results) / "verdicts"
    (part,) = table.glob("part-*.parquet")
    tree = Tree(raised(tmp_path / "tree"))
    log = table / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.write_text(newest.read_text().replace(part.name[5:10], "00000"))
    code, said = tree.run("-m", "jobs.cli", "migrate", night.config)
    assert (code, "verdicts" in said) == (2, True), said
    for name in ("flags", "scans"):
        assert (
            f'"brickscan.version":"{VERSION}"'
            in (Path(night.results) / name / "_delta_log/00000000000000000000.json").read_text()
        )
        assert not [
            commit
            for commit in (Path(night.results) / name / "_delta_log").glob("*.json")
            if f'"{VERSION + 1}"' in commit.read_text()
        ]

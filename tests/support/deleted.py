"""Import a whole tree and scan one night with it, in a process of its own: `python -m tests.support.deleted SCAN_TOML`.

The tree is the current folder, in which a test has deleted something.
"""

import importlib
import sys
from pathlib import Path

import pytest

OURS = ("schemas", "scanner", "jobs")


def import_all(root: Path) -> None:
    """Import every module of a tree. A module for which the machine lacks another's package is passed over."""
    for path in sorted(path for package in OURS for path in (root / package).rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        try:
            file = importlib.import_module(name).__file__
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] in OURS:
                raise
        else:
            assert Path(file or "").is_relative_to(root), f"{name} comes from another tree: {file}"


def scan(config: Path) -> None:
    """Scan the night of a configuration, without Ray."""
    from scanner.cluster.scan import run_scan
    from scanner.scan_plan import make_plan
    from tests.support.without_ray import put_in_the_place_of_ray

    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        run_scan(make_plan(config), lambda _work, _totals: None)


if __name__ == "__main__":
    import_all(Path.cwd())
    scan(Path(sys.argv[1]))

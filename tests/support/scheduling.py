"""Which process of pytest-xdist runs which files of tests."""

import functools
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[2]


class OneCluster(LoadFileScheduling):
    """One file to a process at a time, all that need Ray to the same: a second cluster takes CPU seconds."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "files that need Ray" if _needs_ray(file) else file


@functools.cache
def _needs_ray(file: str) -> bool:
    return "ray_cluster" in (ROOT / file).read_text(encoding="utf-8")

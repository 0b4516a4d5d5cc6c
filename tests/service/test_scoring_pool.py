"""The pool of the detector goes on after whatever happens in its processes."""

import asyncio
import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from scanner.service.processes import Unavailable
from scanner.service.scoring import ScoringPool

ROOT = Path(__file__).parents[2]


@pytest.mark.seconds
def test_a_process_is_confined_by_a_user_who_is_not_root():
    """None could begin, so that the detector was never ready but for root."""
    as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # wherever Python is
    nobody = [] if os.geteuid() else ["setpriv", *as_nobody, *reads]
    if nobody and shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    code = "from scanner.service.processes import confine_process; confine_process()"
    assert subprocess.run([*nobody, sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.costly
def test_a_call_that_raises_is_answered_and_takes_no_process(monkeypatch):
    def new(pool, _served):
        process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.processes.add(process)
        return process

    async def calls() -> tuple[int, int]:
        pool, served = ScoringPool(1, 60, b""), object()
        await pool.serve(served)
        with pytest.raises(Unavailable, match="could not be looked at"):
            await asyncio.wait_for(pool.run("caller", divmod, 1, 0), 60)
        (result, by), _ = await asyncio.wait_for(pool.run("caller", divmod, 7, 2), 60), pool.stop()
        assert by is served
        return result

    monkeypatch.setattr(ScoringPool, "_new", new)
    assert asyncio.run(calls()) == (3, 1)

"""The pool of the detector goes on after whatever happens in its processes."""

import asyncio
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from scanner.service.processes import Unavailable
from scanner.service.scoring import ScoringPool

ROOT = Path(__file__).parents[2]


AS_NOBODY = """\
import ctypes, os
from scanner.service.processes import confine_process
if not os.geteuid():
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a program has it that begins: whoever changes its user loses it
confine_process()
"""


@pytest.mark.seconds
def test_a_process_is_confined_by_a_user_who_is_not_root():
    """None could begin, so that the detector was never ready but for root."""
    assert subprocess.run([sys.executable, "-c", AS_NOBODY], cwd=ROOT, check=False).returncode == 0


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

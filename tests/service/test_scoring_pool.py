"""The pool of the detector goes on after whatever happens in its processes."""

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from scanner.service.processes import Unavailable
from scanner.service.scoring import ScoringPool


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

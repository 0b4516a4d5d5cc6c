"""The pool of the detector goes on after whatever happens in its processes."""

import asyncio
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from scanner.service import scoring
from scanner.service.processes import Unavailable
from scanner.service.scoring import ScoringPool

ROOT = Path(__file__).parents[2]


AS_NOBODY = """\
import ctypes, os
from scanner.service import scoring
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


class RaisesOnce:
    """In the place of a Scorer: raises at a text, and finds nothing to speak of in others."""

    def find_marks(self, texts: list[bytes]) -> list[bytes]:
        if b"raise" in texts:
            raise ValueError("raise")
        return texts


def put_scorer() -> None:
    scoring._scorer = RaisesOnce()


@pytest.mark.costly
def test_texts_that_cannot_be_looked_at_are_refused_and_take_no_process(monkeypatch):
    """Nor an answer of those that are looked at with them."""

    def new(pool, _served):
        process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), put_scorer)
        pool.processes.add(process)
        return process

    async def find(*together: list[bytes]) -> list[object]:
        pool, served = ScoringPool(1, 60, b""), object()
        await pool.serve(served)
        asked = [pool.find_marks(place, texts) for place, texts in enumerate(together)]
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        pool.stop()
        assert pool.killed == 0
        return [str(each) if isinstance(each, Unavailable) else each[0] for each in found]

    monkeypatch.setattr(ScoringPool, "_new", new)
    refused = "This text could not be looked at. Ask again, or with less of it."
    assert asyncio.run(find([b"raise"], [b"a", b"b"])) == [refused, [b"a", b"b"]]
    assert asyncio.run(find([b"a"], [b"raise"], [b"b"], [b"c", b"raise"])) == [[b"a"], refused, [b"b"], refused]

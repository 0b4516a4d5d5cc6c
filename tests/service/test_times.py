"""When answers leave: at fixed times, whatever they took."""

import asyncio

import pytest

from scanner.service.answering import _leave
from schemas.service import CHARACTERS, SPREAD, TICKS


@pytest.mark.parametrize("part", [0.0, 0.75])
@pytest.mark.parametrize(("size", "tick"), [(100, TICKS[0]), (CHARACTERS[0] + 1, TICKS[1])])
@pytest.mark.parametrize(("worked", "doubled"), [(0.0, 1), (0.5, 1), (0.995, 2), (1.5, 2), (31, 32), (70, 96)])
def test_answers_leave_at_a_tick_of_their_length_class(size, tick, worked, doubled, part):
    async def seconds() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time() - worked * tick
        await _leave(began, size, part)
        return loop.time() - began

    leaves = tick * doubled + SPREAD * part
    assert leaves - 0.001 <= asyncio.run(seconds()) < leaves + tick / 2  # a busy machine is late, and never early

"""When answers leave: at fixed times, whatever they took."""

import asyncio
import itertools

from scanner.service.answering import _leave
from schemas.service import CHARACTERS, SPREAD, TICKS


async def _seconds(size: int, worked: float, part: float) -> float:
    """Seconds after its request when an answer leaves that took so long to be made."""
    loop = asyncio.get_running_loop()
    began = loop.time() - worked
    await _leave(began, size, part)
    return loop.time() - began


def test_answers_leave_at_a_tick_of_their_length_class():
    classes = [(100, TICKS[0]), (CHARACTERS[0] + 1, TICKS[1])]
    parts_of_ticks = [(0.0, 1), (0.5, 1), (0.995, 2), (1.5, 2), (31, 32), (70, 96)]
    cases = list(itertools.product(classes, parts_of_ticks, [0.0, 0.75]))

    async def all_at_once() -> list[float]:
        return await asyncio.gather(*(_seconds(size, worked * tick, part) for (size, tick), (worked, _), part in cases))

    for ((_, tick), (_, doubled), part), found in zip(cases, asyncio.run(all_at_once()), strict=True):
        leaves = tick * doubled + SPREAD * part
        assert leaves - 0.001 <= found < leaves + tick / 2  # a busy machine is late, and never early

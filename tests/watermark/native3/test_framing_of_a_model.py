"""Attempts to have somebody else named in text of SmolLM2: they succeed under version 1 and fail under version 3.

Twenty stored texts a cell (model_texts.py); `make framing-model` writes 200 and names their file in FRAMING_OF_A_MODEL.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.bench.wrong_names import take_turns
from tests.watermark.native3 import attacks
from tests.watermark.native3.attacks import move, splice
from tests.watermark.native3.model_texts import (
    OF_A_GROUP,
    OWN,
    QUERIED,
    SHARED,
    STORED,
    TOKENS,
    VOCABULARY,
    Cell,
    cells,
    read,
)

pytestmark = pytest.mark.seconds

RATE = 1e-6
CELLS = list(cells())
SHARES = [(1,), (1, 1), (4, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1), (8, 4, 2, 1, 1, 1)]
"""Shares of a collage that are its users'."""


@pytest.fixture(scope="module")
def texts() -> dict[Cell, list]:
    return read(Path(os.environ.get("FRAMING_OF_A_MODEL", STORED)))


def test_the_stored_texts_are_small():
    assert STORED.stat().st_size < 300_000


def names(cell: Cell, of_cell: Sequence) -> list[set[int]]:
    """Whom a scan names for each text, at 1e-6 of both rates."""
    return attacks.named(cell.mark(), list(of_cell), cell.messages, RATE, RATE)[0]


def moved(cell: Cell, of_cell: Sequence, victims: np.ndarray) -> list[np.ndarray]:
    """Texts in which every (h+1)-th token x of account a is x + a − b, for the victim b."""
    shifts = (cell.accounts(len(of_cell)) - victims).tolist()
    return [move(text, by, cell.window + 1) % VOCABULARY for text, by in zip(of_cell, shifts, strict=True)]


def several(count: int, users: int, *, one_group: bool) -> Iterator[list[int]]:
    """Places of so many different accounts, from each account on: neighbours of its group, or of group by group."""
    by_groups = [list(range(begin, min(begin + OF_A_GROUP, count))) for begin in range(0, count, OF_A_GROUP)]
    in_turns = sorted(range(count), key=lambda place: place % OF_A_GROUP)
    for order in by_groups if one_group else [in_turns]:
        for first in range(len(order)):
            yield [order[(first + turn) % len(order)] for turn in range(users)]


def framed(found: list[set[int]], victims: np.ndarray) -> float:
    """Share of texts for which the victim alone is named."""
    return float(np.mean([of_text == {victim} for of_text, victim in zip(found, victims.tolist(), strict=True)]))


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.version == 1 and cell.kind == OWN], ids=str)
def test_moved_tokens_name_the_victim_under_version_1(cell, texts):
    of_cell = texts[cell]
    victims = cell.victims(len(of_cell))
    share = framed(names(cell, moved(cell, of_cell, victims)), victims)
    print(f"{cell}: {share:.2f} of {len(of_cell)} framed by moved tokens")
    assert share > 0


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.version == 1 and cell.kind == QUERIED], ids=str)
def test_queries_name_the_victim_under_version_1(cell, texts):
    of_cell = texts[cell]
    victims = cell.victims(len(of_cell))
    share = framed(names(cell, of_cell), victims)
    print(f"{cell}: {share:.2f} of {len(of_cell)} framed by queries")
    assert share >= 0.5


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.version == 3 and cell.kind == OWN], ids=str)
def test_moved_tokens_and_splices_name_nobody_else_under_version_3(cell, texts):
    """Three accounts of one group, and of several, put their texts together; 20 texts give 4e-6 wrong names a case."""
    of_cell = texts[cell]
    own = cell.accounts(len(of_cell))
    for victims in (cell.victims(len(own)), np.roll(own, 2 * OF_A_GROUP)):
        for found, author in zip(names(cell, moved(cell, of_cell, victims)), own.tolist(), strict=True):
            assert found <= {author}
    for one_group in (True, False):
        three = list(several(len(own), 3, one_group=one_group))
        spliced = names(cell, [splice([of_cell[place] for place in places]) for places in three])
        for found, places in zip(spliced, three, strict=True):
            assert found <= set(own[places].tolist())


@pytest.mark.parametrize("one_group", [True, False])
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.groups and cell.kind == OWN], ids=str)
def test_texts_of_several_name_their_users_alone(cell, one_group, texts):
    """Collages of one to six users, equal and unequal parts, of one group and of several."""
    of_cell = texts[cell]
    own = cell.accounts(len(of_cell))
    for shares in SHARES:
        lengths = [TOKENS * share // max(shares) for share in shares]
        places = list(several(len(own), len(shares), one_group=one_group))
        collages = [take_turns([of_cell[at][:n] for at, n in zip(row, lengths, strict=True)]) for row in places]
        named = names(cell, collages)
        assert all(found <= set(own[row].tolist()) for found, row in zip(named, places, strict=True))
        right = np.mean([len(found) for found in named])
        print(f"{cell} {shares} {one_group=}: {right:.2f} of {len(shares)} users named in each of {len(named)} texts")
        assert len(shares) > 1 or right >= 0.5


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.version == 3 and cell.kind == QUERIED], ids=str)
def test_queries_name_nobody_under_version_3(cell, texts):
    assert not any(names(cell, texts[cell]))


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.kind == SHARED], ids=str)
def test_text_of_group_steps_alone_names_nobody(cell, texts):
    """It is marked for a whole group and nobody of it. Without rule 2, the best of the group is named."""
    found, flagged = attacks.named(cell.mark(), texts[cell], cell.messages, RATE, RATE)
    assert not any(found)
    print(f"{cell}: {flagged.mean():.2f} of {len(flagged)} flagged")
    loose, _ = attacks.named(cell.mark(), texts[cell], cell.messages, RATE, 0.999_999)
    assert any(loose) == flagged.any()

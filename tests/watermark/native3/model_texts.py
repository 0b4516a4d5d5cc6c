"""Texts that SmolLM2 wrote for test_framing_of_a_model.py, and who holds which message in them.

Each cell is a mark under one key with texts of one kind; all its texts are of different accounts, seven to a group.
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scanner.watermark import GreenList, Gumbel
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel, Version3Mark
from tests.watermark.pairs import SECRET

STORED = Path(__file__).with_name("model_texts.parquet")
SCHEMA = pa.schema(
    {
        "version": pa.int64(),
        "method": pa.string(),
        "window": pa.int64(),
        "groups": pa.int64(),
        "kind": pa.string(),
        "ids": pa.list_(pa.uint16()),
    }
)
GROUPS = 100
VOCABULARY = 49_152
TOKENS = 120
"""Most tokens of a text."""
OF_A_GROUP = 7
"""Most accounts of a group."""

OWN, QUERIED, SHARED = "own", "queried", "shared"
"""Kinds of texts: marked for their account; written by an account that asks the marked model for each token x, and
writes x + a − b to accuse b; marked in the steps alone that a group shares."""


class Cell(NamedTuple):
    """Texts of one kind under one key; groups: None without, as in version 1."""

    version: int
    method: str
    window: int
    groups: int | None
    kind: str

    def mark(self) -> GreenList | Gumbel | Version3Mark:
        """The opened key."""
        green = self.method == "greenlist"
        if self.version == 1:
            return GreenList(SECRET, self.window, Fraction(1, 4)) if green else Gumbel(SECRET, self.window)
        if green:
            return Version3GreenList(SECRET, self.window, Fraction(1, 4), self.groups)
        return Version3Gumbel(SECRET, self.window, self.groups)

    @property
    def messages(self) -> int:
        """M, the messages that a text is searched for."""
        return 2000 if self.groups is None else self.groups**2

    def accounts(self, count: int) -> NDArray[np.int64]:
        """The messages of so many accounts, int64[count]: seven neighbours are of one group."""
        places = np.arange(count)
        if self.groups is None:
            return 7 * places + 3
        return places // OF_A_GROUP * self.groups + (11 * places) % self.groups

    def victims(self, count: int) -> NDArray[np.int64]:
        """Whom each account accuses, int64[count]: the next account of its group, or by turns one of the next group."""
        places = np.arange(count)
        return self.accounts(count)[(places + np.where(places % 2, OF_A_GROUP, 1)) % count]


def cells() -> Iterator[Cell]:
    """All cells: both versions and marks, windows of 4, 1 and 0, of which the last has no groups.

    Moved tokens are too few at a window of 4 to name anybody in short texts of version 1.
    """
    for window, groups in ((4, GROUPS), (1, GROUPS), (0, None)):
        for method in ("greenlist", "gumbel"):
            if window < 4:
                yield Cell(1, method, window, None, OWN)
            yield Cell(1, method, window, None, QUERIED)
            yield Cell(3, method, window, groups, OWN)
            yield Cell(3, method, window, groups, QUERIED)
            if groups:
                yield Cell(3, method, window, groups, SHARED)


def read(path: Path) -> dict[Cell, list[NDArray[np.uint32]]]:
    """The texts of each cell, as token ids, in the order of its accounts."""
    found: dict[Cell, list[NDArray[np.uint32]]] = {}
    for *cell, ids in zip(*pq.read_table(path).to_pydict().values(), strict=True):
        found.setdefault(Cell(*cell), []).append(np.array(ids, np.uint32))
    return found


def write(path: Path, texts: dict[Cell, list[NDArray[np.uint32]]]) -> None:
    """Write the texts of each cell, as small as possible."""
    rows = [{**cell._asdict(), "ids": ids} for cell, of_cell in texts.items() for ids in of_cell]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, compression="zstd", compression_level=19)

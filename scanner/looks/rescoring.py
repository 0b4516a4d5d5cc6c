"""Define the interface of looks that do not score a text by its plain sum.

Evidence scores their rows again through it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from scanner.detection.attribution import OpenedKey
from scanner.error_shares import ErrorShares
from scanner.errors import Refused
from scanner.looks.levels.on_record import LevelRows
from scanner.looks.text_parts import PARTS_LOOKS
from scanner.watermark.format import ProofPath
from schemas.config import ScanConfig
from schemas.registry import MasterKey
from schemas.words import SPAN


class RowScoring(Protocol):
    """An object that scores a text as the look of its row did."""

    def takes(self, key: MasterKey) -> bool:
        """Return whether the look scores texts under a key."""

    def shares(self, shares: ErrorShares) -> ErrorShares:
        """Return the shares of the rate with which the look tests a text.

        Raises:
            Refused: the configuration states none.
        """

    def keys(self, opened_keys: Sequence[OpenedKey]) -> list[OpenedKey]:
        """Return keys that score the text as the look does.

        Raises:
            Refused: the record belongs to another text.
        """

    def slow_path(self, path: ProofPath, opened_key: OpenedKey) -> ProofPath:
        """Return the slow path that scores the text as the look does.

        Raises:
            Refused: as `keys`.
        """


class RowLook(Protocol):
    """A look whose rows are scored again."""

    @property
    def name(self) -> str:
        """Return its value in the column `look`."""

    def recorded(
        self, results: str, row: Mapping[str, Any], scan: Mapping[str, Any] | None, text: str, where: str
    ) -> RowScoring:
        """Return the scoring by the record of a row's text.

        Args:
            results: folder or URI.
            row: row of VERDICTS.
            scan: its row of SCANS. None: the scan did not end.
            text: the text that was scored.
            where: the flag, in words.

        Raises:
            Refused: the text is not on record, or was changed.
        """

    def today(
        self, config: ScanConfig, base: Path, scan: Mapping[str, Any], text: str, where: str
    ) -> RowScoring | None:
        """Return the scoring by present readings of the look.

        None: there cannot be any. `base`: start of relative paths.
        """

    def compare(self, row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> tuple[str, bool, str]:
        """Compare a row with the verdict of today.

        Args:
            row: row of VERDICTS.
            verdict: verdict of today. None: there is none.

        Returns:
            A field's name, whether they agree, and the reason why not.
        """


ROW_LOOKS: tuple[RowLook, ...] = (LevelRows(),)
"""One line for each look whose rows are scored again."""


def row_look(look: str | None, where: str) -> RowLook | None:
    """Return the look of a row. None: the plain sum gave the verdict, of the whole text or of a part.

    Args:
        look: `look` of the row.
        where: the flag, in words.

    Raises:
        Refused: this brickscan does not have the look that gave the verdict.
    """
    if look is None or (look == SPAN and PARTS_LOOKS):
        return None
    for row_look in ROW_LOOKS:
        if row_look.name == look:
            return row_look
    raise Refused(f"{where}: its verdict came from the look {look!r}, which this installation does not have")

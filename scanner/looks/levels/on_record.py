"""Score a flag by levels again, from the recorded reading of the model or from a reading now."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.attribution import OpenedKey
from scanner.error_shares import ErrorShares
from scanner.errors import Refused
from scanner.looks.levels.token_levels import LevelPaths, TextLevels, keys_with_levels, pinned_reader
from scanner.results.queries import ask
from scanner.results.transactions import read_whole
from scanner.watermark.format import ProofPath
from scanner.watermark.formats import can_have_levels
from scanner.watermark.level_laws import CHARACTERS_READ
from schemas.config import ScanConfig
from schemas.registry import MasterKey
from schemas.words import LEVELS

_ROUNDING = 0.1
"""Share by which log10 p of a text may be weaker when a model reads it now.

Another device rounds its sums differently.
"""


class LevelScoring:
    """Scores a text whose tokens count by levels.

    Args:
        text: the text.
        steps: uint8[C], steps of surprise of its characters.
        where: the flag, in words.
    """

    def __init__(self, text: str, steps: NDArray[np.uint8], where: str) -> None:
        self._text, self._steps, self._where = text, steps, where

    def takes(self, key: MasterKey) -> bool:
        """Return whether tokens can count by levels under a key."""
        return can_have_levels(key)

    def shares(self, shares: ErrorShares) -> ErrorShares:
        """Return the shares of a text whose tokens count by levels.

        Raises:
            Refused: none are stated any more.
        """
        if shares.levels is None:
            raise Refused(
                f"{self._where}: it was flagged by levels, but the configuration no longer states their share of the "
                "rate; restore [levels] as the scan had it"
            )
        return shares.for_levels()

    def keys(self, opened_keys: Sequence[OpenedKey]) -> list[OpenedKey]:
        """Return keys under which the text's tokens count by levels.

        Raises:
            Refused: the levels belong to another text.
        """
        return keys_with_levels(opened_keys, self._levels(opened_keys))

    def slow_path(self, path: ProofPath, opened_key: OpenedKey) -> ProofPath:
        """Return the slow path on which tokens count by levels.

        Raises:
            Refused: the levels belong to another text.
        """
        return LevelPaths(self._levels([opened_key]))(path, opened_key)

    def _levels(self, opened_keys: Sequence[OpenedKey]) -> TextLevels:
        if len(self._steps) != min(len(self._text), CHARACTERS_READ):
            raise Refused(
                f"{self._where}: the record of what the model expected covers {len(self._steps):,} characters, but "
                f"the text has {len(self._text):,}. Somebody changed the results: restore the table `flag_levels` "
                "from a backup"
            )
        levels = TextLevels.of_keys(opened_keys)
        levels.put([self._text], [self._steps])
        return levels


class LevelRows:
    """Scores rows of the look at levels again."""

    name = LEVELS

    def recorded(
        self, results: str, row: Mapping[str, Any], scan: Mapping[str, Any] | None, text: str, where: str
    ) -> LevelScoring:
        """Return the scoring by the record.

        Raises:
            Refused: the reading is not on record, or several are.
        """
        return LevelScoring(text, read_surprise(results, row, scan, where), where)

    def today(
        self, config: ScanConfig, base: Path, scan: Mapping[str, Any], text: str, where: str
    ) -> LevelScoring | None:
        """Return the scoring by a reading of the scan's model now. None: it is not configured, or cannot read here."""
        by = config.levels
        with contextlib.suppress(Refused, ImportError):  # without torch no model reads
            if by is not None:
                by = by.model_copy(update={"model": str(base / by.model)})
                reader = pinned_reader(by, scan["reader_sha256"])
                return LevelScoring(text, reader.surprise([text])[0], where)
        return None

    def compare(self, row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> tuple[str, bool, str]:
        """Compare a flag with the verdict of today, except for rounding.

        Otherwise a person who writes the tables and knows the key could choose levels by the draws, and all else would
        be equal.

        Args:
            row: row of the flag.
            verdict: verdict of today. None: there is none, so nothing is compared.

        Returns:
            The field.
            Whether they agree.
            The reason why not.
        """
        field, not_compared, differs = (
            "reading",
            "the record was not compared with the model: name the same model in [levels] to have it read the text "
            "again",
            "the model's reading of the text differs from the record, so the record may have been chosen by somebody",
        )
        if verdict is None:
            return field, True, not_compared
        agrees = verdict["flagged"] and all(verdict[name] == row[name] for name in ("key_id", "message"))
        agrees = agrees and verdict["log10_p_global"] <= (1 - _ROUNDING) * row["log10_p_global"]
        return field, agrees, "" if agrees else differs


def read_surprise(
    results: str, row: Mapping[str, Any], scan: Mapping[str, Any] | None, where: str
) -> NDArray[np.uint8]:
    """Read the steps of surprise of each character of a flag's text (scanner.watermark.level_laws), uint8[C].

    Raises:
        Refused: they are no longer on record, several are, or they come from another model than the scan's.
    """

    def readings() -> pl.DataFrame:
        of_flag = (pl.col(name) == row[name] for name in ("scan_id", "shard_id", "row", "text_sha256"))
        rows = read_whole(results, "flag_levels", pl.Series([row["path"]])).filter(*of_flag)
        return rows.select("reader_sha256", "surprise").unique().collect()

    found = ask(results, readings)
    if found.is_empty():
        raise Refused(
            f"{where}: there is no record of what the model expected of the text: it was erased with a name, or its "
            "night was dropped; scan the file again with the same [levels] into new results"
        )
    is_of_scan = scan is None or found["reader_sha256"].to_list() == [scan["reader_sha256"]]
    if len(found) > 1 or not is_of_scan:
        raise Refused(
            f"{where}: the record of what the model expected is duplicated or is not from the scan's model. Somebody "
            "changed the results: restore the table `flag_levels` from a backup"
        )
    return np.frombuffer(found["surprise"][0], np.uint8)

"""The filter that scans may have, through which the rest of the tree reaches it; without its line there is none.

A filter leaves positions out of scoring that a platform's own templates repeat. What scoring itself asks of it is in
scanner.detection.left_out.
"""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scanner.detection.left_out import NO_FILTER, LeftOut, NgramFilter
from scanner.errors import Refused
from scanner.follow_up import CommittedScan, OnActors
from scanner.key_support import ScanFilter
from scanner.ngram_filter import COMMON_NGRAMS
from scanner.scan_plan import Plan
from scanner.watermark import Tokens


class FilterOfNight(Protocol):
    """What scans of a night leave out."""

    @property
    def sha256(self) -> str:
        """Its digest."""

    @property
    def night(self) -> str:
        """Its night, such as 2026-11-22."""

    @property
    def is_empty(self) -> bool:
        """Whether it leaves out nothing, since no earlier night was learnt."""

    @property
    def scan_filter(self) -> ScanFilter:
        """What it leaves out, for keys that were admitted with a filter."""

    def open(self) -> NgramFilter:
        """Return what scoring leaves out."""


class Filtering(Protocol):
    """A filter, whole."""

    @property
    def least_reach(self) -> int:
        """Fewest previous tokens that a filtered key reads."""

    def fix(self, plan: Plan, scan_id: str | None) -> Plan:
        """Return the plan with the filter of its night, where it asks for one.

        scan_id: the scan, which makes and keeps the filter if the night has none; None: no scan, and nothing is
            written.

        Raises:
            Refused: the tables cannot be opened or made, the night's filter is lost, or a key was admitted with a
                filter that leaves out more.
            SecretError: the audit secret cannot be read.
            ScanFailed: they cannot be written.
        """

    def open(self, results: str, sha256: str, secret: bytes) -> NgramFilter:
        """Open the filter of this digest.

        secret: the one under which n-grams are hashed (TextIds.ngram_secret).

        Raises:
            Refused: the filter is gone, is not the one that was recorded, or was made under another audit secret.
        """

    def of_config(self, config_file: Path, night: date) -> FilterOfNight | None:
        """Return the filter that scans of a configuration use on a night; None: it asks for none. Writes nothing.

        Raises:
            Refused: the configuration or its registry cannot be right, or a table cannot be read.
            SecretError: the audit secret cannot be read.
        """

    def digests(self, results: str, night: date) -> set[str]:
        """Return digests of the filters that scans of a night had, or have from now on."""

    def learn(self, scan: CommittedScan, on_actors: OnActors) -> None:
        """Learn from a scan of all files of the input, for later nights. Return at once where nothing is left to do.

        Raises:
            ScanFailed: tables cannot be read or written.
        """

    def find_common(
        self, texts: Iterable[tuple[Tokens, NDArray[np.uint64]]], reach: int, seed: bytes, common_from: int
    ) -> NDArray[np.uint8]:
        """Find what so many distinct texts hold, for an audit: as `left_out` takes it.

        texts: tokens, with a number of each text by its digest.
        """

    def left_out(self, reach: int, seed: bytes, common: NDArray[np.uint8]) -> LeftOut:
        """Return what an audit leaves out under keys that read so many previous tokens."""


FILTERS: tuple[Filtering, ...] = (COMMON_NGRAMS,)
"""The filter that there is, on a line that can be taken out with its folder."""


def fix_filter(plan: Plan, scan_id: str | None) -> Plan:
    """See Filtering.fix. Raises Refused: the plan asks for a filter, and there is none."""
    for each in FILTERS:
        return each.fix(plan, scan_id)
    if plan.config.filter is not None:
        raise Refused("[filter]: this brickscan has no filter; leave the section out")
    return plan


def open_filter(results: str, sha256: str | None, secret: bytes) -> NgramFilter:
    """See Filtering.open; sha256: None: no filter."""
    if sha256 is None:
        return NO_FILTER
    return filtering().open(results, sha256, secret)


def filter_of_config(config_file: Path, night: date) -> FilterOfNight | None:
    """See Filtering.of_config; None where there is no filter at all."""
    return next((each.of_config(config_file, night) for each in FILTERS), None)


def filtering() -> Filtering:
    """Return the filter. Raises Refused: there is none."""
    for each in FILTERS:
        return each
    raise Refused("n-grams were left out by a filter, which this brickscan does not have")

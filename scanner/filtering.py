"""Reach the filter that scans may have.

All other code uses it through this file. Without the line in FILTERS there is none.

A filter leaves out of scoring the positions that a platform's own templates repeat. scanner.detection.left_out defines
the interface that scoring needs.
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
    """The filter of a night's scans."""

    @property
    def sha256(self) -> str:
        """Return its digest."""

    @property
    def night(self) -> str:
        """Return its night, such as 2026-11-22."""

    @property
    def is_empty(self) -> bool:
        """Return whether it leaves out nothing, because it learnt from no earlier night."""

    @property
    def scan_filter(self) -> ScanFilter:
        """Return its limits, for keys that were admitted with a filter."""

    def open(self) -> NgramFilter:
        """Return the n-grams that scoring leaves out."""


class Filtering(Protocol):
    """A whole filter: it learns, fixes and opens the filters of nights."""

    @property
    def least_reach(self) -> int:
        """Return the fewest previous tokens that a filtered key reads."""

    def fix(self, plan: Plan, scan_id: str | None) -> Plan:
        """Return the plan with the filter of its night, if it asks for one.

        scan_id: id of the scan. It makes and keeps the filter if the night has none. None: there is no scan, and
            nothing is written.

        Raises:
            Refused: the tables cannot be opened or made, the night's filter is lost, or a key was admitted with a
                filter that leaves out more.
            SecretError: the audit secret cannot be read.
            ScanFailed: they cannot be written.
        """

    def open(self, results: str, sha256: str, secret: bytes) -> NgramFilter:
        """Open the filter of this digest.

        secret: the secret under which n-grams are hashed (TextIds.ngram_secret).

        Raises:
            Refused: the filter is gone, is not the recorded one, or was made under another audit secret.
        """

    def of_config(self, config_file: Path, night: date) -> FilterOfNight | None:
        """Return the filter that scans of a configuration use on a night. None: it asks for none. Nothing is written.

        Raises:
            Refused: the configuration or its registry cannot be right, or a table cannot be read.
            SecretError: the audit secret cannot be read.
        """

    def digests(self, results: str, night: date) -> set[str]:
        """Return digests of the filters that scans of a night had, or have from now on."""

    def learn(self, scan: CommittedScan, on_actors: OnActors) -> None:
        """Learn from a scan of all files of the input, for later nights. If nothing is left to do, return at once.

        Raises:
            ScanFailed: tables cannot be read or written.
        """

    def find_common(
        self, texts: Iterable[tuple[Tokens, NDArray[np.uint64]]], reach: int, seed: bytes, common_from: int
    ) -> NDArray[np.uint8]:
        """Find n-grams that at least `common_from` distinct texts contain, for an audit. `left_out` takes the result.

        texts: tokens, and for each text a number made of its digest.
        """

    def left_out(self, reach: int, seed: bytes, common: NDArray[np.uint8]) -> LeftOut:
        """Return the n-grams that an audit leaves out under keys that read `reach` previous tokens."""


FILTERS: tuple[Filtering, ...] = (COMMON_NGRAMS,)
"""The only filter, on a line that can be deleted together with its folder."""


def fix_filter(plan: Plan, scan_id: str | None) -> Plan:
    """See Filtering.fix.

    Raises:
        Refused: the plan asks for a filter, and there is none.
    """
    for each in FILTERS:
        return each.fix(plan, scan_id)
    if plan.config.filter is not None:
        raise Refused("[filter]: this installation has no filter; remove the section")
    return plan


def open_filter(results: str, sha256: str | None, secret: bytes) -> NgramFilter:
    """See Filtering.open. A `sha256` of None means no filter."""
    if sha256 is None:
        return NO_FILTER
    return filtering().open(results, sha256, secret)


def filter_of_config(config_file: Path, night: date) -> FilterOfNight | None:
    """See Filtering.of_config. None if there is no filter at all."""
    return next((each.of_config(config_file, night) for each in FILTERS), None)


def filtering() -> Filtering:
    """Return the filter.

    Raises:
        Refused: there is none.
    """
    for each in FILTERS:
        return each
    raise Refused("n-grams were left out by a filter, which this installation does not have")

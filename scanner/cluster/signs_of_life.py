"""Give signs of life of a worker. If a worker is silent for too long, the driver takes it for hung and ends it.

The time of a batch is estimated generously, from only the bytes of its texts. A batch is cut into parts of
PART_TEXT_BYTES, or fewer bytes if so many would take long. Before each part, the worker says within how many seconds
its next sign is due. Parts are not smaller than necessary, because each costs some milliseconds under every key.

The generous estimate is 20 to 3,000 times too long. It is therefore only used until a part was scored. From then on,
the pace of this worker decides: its seconds for each estimated second.
"""

import math
import time
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.cluster.pieces import Busy
from scanner.cluster.todo import seconds_a_byte
from scanner.detection.proving import SECONDS_A_TOKEN, TOKENS_PROVED
from scanner.scan_plan import Plan
from scanner.watermark.formats import format_of
from scanner.watermark.parts import FEW_SEARCHES, LONGEST_AT_ONCE, MOST_SEARCHES
from scanner.watermark.rule import RANK_DECOYS, SECONDS_OF_A_RANK

PART_TEXT_BYTES = 2**20
"""Bytes of text that are scored between two signs of life, unless they take longer than SECONDS_A_PART.

Values computed from so many bytes stay in a cache of some MB.
"""

FIRST_PART = 60.0
"""Estimated seconds of a worker's first part, before anything was measured."""

SECONDS_A_PART = 5.0
"""Seconds of later parts, at the pace of earlier parts."""

LEAST_PACE = 1e-3
"""Least pace that is used. Texts that are too short to be scored take almost no time, and say little about others."""

TIMES_THE_PACE = 30.0
"""Factor on the time of a part of many texts, at the worker's pace, after which the driver takes the worker for hung.

A byte of the slowest texts takes some ten times as long as a byte of others.
"""

SIGNS_APART = 1.0
"""Seconds between two signs of life, except before work that may take longer. The driver receives each sign."""

LEAST_TEXT_BYTES = 2**14
"""Fewest bytes of text that are scored between two signs of life."""


class SignsOfLife:
    """Cuts batches, and says before each part how long it may take.

    Args:
        plan: the plan under which texts are scored.
        reading_seconds: seconds that a model takes for a byte of text before it is scored. 0: no model reads.
        windows_at_once: whether every key searches messages in all windows of a short text at once.
        on_device: whether texts are scored on a device. A batch is then not cut.
    """

    def __init__(
        self, plan: Plan, reading_seconds: float = 0.0, *, windows_at_once: bool = False, on_device: bool = False
    ) -> None:
        self._plan = plan
        self.seconds_a_byte = seconds_a_byte(plan) + reading_seconds
        self._windows_at_once, self._on_device = windows_at_once, on_device
        self._signed = -math.inf  # when the driver had the last sign of life
        self._estimated = self._measured = 0.0  # seconds of the last parts; the newest weigh most

    def seconds_of(self, documents: pa.RecordBatch) -> NDArray[np.float64]:
        """Return a generous estimate of the seconds to score each of D documents: float64[D]."""
        sizes = sizes_of(documents.column("text"))
        short = np.where(sizes <= LONGEST_AT_ONCE, self._share_of_short, 1.0)
        return np.asarray((sizes + 8) * short * self.seconds_a_byte, np.float64)  # + 8: an empty text takes time too

    def cut(self, batch: pa.RecordBatch, *, one_by_one: bool = False) -> Iterator[pa.RecordBatch]:
        """Cut a batch into parts, each after the one before was scored. On a device, do not cut it."""
        if one_by_one:
            yield from (batch.slice(row, 1) for row in range(len(batch)))
            return
        sizes, seconds = sizes_of(batch.column("text")), self.seconds_of(batch)
        begin = 0
        while begin < len(batch):
            end = len(batch)
            if not self._on_device:
                most_seconds = max(self._estimate_of_part, LEAST_TEXT_BYTES * self.seconds_a_byte)
                end = min(end_of_part(sizes, begin, PART_TEXT_BYTES), end_of_part(seconds, begin, most_seconds))
            began = time.monotonic()
            yield batch.slice(begin, end - begin)
            self._measured = self._measured / 2 + time.monotonic() - began
            self._estimated = self._estimated / 2 + float(seconds[begin:end].sum())
            begin = end

    def before(self, documents: pa.RecordBatch, behind: int, *, single: bool) -> Iterator[Busy]:
        """Announce the documents that are scored next, if a sign is due. Before a single document it always is.

        behind: number of rows that will be done when the first row of the file is next.
        """
        text_bytes = documents.column("text").nbytes
        scoring = self._longest(self.seconds_of(documents))
        proving = min(text_bytes, TOKENS_PROVED) * self._seconds_a_proof
        ranking = sum(
            min(RANK_DECOYS * text_bytes * seconds, SECONDS_OF_A_RANK * len(documents))
            for seconds in self._seconds_ranked
        )
        expected, now = scoring + proving + ranking, time.monotonic()
        if single or expected >= SIGNS_APART or now - self._signed >= SIGNS_APART:
            self._signed = now
            first = documents["row"][0].as_py()
            yield Busy(self._within(expected), behind + first, first if single else None)

    def after_single(self, batch: pa.RecordBatch, behind: int) -> Busy:
        """Report that single documents are done. No document is to blame for a read or write that comes next."""
        return Busy(self._within(0.0), behind + batch["row"][-1].as_py() + 1)

    def _within(self, expected: float) -> float:
        return self._plan.config.cluster.stall_seconds + SIGNS_APART + expected

    @property
    def pace(self) -> float | None:
        """Return the measured seconds for each estimated second. None: nothing was scored yet."""
        return max(self._measured / self._estimated, LEAST_PACE) if self._estimated else None

    @property
    def _estimate_of_part(self) -> float:
        """Return the estimated seconds of the next part."""
        return FIRST_PART if self.pace is None else SECONDS_A_PART / self.pace

    def _longest(self, seconds: NDArray[np.float64]) -> float:
        """Return the most seconds that a part of texts may take, from their estimated seconds, float64[D]."""
        estimated = float(seconds.sum())
        if self.pace is None:
            return estimated
        # any single text may take its whole estimate, but many texts are similar to those before
        return min(estimated, TIMES_THE_PACE * self.pace * estimated + float(seconds.max(initial=0.0)))

    @cached_property
    def _share_of_short(self) -> float:
        """Return the seconds per byte of a text of at most LONGEST_AT_ONCE bytes over those of a longer text."""
        if self._plan.weights.span is None:
            return 1.0
        return FEW_SEARCHES / MOST_SEARCHES if self._windows_at_once else 1.0

    @cached_property
    def _seconds_a_proof(self) -> float:
        """Return the seconds to prove a token under all keys. Plain Python takes thirty times the format's seconds."""
        return sum(max(SECONDS_A_TOKEN, 30.0 * format_of(key).seconds(1)) for key in self._plan.keys)

    @cached_property
    def _seconds_ranked(self) -> list[float]:
        """Return the seconds to rank a byte, under all keys that rank flagged texts.

        All texts of a batch may be flagged.
        """
        formats = [(format_of(key), key.messages) for key in self._plan.keys]
        return [form.seconds(messages) for form, messages in formats if not form.basis().proven]


def end_of_part(costs: NDArray[np.generic], begin: int, most: float) -> int:
    """Return where a part of a batch ends: after the document that brings its costs to `most`.

    costs: costs of each document, [D].
    """
    return min(begin + 1 + int(np.searchsorted(np.cumsum(costs[begin:]), most)), len(costs))


def sizes_of(texts: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Return the bytes of stored texts, int64[D]."""
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False), np.int64)

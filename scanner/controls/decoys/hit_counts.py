"""Count hits of decoys, and how many the law expects, in sums that add up over pieces, shards and nights."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, ClusterSums
from scanner.controls.decoys.distinct import DECOY_KEYS, DecoyDraws
from scanner.controls.decoys.draws import Decoys
from scanner.detection.attribution import BatchOrigin, OpenedKey
from scanner.watermark import Format, Watermark
from scanner.watermark.format import format_name
from schemas.audit import AUDIT_COUNTS


@dataclass(frozen=True)
class HitSubject:
    """The subject of a set of hits, as columns of AUDIT_COUNTS."""

    kind: str
    messages: int
    label: str
    stratum: str | None = None


class HitCounts:
    """Sums over clusters, by their subject. origin and dedup are as in each row."""

    def __init__(self, origin: BatchOrigin, dedup: str) -> None:
        self._origin, self._dedup = origin, dedup
        self._sums: dict[HitSubject, ClusterSums] = {}
        self._draws: dict[HitSubject, DecoyDraws] = {}

    def compare(self, form: Format, messages: int, marks: Sequence[Watermark]) -> None:
        """Take opened decoys of a format, each made separately. They must not draw alike."""
        self._draws.setdefault(HitSubject(DECOY_KEYS, messages, form.label()), DecoyDraws(form)).add(marks)

    def add(self, subject: HitSubject, sums: ClusterSums) -> None:
        """Add sums over clusters to those of their subject."""
        self._sums[subject] = self._sums[subject].plus(sums) if subject in self._sums else sums

    def rows(self) -> list[pa.RecordBatch]:
        """Return the counts, as rows of AUDIT_COUNTS."""
        shared = self._origin._asdict() | {"dedup": self._dedup, "scanned_at": datetime.now(UTC)}
        rows: list[dict[str, Any]] = []
        for subject, sums in self._sums.items():
            columns = {"threshold": DEEP_THRESHOLDS[: len(sums.hits)], **sums.columns()}
            same = shared | _columns_of(subject)
            rows += [same | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for subject, draws in self._draws.items():
            pairs = {name: values[0] for name, values in draws.compare().columns().items()}
            rows.append(shared | _columns_of(subject) | pairs | {"threshold": draws.chance, "text": draws.least})
        return [pa.RecordBatch.from_pylist(rows, AUDIT_COUNTS)] if rows else []


def _columns_of(subject: HitSubject) -> dict[str, Any]:
    return {
        "kind": subject.kind,
        "messages": subject.messages,
        "method": format_name(subject.label),
        "label": subject.label,
        "stratum": subject.stratum,
    }


class DecoyHits(HitCounts):
    """Hits of decoys of single keys.

    Args:
        origin: as in each row.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin) -> None:
        super().__init__(origin, decoys.dedup)
        self._decoys = decoys

    def count(
        self, kind: str, opened_key: OpenedKey, sums: ClusterSums, messages: int, stratum: str | None = None
    ) -> None:
        """Add sums over clusters that were counted under decoys of a key."""
        how = self._decoys.kinds[opened_key.key.key_id].format
        self.add(HitSubject(kind, messages, how.label(), stratum), sums)

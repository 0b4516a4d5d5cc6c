"""What a scan cost: core-seconds by stage, documents and bytes a core-hour, and the work that took longest."""

from typing import TYPE_CHECKING, NamedTuple

from scanner.cluster.reports import Seconds
from scanner.input.shards import Shard

if TYPE_CHECKING:
    from scanner.cluster.commits import Totals


class Units(NamedTuple):
    """Units of work that came back, each a shard or a pack of small ones, by what they cost.

    number: how many there are; seconds: core-seconds of all of them, and slowest those of the slowest; shard: the
    slowest, or the first of its pack; None: nothing came back.
    """

    number: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    shard: Shard | None = None

    def and_also(self, shard: Shard, seconds: Seconds) -> "Units":
        """These and one more."""
        took, number, total = seconds.of_workers, self.number + 1, self.seconds + seconds.of_workers
        if self.shard is not None and took <= self.slowest:
            return self._replace(number=number, seconds=total)
        return Units(number, total, took, shard)


NO_UNITS = Units()


def costs(totals: "Totals") -> dict[str, object]:
    """The columns of schemas.tables.SCANS that say what a scan cost; those that need work are None without any."""
    spent, units, hours = totals.seconds, totals.units, totals.seconds.of_workers / 3600
    counts, shard = totals.counts, totals.units.shard
    return {
        "text_bytes": counts.text_bytes,
        "core_seconds": spent._asdict(),
        "documents_a_core_hour": counts.documents / hours if hours else None,
        "bytes_a_core_hour": counts.text_bytes / hours if hours else None,
        "slowest_shard": shard and shard.shard_id,
        "slowest_path": shard and shard.file.path,
        "slowest_row": shard and shard.rows.start,
        "slowest_seconds": units.slowest if shard else None,
        "skew": units.slowest * units.number / units.seconds if units.seconds else None,
    }

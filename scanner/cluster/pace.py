"""The size of pieces: so many documents that the worker takes ten-odd seconds, as far as this scan has shown."""

from collections.abc import Iterable

from scanner.cluster.reports import Seconds
from scanner.detection.scan_plan import Plan
from scanner.input.shards import Shard
from scanner.watermark.formats import format_of
from scanner.watermark.span_search import MOST_SEARCHES

SECONDS_A_PIECE = 15.0
"""Seconds that a piece is to take; a shard that takes less than twice as long stays whole."""

SLOW_SHARD = 600.0
"""Seconds of a shard, by the generous count of `seconds_a_byte`, from which on its first piece is a small one; that
count is 20 to 300 times too long.
"""

FIRST_DOCUMENTS = 256
"""Documents of a piece of a slow shard, before any piece has come back."""

LEAST_DOCUMENTS = 16
"""Fewest documents of a piece, unless its shard has fewer: each piece opens a file and writes others."""


def seconds_a_byte(plan: Plan) -> float:
    """Seconds of scoring a byte of text under a plan's keys, generously: at most a token a byte."""
    searches = 1 if plan.weights.span is None else MOST_SEARCHES
    return searches * sum(format_of(key).seconds(key.messages) for key in plan.keys)


class Pace:
    """Says how many documents a piece may have, from the pieces that came back; the newest count most.

    Args:
        seconds: seconds of scoring a byte of text, generously; 0: shards stay whole until a piece has come back.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._generous = seconds
        self._documents = self._seconds = 0.0

    def measured(self, documents: int, seconds: Seconds) -> None:
        """Take what a piece took."""
        if documents and seconds.of_workers:
            self._documents = self._documents / 2 + documents
            self._seconds = self._seconds / 2 + seconds.of_workers

    def most(self, documents: int, text_bytes: int) -> int:
        """Documents of the next piece of so many documents, with so many bytes of text: a power of two, or all.

        Pieces of one size are read on from where the one before ended (scanner.input.documents.Reader).
        """
        if self._seconds:
            most = max(int(SECONDS_A_PIECE * self._documents / self._seconds), LEAST_DOCUMENTS)
        elif self._generous * text_bytes < SLOW_SHARD:
            return documents
        else:
            most = FIRST_DOCUMENTS
        return documents if documents <= 2 * most else 1 << most.bit_length() - 1

    def pieces(self, documents: int, text_bytes: int) -> int:
        """How many pieces so many documents, with so many bytes of text, would be cut into now."""
        return -(-documents // self.most(documents, text_bytes)) if documents else 1

    def pieces_of(self, shards: Iterable[Shard]) -> int:
        """How many pieces shards would be cut into now: so many workers find work."""
        return sum(self.pieces(shard.rows.stop - shard.rows.start, shard.rows.text_bytes) for shard in shards)

"""Cut a Parquet file into shards: row ranges, with an id that hashes everything that the verdicts of a shard depend on.

Cutting is a function of a file's Parquet metadata only. A second run, with any configuration and on any cluster,
therefore gets the same shards, and can leave out those that are committed. If several drivers share a night, a hash of
a file's path decides whose file it is.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from scanner.errors import FileFault
from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.tables import rows_sha256
from schemas.registry import MasterKey

MAX_ROWS = 20_000


MAX_TEXT_BYTES = 16 * 2**20


MOST_SHARDS = 2**14
"""Most shards of a file: 3·10^8 rows, or 256 GiB of text. A footer of a few bytes may claim any number of rows."""


RESULTS_VERSION = 3
"""Version of the verdicts.

It is raised when the same text under the same keys gets another verdict than before. Every night that was ever scanned
is then scanned again. 2: a text's form decides its weights. 3: the normal form of three rules, and long runs of unseen
characters are cut off.

It is not raised if a text that was in quarantine is now scored, because no verdict changes.
"""


class Range(NamedTuple):
    """Rows start … stop−1 of a file, and the approximate bytes of their text."""

    start: int
    stop: int
    text_bytes: int

    @property
    def documents(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Shard:
    """The unit of commitment: a row range of one file under a set of tests.

    shard_id: 64 hex digits.
    first_scanned: time at which an earlier scan, under other tests, had the same file.
    keys: ids of the keys that scan it, if these are not all keys under test.
    """

    shard_id: str
    file: InputFile
    rows: Range
    first_scanned: datetime | None = None
    keys: tuple[str, ...] = ()


def cut(groups: Sequence[RowGroup]) -> list[Range]:
    """Cut a file into ranges of at most MAX_ROWS rows and MAX_TEXT_BYTES of text.

    Whole row groups are combined while they fit. A row group that exceeds the limits by itself is cut evenly by rows. A
    single row of any length is never cut. Rows come in order, each exactly once. Row groups without rows vanish.

    Raises:
        FileFault: the file would have far more ranges than MOST_SHARDS.
    """
    rows, text_bytes = sum(group.rows for group in groups), sum(group.text_bytes for group in groups)
    if rows // MAX_ROWS + text_bytes // MAX_TEXT_BYTES > MOST_SHARDS:
        size = f"{rows} rows with {text_bytes} bytes of text"
        raise FileFault("unreadable", f"the footer claims {size}, more than {MOST_SHARDS} shards; split the file")
    ranges: list[Range] = []
    packed = Range(0, 0, 0)
    for group in groups:
        if not _fits(packed.stop - packed.start + group.rows, packed.text_bytes + group.text_bytes):
            ranges.append(packed)
            packed = Range(packed.stop, packed.stop, 0)
            if not _fits(group.rows, group.text_bytes):
                ranges += _evenly(group, packed.stop)
                packed = Range(packed.stop + group.rows, packed.stop + group.rows, 0)
                continue
        packed = Range(packed.start, packed.stop + group.rows, packed.text_bytes + group.text_bytes)
    return [rows for rows in [*ranges, packed] if rows.stop > rows.start]


def _fits(rows: int, text_bytes: int) -> bool:
    return rows <= MAX_ROWS and text_bytes <= MAX_TEXT_BYTES


def _evenly(group: RowGroup, first: int) -> list[Range]:
    max_rows = min(MAX_ROWS, max(MAX_TEXT_BYTES * group.rows // max(group.text_bytes, 1), 1))
    parts = -(-group.rows // max_rows)
    bounds = [group.rows * i // parts for i in range(parts + 1)] if parts else []
    return [Range(first + a, first + b, group.text_bytes * (b - a) // group.rows) for a, b in pairwise(bounds)]


def verdict_settings(
    keys: Sequence[MasterKey],
    keys_tested: int,
    dedup: str,
    min_scored: int,
    columns: Columns,
    variants: Sequence[str] = (),
    weights: Mapping[str, float] = MappingProxyType({}),
    filter_sha256: str | None = None,
) -> str:
    """Write everything but the file that decides verdicts as canonical JSON: keys in order, K, rules, columns, version.

    Args:
        keys: the keys.
        keys_tested: number of keys with equal shares.
        dedup: the rule for repeats.
        min_scored: least number of scored tokens.
        columns: the columns that are read.
        variants: further variants of a text that are tested.
        weights: the weights of units and variants. They are left out if they are equal.
        filter_sha256: digest of the n-grams that are left out of scoring. None: none are.
    """
    from scanner.watermark.formats import (
        format_of,  # late: numba takes two seconds, and reading results needs none
    )

    return _canonical(
        {
            "results_version": RESULTS_VERSION,
            "keys": [
                {
                    "key_id": key.key_id,
                    **format_of(key).digest_fields(),
                    "messages": key.messages,
                    "commitment": key.commitment,
                    "tokenizer": key.tokenizer.sha256,
                    **({} if key.one_of is None else {"one_of": key.one_of}),
                }
                for key in keys
            ],
            # A later key changes nothing for keys with weights, and ids are older than the weights of variants, when
            # each variant counted as so many keys more.
            "keys_tested": None if all(key.one_of is not None for key in keys) else keys_tested * (1 + len(variants)),
            "dedup": dedup,
            "min_scored": min_scored,
            "columns": columns.names,
            # ids are older than these fields
            **({} if columns.time_zone == "UTC" else {"time_zone": columns.time_zone}),
            **({"variants": list(variants)} if variants else {}),
            **({"weights": dict(weights)} if weights else {}),
            **({"filter": filter_sha256} if filter_sha256 else {}),
        }
    )


def key_set(key_ids: Iterable[str]) -> str:
    """Compute the digest of the ids of keys that were tested together, in any order: 64 hex digits."""
    return _digest(sorted(key_ids))


def shard_id(file: InputFile, rows: Range | None, settings: str) -> str:
    """Compute the SHA-256, in hex, of everything that decides a shard's rows.

    `rows` None: the file as a whole, which could not be read. For a file of a table, its values of partitions and its
    deleted rows count too, but not the table's version. A commit that leaves a file unchanged therefore changes none of
    its ids.
    """
    span = None if rows is None else [rows.start, rows.stop]
    fields = {"path": file.path, "size": file.size, "modified": file.modified, "rows": span, "decides": settings}
    if file.entry is not None:
        fields["entry"] = [file.entry.values, rows_sha256(file.entry.deleted)]
        if rows is None:  # a missing column may be added to the table later, while its files stay the same
            fields["columns"] = sorted(file.entry.columns)
    return _digest(fields)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


class DriverShare(NamedTuple):
    """A driver's share of the input, one of several parts, written `number/of`.

    A file's path alone decides its part. Parts are therefore disjoint and together contain all files, even if drivers
    list the input at different times. Parts of many files have about equal bytes.

    number: the number of the part, from 1.
    of: the number of parts.
    """

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> "DriverShare":
        """Read a part from its usual form, such as `1/3`.

        Raises:
            ValueError: the text names no part.
        """
        if not re.fullmatch("[0-9]{1,6}/[0-9]{1,6}", text):
            raise ValueError(f"{text!r} is not a part; write its number and the number of parts, for example 1/3")
        number, parts = map(int, text.split("/"))
        if not 1 <= number <= parts:
            raise ValueError(f"{text!r} is not a part; the number is 1 to {parts}, for example 1/{max(parts, 1)}")
        return cls(number, parts)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, file: InputFile) -> bool:
        """Return whether a file belongs to this part."""
        hashed = int.from_bytes(hashlib.sha256(file.path.encode()).digest()[:8])
        return hashed % self.of == self.number - 1

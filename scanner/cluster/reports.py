"""Questions to an actor and its answers: pieces of shards, signs of life, reports with their counts and times."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from scanner.errors import FileFault
from scanner.input.shards import Shard
from scanner.results.data_files import DataFile
from scanner.results.whole_input import SUMMED, WholeInput


class Piece(NamedTuple):
    """Rows start … stop−1 of a shard's file: the whole shard, or a part of one that failed as a whole.

    one_by_one: a worker made no progress over these rows; documents are scored one by one, each announced.
    """

    shard: Shard
    start: int
    stop: int
    one_by_one: bool = False


@dataclass(frozen=True)
class Counts:
    """Documents that were read, by result; text_bytes is their size, tokens the tokens of their verdicts.

    values_not_read: documents whose id, account or time cannot be read, and is null; proved, unproved: flags that a
    slow path confirmed, or did not; not_offered: flags without a slow path; in_future: documents whose own time, or
    their file's where they have none, is still to come; older_than_key: documents flagged under a key that was made
    after they existed; filtered: documents of which the filter left too few n-grams to be scored; canaries: flagged
    texts of canaries that were named right, beside those in `flagged`.
    """

    documents: int = 0
    too_short: int = 0
    quarantined: int = 0
    flagged: int = 0
    text_bytes: int = 0
    tokens: int = 0
    scored_in_part: int = 0
    in_future: int = 0
    older_than_key: int = 0
    values_not_read: int = 0
    proved: int = 0
    unproved: int = 0
    not_offered: int = 0
    filtered: int = 0
    canaries: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def whole_input(self) -> WholeInput:
        """The counts as those of a whole input, without files at fault."""
        return WholeInput(**{name: getattr(self, name) for name in SUMMED})


NOTHING = Counts()


class Seconds(NamedTuple):
    """Wall seconds by stage: five stages of the workers, summed over them, and `commit` of the driver.

    A worker has one core, so its seconds are core-seconds; with a GPU, the core waits for it. score: without the proofs
    of flags, which are `prove`.
    """

    read: float = 0.0
    tokenise: float = 0.0
    score: float = 0.0
    prove: float = 0.0
    write: float = 0.0
    commit: float = 0.0

    @property
    def of_workers(self) -> float:
        """Seconds of the workers, all stages together."""
        return sum(self) - self.commit

    def plus(self, other: "Seconds") -> "Seconds":
        """The sums by stage."""
        return Seconds(*(a + b for a, b in zip(self, other, strict=True)))


NO_TIME = Seconds()


Files = Mapping[str, tuple[DataFile, ...]]
"""Files that are no part of their tables yet, by table; one without rows is left out."""


@dataclass(frozen=True)
class Report:
    """Result of a piece: the files of its rows, or a fault of its file. peak_memory: the worker's, in bytes.

    set_aside: rows that are in none of the files, since their texts may need more memory than there is: each is to be
    a piece of its own.
    """

    files: Files = field(default_factory=dict)
    counts: Counts = NOTHING
    fault: FileFault | None = None
    peak_memory: int = 0
    seconds: Seconds = NO_TIME
    set_aside: tuple[int, ...] = ()


@dataclass(frozen=True)
class PackReport:
    """Results of whole shards that share files, in their order.

    counts: of each shard; None where it is to be scanned by itself, since its file is at fault or a text is large.
    """

    counts: tuple[Counts | None, ...]
    files: Files
    peak_memory: int
    seconds: Seconds


class Busy(NamedTuple):
    """A sign of life: the next one, or the report, is due within so many seconds.

    behind: rows that are done with; row: the only document that is worked on from now on; None: there may be several,
    or a file is read or written.
    """

    seconds: float
    behind: int = 0
    row: int | None = None

"""What there is to scan: footers are looked into, files cut into shards, and those left out that are committed."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import NamedTuple

from scanner.cluster.pieces import Pack
from scanner.detection.scan_plan import Plan
from scanner.errors import FileFault, Refused
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.input.shards import MAX_ROWS, MAX_TEXT_BYTES, Shard, cut, shard_id
from scanner.results.freezing import done_in_frozen_nights
from scanner.results.retention import cutoff
from scanner.results.settlement import settle
from scanner.results.tables import Tables, committed

PACKS_A_WORKER = 8
"""Fewest that there are of, where shards are small."""

MOST_IN_A_PACK = 256
"""Shards; each opens a file."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What a scan found to do: all shards (files at fault count as one), those done before, what is left, all ids."""

    shards: int
    skipped: int
    left: tuple[Shard, ...]
    found: tuple[Shard, ...]  # those done before included, but no files at fault
    faults: tuple[tuple[InputFile, FileFault], ...]
    at_fault: tuple[str, ...] = ()  # ids of all files at fault, those done before included

    @property
    def documents(self) -> int:
        """Documents that are left."""
        return sum(shard.rows.stop - shard.rows.start for shard in self.left)

    @property
    def files(self) -> int:
        """Files that hold what is left, those at fault included."""
        return len({shard.file.path for shard in self.left} | {file.path for file, _ in self.faults})


class Inspected(NamedTuple):
    """What the footers say: the shards of sound files, how many these files are, and the others by their whole ids."""

    shards: list[Shard]
    sound: int
    faults: dict[str, tuple[InputFile, FileFault]]

    @property
    def ids(self) -> list[str]:
        """Under which all of these are committed."""
        return [*(shard.shard_id for shard in self.shards), *self.faults]


def inspect_input(plan: Plan, files: Sequence[InputFile]) -> Inspected:
    """Look into the footers of files, and cut the files. Raises ScanFailed: no process can be started for that."""
    shards: list[Shard] = []
    faults: dict[str, tuple[InputFile, FileFault]] = {}
    with Inspector() as inspector:
        for file, found in inspector.inspect_all(files, plan.columns):
            try:
                shards += _shards_of(file, found, plan.decides)
            except FileFault as fault:
                faults[shard_id(file, None, plan.decides)] = (file, fault)
    return Inspected(shards, len(files) - len(faults), faults)


def refuse_wrong_columns(inspected: Inspected) -> None:
    """Refuse input of which every file lacks a configured column, but for those of which nothing is known.

    Raises:
        Refused: naming a column, and what a file has instead.
    """
    faults = inspected.faults.values()
    lacking = [(file, fault) for file, fault in faults if fault.reason == "missing_column"]
    if inspected.sound or not lacking or any(fault.reason == "wrong_type" for _, fault in faults):
        return
    file, fault = lacking[0]
    raise Refused(
        f"[input]: no file has all of the configured columns; of {file.path}: {fault.detail}; name columns that are "
        "there, or leave out those of ids, accounts and times"
    )


def find_work(plan: Plan, inspected: Inspected) -> Work:
    """Leave out what is committed, once what a driver left is settled that died over it.

    Raises:
        ScanFailed: a table cannot be written.
    """
    tables = Tables(plan.results)
    done = committed(tables, "verdicts", inspected.ids)
    settle(tables, done)  # what a driver left that died over these
    return without(inspected, done | _done_in_frozen_nights(tables, inspected, done))


def done_before(plan: Plan, inspected: Inspected) -> set[str]:
    """Ids of what is committed. Writes nothing. Raises as `find_work`."""
    tables = Tables(plan.results)
    done = committed(tables, "verdicts", inspected.ids)
    return done | _done_in_frozen_nights(tables, inspected, done)


def _done_in_frozen_nights(tables: Tables, inspected: Inspected, done: Collection[str]) -> set[str]:
    return done_in_frozen_nights(tables, [shard for shard in inspected.shards if shard.shard_id not in done])


def without(inspected: Inspected, done: Collection[str]) -> Work:
    """What there is to do where these ids are done."""
    shards, _, faults = inspected
    return Work(
        shards=len(shards) + len(faults),
        skipped=sum(one in done for one in inspected.ids),
        left=tuple(shard for shard in shards if shard.shard_id not in done),
        found=tuple(shards),
        faults=tuple(fault for whole, fault in faults.items() if whole not in done),
        at_fault=tuple(faults),
    )


def without_expired(plan: Plan, work: Work, *, refuse: bool) -> Work:
    """Leave out files that were last changed longer ago than nights are kept, or refuse them.

    What was dropped would else be scanned again as if it were new. Where a filesystem tells no time, all stay.

    Raises:
        Refused: there are some, and they are to be refused.
    """
    old = _expired(plan, work)
    if not old:
        return work
    changed = datetime.fromtimestamp(old[0].modified / 1e9, UTC).date()
    others = f" (and {len(old) - 1:,} more)" if len(old) > 1 else ""
    said = (
        f"input.paths: {old[0].path}{others} is not scanned yet and was last changed on {changed}, longer ago than "
        f"retain = {plan.config.retain!r} keeps results; take it out of the input, or keep results for longer"
    )
    if refuse:
        raise Refused(said)
    _log.warning("%s; the others are scanned", said)
    gone = set(old)
    left = tuple(shard for shard in work.left if shard.file not in gone)
    return replace(work, left=left, faults=tuple(fault for fault in work.faults if fault[0] not in gone))


def _expired(plan: Plan, work: Work) -> list[InputFile]:
    days = plan.config.retain_days
    if days is None:
        return []
    first = datetime.combine(cutoff(days), time(), UTC).timestamp() * 1e9
    files = dict.fromkeys([*(shard.file for shard in work.left), *(file for file, _ in work.faults)])
    return [file for file in files if 0 < file.modified < first]


def packed(shards: Sequence[Shard], workers: int) -> list[Shard | Pack]:
    """Shards in their order, small neighbours as packs that are no larger than a shard may be.

    So many files of a few rows each cost what as many rows in large files do. There stay PACKS_A_WORKER packs for each
    worker, so that none waits for the last one.
    """
    most = min(len(shards) // (PACKS_A_WORKER * workers), MOST_IN_A_PACK)
    units: list[Shard | Pack] = []
    waiting: list[Shard] = []
    rows = text_bytes = 0
    for shard in shards:
        size = shard.rows.stop - shard.rows.start
        if waiting and (
            len(waiting) >= most or rows + size > MAX_ROWS or text_bytes + shard.rows.text_bytes > MAX_TEXT_BYTES
        ):
            units.append(_unit(waiting))
            waiting, rows, text_bytes = [], 0, 0
        waiting.append(shard)
        rows, text_bytes = rows + size, text_bytes + shard.rows.text_bytes
    return [*units, _unit(waiting)] if waiting else units


def _unit(shards: list[Shard]) -> Shard | Pack:
    return Pack(tuple(shards)) if len(shards) > 1 else shards[0]


def _shards_of(file: InputFile, found: list[RowGroup] | FileFault, decides: str) -> list[Shard]:
    """Raises FileFault when that was found, or when the file is too large to be cut."""
    if isinstance(found, FileFault):
        raise found
    return [Shard(shard_id(file, rows, decides), file, rows) for rows in cut(found)]

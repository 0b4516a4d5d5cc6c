"""The work of a scan: footers are read, files cut into shards, and committed shards left out."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from types import MappingProxyType
from typing import NamedTuple

from scanner.cluster.new_keys import AlsoDone, done_under_others, refuse_second_rule
from scanner.cluster.pieces import Pack
from scanner.detection.scan_plan import Plan
from scanner.errors import FileFault, Refused
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.input.shards import MAX_ROWS, MAX_TEXT_BYTES, Shard, cut, shard_id
from scanner.results.filters import fixed, used
from scanner.results.freezing import done_in_frozen_nights
from scanner.results.newest import sets_of_keys
from scanner.results.queries import scans
from scanner.results.retention import cutoff
from scanner.results.settlement import settle
from scanner.results.transactions import Tables, committed

PACKS_A_WORKER = 8
"""Fewest packs for each worker, where shards are small."""

MOST_IN_A_PACK = 256
"""Most shards of a pack; each opens a file."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """The work that a scan found: all shards (files at fault count as one), those done before, what is left, all ids.

    earlier: shards of the same rows as others of `found`, done under other keys, which do not look at them again.
    """

    shards: int
    skipped: int
    left: tuple[Shard, ...]
    found: tuple[Shard, ...]  # shards done before included, files at fault left out
    faults: tuple[tuple[InputFile, FileFault], ...]
    at_fault: tuple[str, ...] = ()  # ids of all files at fault, done before or not
    earlier: tuple[Shard, ...] = ()

    @property
    def documents(self) -> int:
        """Documents that are left."""
        return sum(shard.rows.stop - shard.rows.start for shard in self.left)

    @property
    def by_keys(self) -> dict[tuple[str, ...], list[Shard]]:
        """The shards that are left, by the ids of the keys that look at them; without ids, and first, for all keys."""
        found: dict[tuple[str, ...], list[Shard]] = {}
        for shard in sorted(self.left, key=lambda shard: len(shard.keys) > 0):
            found.setdefault(shard.keys, []).append(shard)
        return found

    @property
    def files(self) -> int:
        """Files with work left, files at fault included."""
        return len({shard.file.path for shard in self.left} | {file.path for file, _ in self.faults})


class Inspected(NamedTuple):
    """Content of the footers: the shards of sound files, how many these are, and other files by their whole ids."""

    shards: list[Shard]
    sound: int
    faults: dict[str, tuple[InputFile, FileFault]]

    @property
    def ids(self) -> list[str]:
        """Ids under which all of these are committed."""
        return [*(shard.shard_id for shard in self.shards), *self.faults]


def inspect_input(plan: Plan, files: Sequence[InputFile]) -> Inspected:
    """Read the footers of files, and cut the files. Raises ScanFailed: no process can be started for it."""
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
    """Refuse input if every file lacks a configured column; files of which nothing is known do not count.

    Raises:
        Refused: names a column, and a file's columns.
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
    """Leave out committed shards, once the leftovers of dead drivers are settled.

    Raises:
        Refused: a part of it was scanned with another `dedup` or `min_scored`.
        ScanFailed: a table cannot be written.
    """
    work, logged = _look_back(plan, inspected)
    settle(Tables(plan.results), logged)  # settle the leftovers of drivers that died over these
    return work


def work_left(plan: Plan, inspected: Inspected) -> Work:
    """As `find_work`; writes nothing."""
    return _look_back(plan, inspected)[0]


def _look_back(plan: Plan, inspected: Inspected) -> tuple[Work, set[str]]:
    """The work that is to be done, and the ids of finished shards that the log of `verdicts` has."""
    tables = Tables(plan.results)
    logged = committed(tables, "verdicts", inspected.ids)

    def done(shards: Sequence[Shard]) -> set[str]:
        here = committed(tables, "verdicts", [shard.shard_id for shard in shards])
        logged.update(here)
        return here | done_in_frozen_nights(tables, [shard for shard in shards if shard.shard_id not in here])

    whole = logged | done_in_frozen_nights(tables, [one for one in inspected.shards if one.shard_id not in logged])
    others: dict[str, AlsoDone] = {}
    rest = [shard for shard in inspected.shards if shard.shard_id not in whole]
    if rest:
        recorded = sets_of_keys(plan.results)
        rules = _rules(plan)
        refuse_second_rule(plan, rest, recorded, rules, done)
        others = done_under_others(plan, rest, recorded, done)
    return without(inspected, whole, others), logged


def _rules(plan: Plan) -> list[tuple[str, int, str | None]]:
    """Rules of scans that may have had the same texts: of their night, with its filter or with none."""
    stated = {*scans(plan.results).select("dedup", "min_scored").unique().collect().rows()}
    stated.add((plan.config.dedup, plan.config.min_scored))  # a killed scan stated nothing
    of_night = set() if plan.date is None else {fixed(plan.results, plan.date), *used(plan.results, plan.date)}
    return [(*rule, sha256) for rule in stated for sha256 in {None, *of_night}]


def without(inspected: Inspected, done: Collection[str], others: Mapping[str, AlsoDone] = MappingProxyType({})) -> Work:
    """The work that is left when these ids are done, and these shards under other keys."""
    shards, _, faults = inspected
    found, left, earlier = list[Shard](), list[Shard](), list[Shard]()
    for shard in shards:
        if shard.shard_id in done or shard.shard_id not in others:
            found.append(shard)
            left += [shard] * (shard.shard_id not in done)
            continue
        before, rest = others[shard.shard_id]
        found.append(before[-1] if rest is None else rest)
        left += [] if rest is None else [rest]
        earlier += before[:-1] if rest is None else before
    at_fault = tuple(fault for whole, fault in faults.items() if whole not in done)
    return Work(
        shards=len(shards) + len(faults),
        skipped=len(shards) - len(left) + len(faults) - len(at_fault),
        left=tuple(left),
        found=tuple(found),
        faults=at_fault,
        at_fault=tuple(faults),
        earlier=tuple(earlier),
    )


def without_expired(plan: Plan, work: Work, *, refuse: bool) -> Work:
    """Leave out files that were last changed longer ago than nights are kept, or refuse them.

    Dropped files would else be scanned again as if they were new. Where a filesystem has no times, all files stay.

    Raises:
        Refused: there are such files, and they are to be refused.
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

    So many small files cost no more than as many rows in large files. PACKS_A_WORKER packs for each worker remain, so
    that no worker waits for the last one.
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
    """Shards of a file. Raises FileFault when its inspection did, or when the file is too large to be cut."""
    if isinstance(found, FileFault):
        raise found
    return [Shard(shard_id(file, rows, decides), file, rows) for rows in cut(found)]

"""Find the work of a scan: the part of its input that is left, and the keys to scan it under.

Shards that were scanned under other keys before are scanned only under the keys that came since. Once keys have
weights, a row about one key depends on no other key. A shard that is done under some of the keys under test is
therefore scanned under the others only. The rows of both exist side by side, and the best row of each document is its
verdict (scanner.results.current_rows). Only runs of neighbours in the registry's order of keys are considered. New keys
extend this order.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import polars as pl

from scanner.error_shares import ErrorShares, price_of_looks
from scanner.errors import FileFault, Refused
from scanner.filtering import FILTERS
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.input.shards import Shard, cut, key_set, shard_id
from scanner.results.current_rows import sets_of_keys, settle
from scanner.results.queries import rules_ever
from scanner.results.retention import cutoff, done_in_frozen_nights
from scanner.results.transactions import Tables, find_committed, read_whole
from scanner.scan_plan import Plan
from schemas.registry import MasterKey


class DoneUnderKeys(NamedTuple):
    """A shard that is done under some of the keys.

    done: the shard in the form in which it was scanned.
    left: the shard under the other keys. None: there are none.
    """

    done: tuple[Shard, ...]
    left: Shard | None


class _PossibleScan(NamedTuple):
    """Keys that an earlier scan may have had, by their ids, and the settings that decided its verdicts."""

    key_ids: tuple[str, ...]
    settings: str


def done_under_others(
    plan: Plan, shards: Sequence[Shard], recorded: Collection[str], find_done: Callable[[Sequence[Shard]], set[str]]
) -> dict[str, DoneUnderKeys]:
    """Return shards that are done under other keys, by their ids. Other shards are left out.

    Example: a shard was scanned under keys a and b, and key c came since. Its id under (a, b, c) is in no log, but its
    id under (a, b) is. So it is done under a and b, and left under c.

    Args:
        plan: the scan's plan.
        shards: shards that are not done under all keys of the scan together.
        recorded: digests of all sets of keys that any shard was scanned under.
        find_done: returns the committed ids among those of shards.
    """
    done_shards: dict[str, list[Shard]] = {}
    for scan in _possible_scans(plan, recorded):
        shard_of_id = {shard_id(shard.file, shard.rows, scan.settings): shard for shard in shards}
        tried = [Shard(name, shard.file, shard.rows, keys=scan.key_ids) for name, shard in shard_of_id.items()]
        committed = find_done(tried)
        for shard in tried:
            if shard.shard_id in committed:
                done_shards.setdefault(shard_of_id[shard.shard_id].shard_id, []).append(shard)
    return {
        shard.shard_id: _also_done(plan, shard, done_shards[shard.shard_id])
        for shard in shards
        if shard.shard_id in done_shards
    }


def refuse_second_rule(
    plan: Plan,
    shards: Sequence[Shard],
    recorded: Collection[str],
    rules: Iterable[tuple[str, int, str | None]],
    find_done: Callable[[Sequence[Shard]], set[str]],
) -> None:
    """Refuse another `dedup`, `min_scored` or filter for scanned shards: no weight corrects for a second look.

    rules: dedup, min_scored and digest of the filter, of scans that may have had the same texts. The other arguments
        are those of `done_under_others`.

    Raises:
        Refused: a shard is done under another rule. The message names both rules, a file, and what to do.
    """
    for rule in set(rules) - {_rule(plan)}:
        done = done_under_others(_under(plan, rule), shards, recorded, find_done)
        if done:
            file = next(shard.file.path for shard in shards if shard.shard_id in done)
            raise SecondRule(plan, f"{file} was scanned with {_in_words(*rule)}")


class SecondRule(Refused):
    """Texts were scanned by another rule than the plan's.

    earlier: a sentence on the texts and their rule.
    """

    def __init__(self, plan: Plan, earlier: str) -> None:
        super().__init__(
            f"{_in_words(*_rule(plan))}: {earlier}. A second rule for the same text is another look, and no p-value "
            "accounts for it: restore the earlier settings, or use new files or a new folder of results with one rule "
            "that was chosen before either result was read"
        )


def other_rules(plan: Plan) -> dict[str, str]:
    """Return other rules of earlier scans that may have had the same texts: in words, by digest of their tests."""
    recorded = sets_of_keys(plan.results)
    return {
        hashlib.sha256(scan.settings.encode()).hexdigest(): _in_words(*rule)
        for rule in set(_rules(plan)) - {_rule(plan)}
        for scan in _possible_scans(_under(plan, rule), recorded)
    }


def _rule(plan: Plan) -> tuple[str, int, str | None]:
    return plan.config.dedup, plan.config.min_scored, plan.filter_sha256


def _under(plan: Plan, rule: tuple[str, int, str | None]) -> Plan:
    dedup, min_scored, filter_sha256 = rule
    changed = plan.config.model_copy(update={"dedup": dedup, "min_scored": min_scored})
    return replace(plan, config=changed, filter_sha256=filter_sha256)


def _in_words(dedup: str, min_scored: int, filter_sha256: str | None) -> str:
    of_filter = "" if filter_sha256 is None else f", [filter] {filter_sha256[:12]}"
    return f"dedup = {dedup!r}, min_scored = {min_scored}{of_filter}"


def _also_done(plan: Plan, shard: Shard, done: Sequence[Shard]) -> DoneUnderKeys:
    key_ids = {key_id for done_shard in done for key_id in done_shard.keys}
    left = tuple(key for key in plan.keys if key.key_id not in key_ids)
    if not left:
        return DoneUnderKeys(tuple(done), None)
    name = shard_id(shard.file, shard.rows, plan.verdict_settings_under(left))
    return DoneUnderKeys(tuple(done), Shard(name, shard.file, shard.rows, keys=tuple(key.key_id for key in left)))


def _possible_scans(plan: Plan, recorded: Collection[str]) -> Iterator[_PossibleScan]:
    """Yield runs of neighbours among the keys under test that were scanned together, the longest run first."""
    for begin, end in sorted(combinations(range(len(plan.keys) + 1), 2), key=lambda pair: pair[0] - pair[1]):
        keys = plan.keys[begin:end]
        key_ids = tuple(key.key_id for key in keys)
        if key_set(key_ids) in recorded:
            yield from (_PossibleScan(key_ids, settings) for settings in _settings_now_and_before(plan, keys))


def _settings_now_and_before(plan: Plan, keys: Sequence[MasterKey]) -> list[str]:
    """Return the settings that decide verdicts under keys: as they are now, and as before keys had weights."""
    now = plan.verdict_settings_under(keys)
    if not all(key.key_id in plan.first_keys for key in keys):
        return [now]
    equal = [key.model_copy(update={"one_of": None}) for key in keys]
    return [now, plan.verdict_settings_under(equal, len(plan.first_keys))]


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScanWork:
    """The work of a scan.

    shard_count: number of shards of its whole input. A file at fault counts as a shard.
    skipped: number of them that an earlier scan did.
    left: shards that are to be scanned.
    shards: all shards of sound files, done or not. If some keys came later, as scanned under the newest keys.
    faults: files at fault that are not yet in quarantine.
    at_fault: ids of all files at fault.
    earlier: shards of the same rows as some of `shards`, done under other keys. They are not scanned again under them.
    looks_price: factor by which the false-positive rate of its unmarked texts may grow, because earlier scans had other
        looks at them (scanner.error_shares.price_of_looks). 1: they had none.
    """

    shard_count: int
    skipped: int
    left: tuple[Shard, ...]
    shards: tuple[Shard, ...]
    faults: tuple[tuple[InputFile, FileFault], ...]
    at_fault: tuple[str, ...] = ()
    earlier: tuple[Shard, ...] = ()
    looks_price: float = 1.0

    @property
    def documents(self) -> int:
        """Count the documents that are left."""
        return sum(shard.rows.documents for shard in self.left)

    @property
    def shards_under_any_key(self) -> tuple[Shard, ...]:
        """Return the shards of all of the input's rows, under any keys that they are, or were, scanned under."""
        return (*self.shards, *self.earlier)

    @property
    def by_keys(self) -> dict[tuple[str, ...], list[Shard]]:
        """Return the shards that are left, by ids of their keys. Shards for all keys come first, without ids."""
        shards_of_keys: dict[tuple[str, ...], list[Shard]] = {}
        for shard in sorted(self.left, key=lambda shard: len(shard.keys) > 0):
            shards_of_keys.setdefault(shard.keys, []).append(shard)
        return shards_of_keys

    @property
    def files(self) -> int:
        """Count the files with work left, files at fault included."""
        return len({shard.file.path for shard in self.left} | {file.path for file, _ in self.faults})


class InspectedInput(NamedTuple):
    """Content of the footers: the shards of sound files, the number of these files, and other files by whole ids."""

    shards: list[Shard]
    sound: int
    faults: dict[str, tuple[InputFile, FileFault]]

    @property
    def ids(self) -> list[str]:
        """Return the ids under which all of these files and shards are committed."""
        return [*(shard.shard_id for shard in self.shards), *self.faults]


def inspect_input(plan: Plan, files: Sequence[InputFile]) -> InspectedInput:
    """Read the footers of files, and cut the files into shards. Raises ScanFailed: no process can be started for it."""
    shards: list[Shard] = []
    faults: dict[str, tuple[InputFile, FileFault]] = {}
    with Inspector() as inspector:
        for file, inspection in inspector.inspect_all(files, plan.columns):
            try:
                shards += _shards_of(file, inspection, plan.verdict_settings)
            except FileFault as fault:
                faults[shard_id(file, None, plan.verdict_settings)] = (file, fault)
    return InspectedInput(shards, len(files) - len(faults), faults)


def refuse_wrong_columns(inspected: InspectedInput) -> None:
    """Refuse input if every file lacks a configured column. Unreadable files do not count.

    Raises:
        Refused: names a column, and a file's columns.
    """
    faults = inspected.faults.values()
    lacking = [(file, fault) for file, fault in faults if fault.reason == "missing_column"]
    if inspected.sound or not lacking or any(fault.reason == "wrong_type" for _, fault in faults):
        return
    file, fault = lacking[0]
    raise Refused(
        f"[input]: no file has all of the configured columns; in {file.path}: {fault.detail}; name existing columns, "
        "or leave out those of ids, accounts and times"
    )


def find_work(plan: Plan, inspected: InspectedInput) -> ScanWork:
    """Find the shards that are not committed, after settling the leftovers of drivers that died.

    Raises:
        Refused: a part of the input was scanned with another `dedup`, `min_scored` or filter, or with other shares of
            looks.
        ScanFailed: a table cannot be written.
    """
    tables = Tables(plan.results)
    work, logged = _compare_with_tables(plan, tables, inspected)
    settle(tables, logged)  # settle the leftovers of drivers that died during these shards
    return work


def work_left(plan: Plan, inspected: InspectedInput) -> ScanWork:
    """Find the work as `find_work` does, without writing anything."""
    return _compare_with_tables(plan, Tables(plan.results), inspected)[0]


def _compare_with_tables(plan: Plan, tables: Tables, inspected: InspectedInput) -> tuple[ScanWork, set[str]]:
    """Return the work that is left, and the ids of finished shards in the log of `verdicts`."""
    logged = find_committed(tables, "verdicts", inspected.ids)

    def find_done(shards: Sequence[Shard]) -> set[str]:
        in_log = find_committed(tables, "verdicts", [shard.shard_id for shard in shards])
        logged.update(in_log)
        return in_log | done_in_frozen_nights(tables, [shard for shard in shards if shard.shard_id not in in_log])

    # 1. Find shards that are done under all keys together.
    unlogged = [shard for shard in inspected.shards if shard.shard_id not in logged]
    done = logged | done_in_frozen_nights(tables, unlogged)

    # 2. Find shards that are done under some of the keys. Refuse shards that were scanned by another rule.
    others: dict[str, DoneUnderKeys] = {}
    rest = [shard for shard in inspected.shards if shard.shard_id not in done]
    if rest:
        recorded = sets_of_keys(plan.results)
        refuse_second_rule(plan, rest, recorded, _rules(plan), find_done)
        others = done_under_others(plan, rest, recorded, find_done)

    # 3. Return the work that is left, with the price of its looks after earlier looks at the same texts.
    work = leave_out_done(inspected, done, others)
    return replace(work, looks_price=_price_of_looks(plan, inspected.shards, work.left)), logged


def _price_of_looks(plan: Plan, shards: Sequence[Shard], left: Sequence[Shard]) -> float:
    """Return the price of all looks at the texts of shards: those of earlier scans and those that this scan adds.

    Raises:
        Refused: a shard is left whose texts had other looks, and `looks_added` is not set.
    """
    # 1. Collect the shares of earlier looks at each file, by path and stamp, and also by path alone, because a commit
    #    that moved rows to a new file names the paths of the old ones.
    parents_of = {shard.file.path: shard.file.entry.parents for shard in shards if shard.file.entry is not None}
    paths = pl.Series(sorted({shard.file.path for shard in shards}.union(*parents_of.values())), dtype=pl.String)
    scanned = read_whole(plan.results, "shards", paths).filter(pl.col("path").is_in(paths.implode()))
    shares_of_file: dict[tuple[str, str | None], set[ErrorShares]] = {}
    for path, stamp, looks in scanned.select("path", "file", "looks").unique().drop_nulls().collect().iter_rows():
        for file in ((path, stamp), (path, None)):
            shares_of_file.setdefault(file, set()).add(ErrorShares(**json.loads(looks)))
    # 2. Compute the price of each history once.
    rows_left = {(shard.file.path, shard.rows) for shard in left}
    prices: dict[frozenset[ErrorShares], float] = {frozenset(): 1.0}
    for shard in shards if shares_of_file else ():
        parents = ((path, None) for path in parents_of.get(shard.file.path, ()))
        files = ((shard.file.path, shard.file.stamp), *parents)
        history = frozenset[ErrorShares]().union(*(shares_of_file.get(file, ()) for file in files))
        is_left = (shard.file.path, shard.rows) in rows_left
        if is_left and history:
            history |= {plan.weights}
        if history not in prices:
            prices[history] = price_of_looks(history, plan.keys)
        if is_left and prices[history] > 1 and not plan.config.looks_added:
            raise Refused(
                f"{shard.file.path} was scanned with other shares of looks (variants, spans, accounts, levels, "
                f"weights); with these added, unmarked texts may be flagged {prices[history]:.4g} times as often as "
                "false_positive_rate says. Restore the earlier settings, use new files or a new folder of results, or "
                "accept the higher rate with looks_added = true"
            )
    return max(prices.values())


def _rules(plan: Plan) -> list[tuple[str, int, str | None]]:
    """Return the rules of scans that may have had the same texts: scans of their night, with its filter or none."""
    stated = {*rules_ever(plan.results), (plan.config.dedup, plan.config.min_scored)}
    filters = set[str | None]({None})
    if plan.date is not None:
        filters = filters.union(*(ngram_filter.digests(plan.results, plan.date) for ngram_filter in FILTERS))
    return [(*rule, sha256) for rule in stated for sha256 in filters]


def leave_out_done(
    inspected: InspectedInput, done: Collection[str], others: Mapping[str, DoneUnderKeys] = MappingProxyType({})
) -> ScanWork:
    """Return the work that is left.

    Args:
        inspected: the input.
        done: ids that are done under all keys together.
        others: shards that are done under some of the keys, by their ids.
    """
    shards, left, earlier = list[Shard](), list[Shard](), list[Shard]()
    for shard in inspected.shards:
        if shard.shard_id in done:
            shards.append(shard)
        elif shard.shard_id not in others:
            shards.append(shard)
            left.append(shard)
        else:
            scanned, rest = others[shard.shard_id]
            newest = scanned[-1] if rest is None else rest
            shards.append(newest)
            left += [] if rest is None else [rest]
            earlier += [shard for shard in scanned if shard is not newest]
    at_fault = tuple(fault for whole, fault in inspected.faults.items() if whole not in done)
    return ScanWork(
        shard_count=len(shards) + len(inspected.faults),
        skipped=len(shards) - len(left) + len(inspected.faults) - len(at_fault),
        left=tuple(left),
        shards=tuple(shards),
        faults=at_fault,
        at_fault=tuple(inspected.faults),
        earlier=tuple(earlier),
    )


def without_expired(plan: Plan, work: ScanWork, *, refuse: bool) -> ScanWork:
    """Leave out, or refuse, files that were last changed longer ago than nights are kept.

    Otherwise, files of dropped nights would be scanned again as if they were new. If a filesystem has no times, all
    files stay.

    Raises:
        Refused: there are such files, and they are to be refused.
    """
    expired = _expired(plan, work)
    if not expired:
        return work
    first = expired[0]
    changed = datetime.fromtimestamp(first.modified / 1e9, UTC).date()
    others = f" (and {len(expired) - 1:,} more)" if len(expired) > 1 else ""
    advice = "remove it from the input" if first.entry is None else "choose newer partitions of the table with `where`"
    note = (
        f"input.paths: {first.path}{others} has not been scanned and was last changed on {changed}, before the period "
        f"that retain = {plan.config.retain!r} covers; {advice}, or raise retain"
    )
    if refuse:
        raise Refused(note)
    _log.warning("%s; the other files are scanned", note)
    out = set(expired)
    left = tuple(shard for shard in work.left if shard.file not in out)
    return replace(work, left=left, faults=tuple(fault for fault in work.faults if fault[0] not in out))


def _expired(plan: Plan, work: ScanWork) -> list[InputFile]:
    days = plan.config.retain_days
    if days is None:
        return []
    oldest = datetime.combine(cutoff(days), time(), UTC).timestamp() * 1e9
    files = dict.fromkeys([*(shard.file for shard in work.left), *(file for file, _ in work.faults)])
    return [file for file in files if 0 < file.modified < oldest]


def _shards_of(file: InputFile, inspection: list[RowGroup] | FileFault, settings: str) -> list[Shard]:
    """Cut a file into shards. Raises FileFault: its inspection found a fault, or it is too large to be cut."""
    if isinstance(inspection, FileFault):
        raise inspection
    return [Shard(shard_id(file, rows, settings), file, rows) for rows in cut(inspection)]

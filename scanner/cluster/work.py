"""The work of a scan: what is left of its input, under which keys, and what was not read.

Shards that were scanned under other keys before meet only the keys that came since. Once keys have weights, a row about
one key depends on no other key. So a shard that is done under some of the keys under test is scanned under the others
alone. The rows of both stand beside each other, and the best row of each document is its verdict
(scanner.results.current_rows). Keys are tried as runs of neighbours in the registry's order, which new keys extend.
"""

import hashlib
import json
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from itertools import combinations
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from scanner.cluster.pieces import Pack
from scanner.error_shares import ErrorShares, price_of_looks
from scanner.errors import FileFault, Refused
from scanner.filtering import FILTERS
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.input.shards import MAX_ROWS, MAX_TEXT_BYTES, Shard, cut, key_set, shard_id
from scanner.printable import counted, printable
from scanner.results import quarantine
from scanner.results.current_rows import sets_of_keys, settle
from scanner.results.queries import rules_ever
from scanner.results.retention import cutoff, done_in_frozen_nights
from scanner.results.scan_list import EXAMPLES_TOLD, NOTHING_READ, Reason, WholeInput, in_words, reasons, whole_input
from scanner.results.transactions import Tables, find_committed, read_whole
from scanner.scan_plan import Plan
from schemas.registry import MasterKey

if TYPE_CHECKING:
    from scanner.cluster.commits import ScanTotals


class DoneUnderKeys(NamedTuple):
    """A shard that is done under some of the keys: as it was done, these keys, and what is left; None: nothing."""

    done: tuple[Shard, ...]
    left: Shard | None


class _PossibleScan(NamedTuple):
    """Keys that a scan may have had, by their ids, and what decided its verdicts then."""

    key_ids: tuple[str, ...]
    settings: str


def done_under_others(
    plan: Plan, shards: Sequence[Shard], recorded: Collection[str], done: Callable[[Sequence[Shard]], set[str]]
) -> dict[str, DoneUnderKeys]:
    """Shards that are done under other keys, by their ids; other shards are left out.

    shards: shards that are not done under all of its keys together; recorded: digests of all sets of keys that any
    shard was scanned under; done: function that gives the committed ids among some.
    """
    before: dict[str, list[Shard]] = {}
    for scan in _possible_scans(plan, recorded):
        under = {shard_id(shard.file, shard.rows, scan.settings): shard for shard in shards}
        tried = [Shard(name, shard.file, shard.rows, keys=scan.key_ids) for name, shard in under.items()]
        committed = done(tried)
        for one in tried:
            if one.shard_id in committed:
                before.setdefault(under[one.shard_id].shard_id, []).append(one)
    return {
        shard.shard_id: _also_done(plan, shard, before[shard.shard_id]) for shard in shards if shard.shard_id in before
    }


def refuse_second_rule(
    plan: Plan,
    shards: Sequence[Shard],
    recorded: Collection[str],
    rules: Iterable[tuple[str, int, str | None]],
    done: Callable[[Sequence[Shard]], set[str]],
) -> None:
    """Refuse another `dedup`, `min_scored` or filter for shards that were scanned: no weight pays for a second look.

    rules: dedup, min_scored and digest of the filter, of scans that may have had the same texts; other arguments as for
    `done_under_others`.

    Raises:
        Refused: a shard is done under another rule; names both rules, a file, and what to do.
    """
    for rule in set(rules) - {_rule(plan)}:
        before = done_under_others(_under(plan, rule), shards, recorded, done)
        if before:
            file = next(shard.file.path for shard in shards if shard.shard_id in before)
            raise SecondRule(plan, f"{file} was scanned with {_in_words(*rule)}")


class SecondRule(Refused):
    """Texts were scanned by another rule than the plan's. before: what was scanned, and by which rule."""

    def __init__(self, plan: Plan, before: str) -> None:
        super().__init__(
            f"{_in_words(*_rule(plan))}: {before}. A second rule for the same text is another look, for which no "
            "p-value pays: restore what was there, or give new files or a new folder of results, and go by one rule "
            "alone that was chosen before either was read"
        )


def other_rules(plan: Plan) -> dict[str, str]:
    """Rules of earlier scans that may have had the same texts, but for the plan's: in words, by digests of tests."""
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


def _also_done(plan: Plan, shard: Shard, before: Sequence[Shard]) -> DoneUnderKeys:
    known_keys = {key_id for one in before for key_id in one.keys}
    left = tuple(key for key in plan.keys if key.key_id not in known_keys)
    if not left:
        return DoneUnderKeys(tuple(before), None)
    name = shard_id(shard.file, shard.rows, plan.verdict_settings_under(left))
    return DoneUnderKeys(tuple(before), Shard(name, shard.file, shard.rows, keys=tuple(key.key_id for key in left)))


def _possible_scans(plan: Plan, recorded: Collection[str]) -> Iterator[_PossibleScan]:
    """Neighbours among the keys under test that were scanned together, the longest run, of all keys, first."""
    for begin, end in sorted(combinations(range(len(plan.keys) + 1), 2), key=lambda pair: pair[0] - pair[1]):
        keys = plan.keys[begin:end]
        key_ids = tuple(key.key_id for key in keys)
        if key_set(key_ids) in recorded:
            yield from (_PossibleScan(key_ids, settings) for settings in _settings_now_and_before(plan, keys))


def _settings_now_and_before(plan: Plan, keys: Sequence[MasterKey]) -> list[str]:
    """Everything that decides verdicts under keys now, and before they had weights."""
    now = plan.verdict_settings_under(keys)
    if not all(key.key_id in plan.first_keys for key in keys):
        return [now]
    equal = [key.model_copy(update={"one_of": None}) for key in keys]
    return [now, plan.verdict_settings_under(equal, len(plan.first_keys))]


PACKS_A_WORKER = 8
"""Fewest packs for each worker, where shards are small."""

MOST_IN_A_PACK = 256
"""Most shards of a pack; each opens a file."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScanWork:
    """The work that a scan found.

    shards: how many, a file at fault counts as one. skipped: how many were done before. left: those to be scanned.
    found: all of sound files, done ones included. faults: files at fault that are not yet in quarantine. at_fault: ids
    of all files at fault. earlier: shards of the same rows as others of `found`, done under other keys, which do not
    look at them again. looks_price: how many times the false-positive rate unmarked texts of it may be flagged, since
    scans before had other looks at them (scanner.error_shares.price_of_looks); 1: they had none.
    """

    shards: int
    skipped: int
    left: tuple[Shard, ...]
    found: tuple[Shard, ...]
    faults: tuple[tuple[InputFile, FileFault], ...]
    at_fault: tuple[str, ...] = ()
    earlier: tuple[Shard, ...] = ()
    looks_price: float = 1.0

    @property
    def documents(self) -> int:
        """Documents that are left."""
        return sum(shard.rows.documents for shard in self.left)

    @property
    def of_input(self) -> tuple[Shard, ...]:
        """The shards of all of the input's rows, under whichever keys they are scanned or were."""
        return (*self.found, *self.earlier)

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


class InspectedInput(NamedTuple):
    """Content of the footers: the shards of sound files, how many these are, and other files by their whole ids."""

    shards: list[Shard]
    sound: int
    faults: dict[str, tuple[InputFile, FileFault]]

    @property
    def ids(self) -> list[str]:
        """Ids under which all of these are committed."""
        return [*(shard.shard_id for shard in self.shards), *self.faults]


def inspect_input(plan: Plan, files: Sequence[InputFile]) -> InspectedInput:
    """Read the footers of files, and cut the files. Raises ScanFailed: no process can be started for it."""
    shards: list[Shard] = []
    faults: dict[str, tuple[InputFile, FileFault]] = {}
    with Inspector() as inspector:
        for file, found in inspector.inspect_all(files, plan.columns):
            try:
                shards += _shards_of(file, found, plan.verdict_settings)
            except FileFault as fault:
                faults[shard_id(file, None, plan.verdict_settings)] = (file, fault)
    return InspectedInput(shards, len(files) - len(faults), faults)


def refuse_wrong_columns(inspected: InspectedInput) -> None:
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


def find_work(plan: Plan, inspected: InspectedInput) -> ScanWork:
    """Leave out committed shards, once the leftovers of dead drivers are settled.

    Raises:
        Refused: a part of it was scanned with another `dedup` or `min_scored`.
        ScanFailed: a table cannot be written.
    """
    work, logged = _look_back(plan, inspected)
    settle(Tables(plan.results), logged)  # settle the leftovers of drivers that died over these
    return work


def work_left(plan: Plan, inspected: InspectedInput) -> ScanWork:
    """As `find_work`; writes nothing."""
    return _look_back(plan, inspected)[0]


def _look_back(plan: Plan, inspected: InspectedInput) -> tuple[ScanWork, set[str]]:
    """The work that is to be done, and the ids of finished shards that the log of `verdicts` has."""
    tables = Tables(plan.results)
    logged = find_committed(tables, "verdicts", inspected.ids)

    def done(shards: Sequence[Shard]) -> set[str]:
        of_log = find_committed(tables, "verdicts", [shard.shard_id for shard in shards])
        logged.update(of_log)
        return of_log | done_in_frozen_nights(tables, [shard for shard in shards if shard.shard_id not in of_log])

    whole = logged | done_in_frozen_nights(tables, [one for one in inspected.shards if one.shard_id not in logged])
    others: dict[str, DoneUnderKeys] = {}
    rest = [shard for shard in inspected.shards if shard.shard_id not in whole]
    if rest:
        recorded = sets_of_keys(plan.results)
        rules = _rules(plan)
        refuse_second_rule(plan, rest, recorded, rules, done)
        others = done_under_others(plan, rest, recorded, done)
    work = leave_out_done(inspected, whole, others)
    return replace(work, looks_price=_price_of_looks(plan, inspected.shards, work.left)), logged


def _price_of_looks(plan: Plan, shards: Sequence[Shard], left: Sequence[Shard]) -> float:
    """The price of the looks that scans have had at the texts of shards, with those that this scan adds where it reads.

    Raises:
        Refused: a shard is left whose texts had other looks, and `looks_added` is not set.
    """
    # 1. The looks of each file before, by its path and stamp; of files whose rows a commit moved, by the path alone.
    parents_of = {shard.file.path: shard.file.entry.parents for shard in shards if shard.file.entry is not None}
    paths = pl.Series(sorted({shard.file.path for shard in shards}.union(*parents_of.values())), dtype=pl.String)
    scanned = read_whole(plan.results, "shards", paths).filter(pl.col("path").is_in(paths.implode()))
    before: dict[tuple[str, str | None], set[ErrorShares]] = {}
    for path, stamp, looks in scanned.select("path", "file", "looks").unique().drop_nulls().collect().iter_rows():
        for of in (stamp, None):
            before.setdefault((path, of), set()).add(ErrorShares(**json.loads(looks)))
    # 2. The price of each history, once.
    rows_left = {(shard.file.path, shard.rows) for shard in left}
    prices: dict[frozenset[ErrorShares], float] = {frozenset(): 1.0}
    for shard in shards if before else ():
        moved = ((path, None) for path in parents_of.get(shard.file.path, ()))
        history = frozenset[ErrorShares]().union(*(before.get(of, ()) for of in (_stamped(shard.file), *moved)))
        is_left = (shard.file.path, shard.rows) in rows_left
        if is_left and history:
            history |= {plan.weights}
        if history not in prices:
            prices[history] = price_of_looks(history, plan.keys)
        if is_left and prices[history] > 1 and not plan.config.looks_added:
            raise Refused(
                f"{shard.file.path} was scanned with other shares of looks (variants, spans, accounts, weights_by, "
                f"weights); with these too, unmarked texts may be flagged {prices[history]:.4g} times as often as "
                "false_positive_rate says. Restore what was there, give new files or a new folder of results, or pay "
                "that price with looks_added = true"
            )
    return max(prices.values())


def _stamped(file: InputFile) -> tuple[str, str]:
    return file.path, file.stamp


def _rules(plan: Plan) -> list[tuple[str, int, str | None]]:
    """Rules of scans that may have had the same texts: of their night, with its filter or with none."""
    stated = {*rules_ever(plan.results), (plan.config.dedup, plan.config.min_scored)}
    filters = set[str | None]({None})
    if plan.date is not None:
        filters = filters.union(*(each.digests(plan.results, plan.date) for each in FILTERS))
    return [(*rule, sha256) for rule in stated for sha256 in filters]


def leave_out_done(
    inspected: InspectedInput, done: Collection[str], others: Mapping[str, DoneUnderKeys] = MappingProxyType({})
) -> ScanWork:
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
    return ScanWork(
        shards=len(shards) + len(faults),
        skipped=len(shards) - len(left) + len(faults) - len(at_fault),
        left=tuple(left),
        found=tuple(found),
        faults=at_fault,
        at_fault=tuple(faults),
        earlier=tuple(earlier),
    )


def without_expired(plan: Plan, work: ScanWork, *, refuse: bool) -> ScanWork:
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
    out = "take it out of the input" if old[0].entry is None else "choose newer partitions of the table with `where`"
    note = (
        f"input.paths: {old[0].path}{others} is not scanned yet and was last changed on {changed}, longer ago than "
        f"retain = {plan.config.retain!r} keeps results; {out}, or keep results for longer"
    )
    if refuse:
        raise Refused(note)
    _log.warning("%s; the others are scanned", note)
    gone = set(old)
    left = tuple(shard for shard in work.left if shard.file not in gone)
    return replace(work, left=left, faults=tuple(fault for fault in work.faults if fault[0] not in gone))


def _expired(plan: Plan, work: ScanWork) -> list[InputFile]:
    days = plan.config.retain_days
    if days is None:
        return []
    first = datetime.combine(cutoff(days), time(), UTC).timestamp() * 1e9
    files = dict.fromkeys([*(shard.file for shard in work.left), *(file for file, _ in work.faults)])
    return [file for file in files if 0 < file.modified < first]


def pack_shards(shards: Sequence[Shard], workers: int) -> list[Shard | Pack]:
    """Shards in their order, small neighbours as packs that are no larger than a shard may be.

    So many small files cost no more than as many rows in large files. PACKS_A_WORKER packs for each worker remain, so
    that no worker waits for the last one.
    """
    most = min(len(shards) // (PACKS_A_WORKER * workers), MOST_IN_A_PACK)
    units: list[Shard | Pack] = []
    waiting: list[Shard] = []
    rows = text_bytes = 0
    for shard in shards:
        size = shard.rows.documents
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


def _shards_of(file: InputFile, found: list[RowGroup] | FileFault, settings: str) -> list[Shard]:
    """Shards of a file. Raises FileFault when its inspection did, or when the file is too large to be cut."""
    if isinstance(found, FileFault):
        raise found
    return [Shard(shard_id(file, rows, settings), file, rows) for rows in cut(found)]


_ENDINGS_TOLD = 5


@dataclass(frozen=True)
class UnreadInput:
    """What a scan did not read.

    passed_over: paths of files in the input's folders that do not end in .parquet, or are hidden; reasons: why
    documents and files of the input are in quarantine; nothing: a sentence when no document of the input has a verdict,
    by this scan or one before, else empty; allowed: reading nothing is no fault, since nothing was there and the
    configuration says `allow_empty`; whole: totals of the input; too_much: a sentence for each limit of the
    configuration that what could not be read exceeds.
    """

    passed_over: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    nothing: str = ""
    allowed: bool = False
    whole: WholeInput = NOTHING_READ
    too_much: tuple[str, ...] = ()


ALL_READ = UnreadInput()


def what_was_not_read(
    plan: Plan, scan_id: str, work: "ScanWork", totals: "ScanTotals", files: int, passed_over: Sequence[str]
) -> UnreadInput:
    """Look back at a scan whose work is done: `files` of the input were looked at."""
    over, whole = tuple(passed_over), _whole(plan, work, totals)
    found, lost = tuple[Reason, ...](), list[str]()
    if whole.quarantined or whole.files_at_fault:
        ids = [*(shard.shard_id for shard in work.found), *work.at_fault]
        ours = (pl.col("scan_id") == scan_id) | pl.col("shard_id").is_in(ids)
        rows = quarantine(plan.results).filter(ours).unique(["path", "row"])
        found = reasons(rows)
        lost = rows.filter(pl.col("row").is_null()).select("path").collect()["path"].sort().to_list()
    beyond = tuple(_too_much(plan, work, totals, whole.files_at_fault, lost))
    # rows that a table's commits moved have their verdicts under files that may be gone
    moved = any(shard.file.entry is not None and shard.file.entry.parents for shard in work.found)
    if whole.documents > whole.quarantined or moved:
        return UnreadInput(over, found, whole=whole, too_much=beyond)
    allowed = not found and not over and plan.config.allow_empty
    advice = " Set allow_empty = true if nights may be quiet." * (not found and not over and not allowed)
    return UnreadInput(over, found, _nothing(plan, files, found) + advice, allowed, whole, beyond)


def _whole(plan: Plan, work: "ScanWork", totals: "ScanTotals") -> WholeInput:
    done = totals.counts
    if totals.shards == work.shards and not work.earlier:
        sums = WholeInput.of(done)
    else:  # other scans did a part, before or meanwhile
        found, earlier = ([shard.shard_id for shard in shards] for shards in (work.found, work.earlier))
        sums = whole_input(plan.results, found, earlier)
    return sums._replace(files_at_fault=totals.files_quarantined + len(work.at_fault) - len(work.faults))


def reasons_of(plan: Plan, scan_id: str) -> tuple[Reason, ...]:
    """Why documents and files that one scan read are in quarantine."""
    return reasons(quarantine(plan.results).filter(pl.col("scan_id") == scan_id))


def _too_much(
    plan: Plan, work: "ScanWork", totals: "ScanTotals", files_at_fault: int, lost: Sequence[str] = ()
) -> Iterator[str]:
    """A sentence for each limit that what could not be read exceeds; lost: paths of the files, which it names."""
    config, see = plan.config, f"`brickscan quarantine {shlex.quote(plan.results)} --group-by document`"
    named = ": " + ", ".join(map(printable, lost[:EXAMPLES_TOLD])) + " …" * (len(lost) > EXAMPLES_TOLD) if lost else ""
    if files_at_fault > config.max_lost_files:
        yield (
            f"{files_at_fault:,} of the input's files cannot be read, and max_lost_files allows "
            f"{config.max_lost_files:,}{named}. {see} says why; write them anew and scan again, or raise "
            "max_lost_files."
        )
    most, counts = config.max_quarantined_share, totals.counts
    of_documents = (counts.quarantined + totals.rows_lost) / max(counts.documents + totals.rows_lost, 1)
    of_files = totals.files_quarantined / max(work.files, 1)
    if most is not None and max(of_documents, of_files) > most:
        yield (
            f"{of_documents:.3%} of the documents and {of_files:.3%} of the files are in quarantine, and "
            f"max_quarantined_share allows {most:.3%}{named}. {see} lists them."
        )


def _nothing(plan: Plan, files: int, found: Sequence[Reason]) -> str:
    if found:
        what = f"all that the input holds is in quarantine ({in_words(found)}): see `brickscan quarantine`"
    elif files:
        what = f"the input's Parquet files ({files:,}) hold no documents"
    else:
        what = f"no Parquet file is in {', '.join(map(printable, plan.locations))}"
    return f"Nothing was read: {what}."


def other_names(paths: Iterable[str]) -> str:
    """Endings of files that are passed over, with counts, such as `.csv 12, .PARQUET 1`; empty: there are none."""
    counts = Counter(PurePosixPath(path).suffix or "no ending" for path in paths)
    endings = [f"{ending} {number:,}" for ending, number in counts.most_common(_ENDINGS_TOLD)]
    return ", ".join([*endings, *(["…"] if len(counts) > _ENDINGS_TOLD else [])])


def passed_over_in_words(paths: Sequence[str]) -> Iterator[str]:
    """Sentences about what lies in the input's folders and is not read: files of other endings, then hidden ones."""
    others = [path for path in paths if not path.endswith(".parquet")]
    hidden = [path for path in paths if path.endswith(".parquet")]
    if others:
        yield (
            f"{counted(len(others), 'file')} passed over, not ending in .parquet ({printable(other_names(others))}), "
            f"such as {printable(others[0])}"
        )
    if hidden:
        yield (
            f"{counted(len(hidden), 'Parquet file')} passed over, hidden by a name that begins with _ or . as "
            f"unfinished files' do, such as {printable(hidden[0])}; rename what is to be read"
        )

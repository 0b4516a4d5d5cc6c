"""What there is to scan: footers are looked into, files cut into shards, and those left out that are committed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scanner.detection.scan_plan import Plan
from scanner.errors import FileFault, Refused
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.input.shards import Shard, cut, shard_id
from scanner.results.settlement import settle
from scanner.results.tables import Tables, committed


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
    return without(inspected, done)


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


def _shards_of(file: InputFile, found: list[RowGroup] | FileFault, decides: str) -> list[Shard]:
    """Raises FileFault when that was found, or when the file is too large to be cut."""
    if isinstance(found, FileFault):
        raise found
    return [Shard(shard_id(file, rows, decides), file, rows) for rows in cut(found)]

"""Shards that were scanned under other keys before: only the keys that came since look at them, by themselves.

Once keys have weights, a row about one key depends on no other key. So a shard that is done under some of the keys
under test is scanned under the others alone. The rows of both stand beside each other, and the best row of each
document is its verdict (scanner.results.newest). Keys are tried as runs of neighbours in the registry's order, which
new keys extend.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from scanner.detection.scan_plan import Plan
from scanner.errors import Refused
from scanner.input.shards import Shard, key_set, shard_id
from schemas.registry import MasterKey


class AlsoDone(NamedTuple):
    """A shard that is done under some of the keys: as it was done, these keys, and what is left; None: nothing."""

    done: tuple[Shard, ...]
    left: Shard | None


class _Run(NamedTuple):
    """Keys that a scan may have had, by their ids, and what decided its verdicts then."""

    key_ids: tuple[str, ...]
    decides: str


def done_under_others(
    plan: Plan, shards: Sequence[Shard], recorded: Collection[str], done: Callable[[Sequence[Shard]], set[str]]
) -> dict[str, AlsoDone]:
    """Shards that are done under other keys, by their ids; other shards are left out.

    Args:
        plan: the scan's plan.
        shards: shards that are not done under all of its keys together.
        recorded: digests of all sets of keys that any shard was scanned under.
        done: function that gives the committed ids among some.
    """
    before: dict[str, list[Shard]] = {}
    for run in _runs(plan, recorded):
        under = {shard_id(shard.file, shard.rows, run.decides): shard for shard in shards}
        tried = [Shard(name, shard.file, shard.rows, keys=run.key_ids) for name, shard in under.items()]
        there = done(tried)
        for one in tried:
            if one.shard_id in there:
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
    config = plan.config
    now = config.dedup, config.min_scored, plan.filter_sha256
    for rule in rules:
        if rule == now:
            continue
        dedup, min_scored, filter_sha256 = rule
        changed = config.model_copy(update={"dedup": dedup, "min_scored": min_scored})
        then = replace(plan, config=changed, filter_sha256=filter_sha256)
        before = done_under_others(then, shards, recorded, done)
        if before:
            file = next(shard.file.path for shard in shards if shard.shard_id in before)
            raise Refused(
                f"{_in_words(*now)}: {file} was scanned with {_in_words(*rule)}. "
                "A second rule for the same text is another look, for which no p-value pays: restore what was there, "
                "or give new files or a new folder of results, and go by one rule alone that was chosen before either "
                "was read"
            )


def _in_words(dedup: str, min_scored: int, filter_sha256: str | None) -> str:
    of_filter = "" if filter_sha256 is None else f", [filter] {filter_sha256[:12]}"
    return f"dedup = {dedup!r}, min_scored = {min_scored}{of_filter}"


def _also_done(plan: Plan, shard: Shard, before: Sequence[Shard]) -> AlsoDone:
    seen = {key_id for one in before for key_id in one.keys}
    left = tuple(key for key in plan.keys if key.key_id not in seen)
    if not left:
        return AlsoDone(tuple(before), None)
    name = shard_id(shard.file, shard.rows, plan.decides_under(left))
    return AlsoDone(tuple(before), Shard(name, shard.file, shard.rows, keys=tuple(key.key_id for key in left)))


def _runs(plan: Plan, recorded: Collection[str]) -> Iterator[_Run]:
    """Neighbours among the keys under test that were scanned together, the longest run, of all keys, first."""
    for begin, end in sorted(combinations(range(len(plan.keys) + 1), 2), key=lambda pair: pair[0] - pair[1]):
        keys = plan.keys[begin:end]
        key_ids = tuple(key.key_id for key in keys)
        if key_set(key_ids) in recorded:
            yield from (_Run(key_ids, decides) for decides in _decided(plan, keys))


def _decided(plan: Plan, keys: Sequence[MasterKey]) -> list[str]:
    """Everything that decides verdicts under keys now, and before they had weights."""
    now = plan.decides_under(keys)
    if not all(key.key_id in plan.first_keys for key in keys):
        return [now]
    equal = [key.model_copy(update={"one_of": None}) for key in keys]
    return [now, plan.decides_under(equal, len(plan.first_keys))]

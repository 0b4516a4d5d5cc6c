"""Cost of a registry with many users under two keys: `python -m tests.bench.users --users 1e6 1e7`.

Users are added a million at a time, as from files, in processes of their own. Then each question is asked in a fresh
process, once cold and then for about a second; the table has the first time and the median of the others. Memory is the
growth of the process. The largest registry stays in --folder.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from scanner.registry import (
    NO_RECORD,
    Holders,
    WantedUsers,
    add_users,
    erase_users,
    head_of,
    load_registry,
    new_key,
    pages,
    remove_users,
    users_of,
    verified_rows,
    verify_since,
    verify_users,
)
from tests.bench import recording

KEYS = ("first", "second")
A_CALL = 1_000_000
MESSAGES = 2**31


class Cost(NamedTuple):
    """Cost of one question: seconds at first, median seconds after that, and MiB by which the process grew."""

    first: float
    median: float
    mebibytes: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.users", description=__doc__)
    parser.add_argument("--users", type=float, nargs="+", default=[1e5, 1e6], help="growing numbers of users")
    parser.add_argument("--folder", type=Path, help="where the registry is written; default: a temporary folder")
    parser.add_argument("--whole", action="store_true", help="also verify the whole chain")
    recording.add_option(parser)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / "registry"
        if not folder.exists():
            make_keys(folder)
        for users in map(int, options.users):
            fill(folder, users)
            for what, question in (QUESTIONS | (WHOLE if options.whole else {})).items():
                cost = in_another_process(measured, question, folder, users)
                figures = f"{cost.first * 1e3:11.1f} {cost.median * 1e3:11.1f} {cost.mebibytes:8.0f}"
                print(f"{users:12,} {what:44} {figures}", flush=True)
                rows.append((users, what, cost.first * 1e3, cost.median * 1e3, round(cost.mebibytes)))
    recording.record(
        options,
        parser.prog,
        group="Memory and disk",
        title="Questions to a registry of many users",
        sample="each question in a fresh process: once cold, then for a second, nine times at most",
        columns=("users", "question", "first, ms", "median, ms", "MiB"),
        rows=rows,
    )


def make_keys(folder: Path) -> None:
    """A registry of two keys, whose tokenizer is never used."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = folder.parent / "tokenizer.json"
    tokenizer.write_text('{"model": {}}')
    for key_id in KEYS:
        new_key(folder, key_id, format="gumbel", window=4, messages=MESSAGES, tokenizer=tokenizer)


def fill(folder: Path, users: int) -> None:
    """Add users until the registry has so many, and print the cost."""
    before = users_before(folder)
    began, peak = time.perf_counter(), 0.0
    for first in range(before, users, A_CALL):
        peak = max(peak, in_another_process(add, folder, first, min(users, first + A_CALL)))
    seconds = time.perf_counter() - began
    disk = {place: size_of(folder / "users" / place, pattern) for place, pattern in PLACES.items()}
    sizes = ", ".join(f"{place or 'events'} {size / users:.0f}" for place, size in disk.items())
    print(
        f"{users:12,} users: {users - before:,} added in {seconds:.0f} s, at most {peak:.0f} MiB; bytes a user: {sizes}"
    )
    print(f"{'users':>12} {'what':44} {'first ms':>11} {'median ms':>11} {'MiB':>8}", flush=True)


PLACES = {"": "*.parquet", "_index": "*", "_delta_log": "*"}


def size_of(folder: Path, pattern: str) -> int:
    """Bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def users_before(folder: Path) -> int:
    """Number of users whom this benchmark added before."""
    low, high = 0, 10**10
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if users_of(folder, [name(middle)]).height else (low, middle)
    return low


def name(number: int) -> str:
    """Name of a user, as long as usual names."""
    return f"account-{number:012d}"


def add(folder: Path, first: int, last: int) -> float:
    """Add users. Returns the MiB of this process at most."""
    add_users(folder, None, pl.Series([name(number) for number in range(first, last)]))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def opening(folder: Path, _users: int) -> Callable[[], object]:
    """Open the holders and look up a message, as a worker does; nothing was read before."""
    now = datetime.now(UTC)
    return lambda: Holders.load(folder, KEYS).naming(KEYS[0], MESSAGES // 2, now)


def naming(folder: Path, users: int) -> Callable[[], object]:
    """A thousand messages of holders that are open, half of them of users."""
    holders, now = Holders.load(folder, KEYS), datetime.now(UTC)
    rng = np.random.default_rng(1)
    held = users_of(folder, [name(int(n)) for n in rng.integers(0, users, 500)])["message"].to_list()
    messages = [*held[:500], *(m - m % 20 for m in rng.integers(0, MESSAGES, 500).tolist())]
    return lambda: [holders.naming(KEYS[0], message, now) for message in messages]


def adding(folder: Path, _users: int) -> Callable[[], object]:
    """Add one more user."""
    return lambda: add_users(folder, None, [f"new-{time.monotonic_ns()}"])


def removing(folder: Path, _users: int) -> Callable[[], object]:
    """Remove one of some new users."""
    names = [f"old-{time.monotonic_ns()}-{n}" for n in range(10)]
    add_users(folder, None, names)
    left = iter(names)
    return lambda: remove_users(folder, [next(left)])


def erasing(folder: Path, users: int) -> Callable[[], object]:
    """Erase the name of one of some old users."""
    given = iter(users_of(folder, [name(users // 3 + n) for n in range(10)])["user_id"].unique())

    def erase() -> None:
        user = next(given)
        remove_users(folder, [user])
        erase_users(folder, [user])

    return erase


def of_message(folder: Path, users: int) -> Callable[[], object]:
    """Ask `users who` beside results."""
    message = int(users_of(folder, [name(users // 2)])["message"][0])
    record = verify_since(folder, NO_RECORD)
    return lambda: verified_rows(folder, record, lambda users: users.rows_of_messages(KEYS[0], np.array([message])))


def of_user(folder: Path, users: int) -> Callable[[], object]:
    """Ask `users show` beside results."""
    record, user = verify_since(folder, NO_RECORD), name(users // 2)
    return lambda: verified_rows(folder, record, lambda users: users.rows_of_users([user]))


def page(folder: Path, _users: int) -> Callable[[], object]:
    """Read the first thousand lines of `users list` after some message."""
    wanted = WantedUsers(after=(KEYS[1], MESSAGES // 2))
    return lambda: list(islice((row for rows in pages(folder, wanted) for row in rows.iter_rows()), 1000))


def head(folder: Path, _users: int) -> Callable[[], object]:
    """Read the head of the chain, as a scan records it."""
    return lambda: head_of(folder)


def verifying(folder: Path, _users: int) -> Callable[[], object]:
    """Verify the whole chain, and the index beside it."""
    return lambda: verify_users(folder)


QUESTIONS: dict[str, Callable[[Path, int], Callable[[], object]]] = {
    "a worker opens holders, asks for a message": opening,
    "1,000 messages named": naming,
    "users add: one more, under two keys": adding,
    "users remove: one": removing,
    "users remove --erase: one": erasing,
    "users who": of_message,
    "users show": of_user,
    "users list: a page of 1,000": page,
    "the head of the chain": head,
}
WHOLE = {"users verify": verifying}


def measured(question: Callable[[Path, int], Callable[[], object]], folder: Path, users: int) -> Cost:
    """Ask once, and then as often as a second allows, nine times at most."""
    load_registry(folder)
    asked = question(folder, users)
    before = memory()
    first = seconds_of(asked)
    grown = memory() - before
    times: list[float] = []
    while sum(times) < 1 and len(times) < 9:
        times.append(seconds_of(asked))
    return Cost(first, statistics.median(times), grown)


def seconds_of(asked: Callable[[], object]) -> float:
    """Wall seconds of asking once."""
    began = time.perf_counter()
    asked()
    return time.perf_counter() - began


def memory() -> float:
    """MiB of private memory of this process, without mapped files."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")) / 1024


def in_another_process(work: Callable[..., Any], *arguments: object) -> Any:
    """Call something in a process of its own, which begins with no memory of ours."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


if __name__ == "__main__":
    main()

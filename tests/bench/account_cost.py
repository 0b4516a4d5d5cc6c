"""The cost of testing accounts: `python -m tests.bench.account_cost`.

Night: posts of accounts in files as scans write them, of which a worker tests some parts under the demo's keys: peak
memory of the process, and CPU seconds. Cost: whole scans through Ray of the same posts with and without accounts, in
turn. The CPU seconds are those of a control group, which counts all processes of a scan:

    mkdir /sys/fs/cgroup/cpuacct/bench
    python -m tests.bench.account_cost --cost 20000 --group /sys/fs/cgroup/cpuacct/bench

Proofs: the CPU seconds and memory of proofs of accounts of so many posts, under the demo's keys at a rate of 1, so that
every account is flagged and every candidate is proved: more than any night asks for.

Posts are cut from texts by people, 20 tokens each.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.demo import TOKENIZER, make_registry
from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rows import TextIds
from scanner.detection.rules import Rules
from scanner.detection.stated_shares import StatedShares
from scanner.looks.accounts.follow_up import ACCOUNTS_TABLE, AccountUnit, AccountWorker
from scanner.looks.accounts.judge import AccountJudge
from scanner.looks.accounts.post_rows import by_account
from scanner.looks.accounts.posts import ROWS_A_PART, PostGroup, part_of
from scanner.registry import load_registry, new_key
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import ACCOUNT_POSTS
from tests.bench.real_accounts import NOW, EachMessage, cut, posts_of, show
from tests.bench.spans import sample
from tests.fixed import fix_secrets
from tests.support.night import Night

ACCOUNTS = "accounts = { nights = 1 }"
ROWS_A_FILE = 20_000


def night(folder: Path, accounts: int, posts_each: int, parts: int) -> Iterator[str]:
    """Lines on memory and CPU seconds of some parts of a night."""
    make_registry(folder / "registry")
    scanned = Night(folder, folder / "registry")
    scanned.configure(more=ACCOUNTS, columns='account = "who"')
    plan = replace(scanned.plan(), documents=accounts * posts_each)
    open_tables(plan.results, ["account_posts", "audit_counts", ACCOUNTS_TABLE])
    shards = write_posts(plan.results, accounts, posts_each)
    unit = AccountUnit("night", PostGroup(shards, None, -(-accounts * posts_each // ROWS_A_PART)), NOW, NOW.date())
    worker = AccountWorker(plan, f"{NOW:%Y%m%dT%H%M%SZ}", unit)
    yield f"{len(unit.parts)} parts; peak before the first {peak():.0f} MiB"
    for part in range(min(parts, len(unit.parts))):
        began = time.process_time()
        part_of(plan.results, unit.together, part)
        read = time.process_time()
        done = worker.do(part)
        took = f"{time.process_time() - read:.1f} CPU s, of which {read - began:.1f} to read"
        counts = f"{done.totals.tested} accounts, {done.totals.flagged} flagged"
        yield f"part {part}: {counts}, {took}; peak so far {peak():.0f} MiB"


def write_posts(results: str, accounts: int, posts_each: int) -> tuple[str, ...]:
    """The shards of posts that accounts wrote in turn, as scans write them."""
    ids, texts, random = TextIds(b"audit secret, 16"), cut(sample()[1]), np.random.default_rng(1)
    shards, files = [], []
    for first in range(0, accounts * posts_each, ROWS_A_FILE):
        rows = range(first, min(first + ROWS_A_FILE, accounts * posts_each))
        shards.append(f"shard {first}")
        columns = {name: [shards[-1]] * len(rows) for name in ("scan_id", "shard_id", "path")}
        names = pa.array([f"account {i % accounts}" for i in rows])
        columns |= {"row": list(rows), "account": ids.of_accounts(names), "account_id": names}
        columns |= {"created_at": [NOW] * len(rows)}
        columns |= {"text": [texts[i].encode() for i in random.integers(0, len(texts), len(rows))]}
        columns |= {name: [None] * len(rows) for name in ACCOUNT_POSTS.names if name not in columns}
        file = write_file(results, "account_posts", by_account([pa.RecordBatch.from_pydict(columns, ACCOUNT_POSTS)]))
        assert file is not None
        files.append(TableEntry(shards[-1], (file,)))
    commit(results, "account_posts", files)
    return tuple(shards)


def proofs(folder: Path, accounts: int, sizes: Sequence[int]) -> Iterator[str]:
    """Lines on what proofs add to the test of accounts of so many posts."""
    make_registry(folder)
    keys, texts, random = load_registry(folder).keys, np.array(cut(sample()[1]), object), np.random.default_rng(1)
    stated = StatedShares(account=Fraction(len(keys), 2))
    opened, rules = open_keys(folder, keys), Rules(1.0, len(keys), stated=stated)
    for size in sizes:
        posts, seconds = posts_of([random.choice(texts, size).tolist() for _ in range(accounts)]), list[float]()
        for prover in (None, None, lambda keys: open_prover(folder, keys, rules)):  # the first compiles
            judge = AccountJudge(opened, [2.0] * len(keys), EachMessage(), rules, nights=1, open_prover=prover)
            began = time.process_time()
            rows = judge.judge(posts, NOW)
            seconds.append(time.process_time() - began)
        tokens, proved = sum(row["tokens"] for row in rows) / len(rows), sum(row["proof"] == "proved" for row in rows)
        more = (seconds[2] - seconds[1]) / max(proved, 1)
        yield (
            f"{size} posts, {tokens:.0f} tokens: {proved} of {accounts} proved, {more:.3f} CPU s each; "
            f"{seconds[1] / accounts:.3f} without; peak so far {peak():.0f} MiB"
        )


def peak() -> float:
    """Most memory that this process had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def cost(folder: Path, posts: int, posts_each: int, group: Path, repeats: int) -> Iterator[str]:
    """Lines on CPU seconds of whole scans."""
    fix_secrets(folder / "registry", "k")
    parameters = {"window": 4, "gamma": "1/4"}
    new_key(folder / "registry", "k", format="greenlist-v3", seeds=8, **parameters, messages=1, tokenizer=TOKENIZER)
    scanned = Night(folder, folder / "registry")
    texts = (cut(sample()[1]) * 100)[:posts]
    scanned.write("a", texts, row_group=20_000, who=[f"account {i // posts_each}" for i in range(len(texts))])
    for turn in range(repeats):
        for more in ("", ACCOUNTS):
            config = scanned.configure(more=more, columns='account = "who"', workers=2)
            results = f"results-{turn}-{bool(more)}"
            config.write_text(config.read_text().replace('"results"', f'"{results}"'))
            seconds = cpu_seconds(group, sys.executable, "-m", "jobs.cli", "scan", str(config))
            yield f"{len(texts)} posts, {posts_each} an account, {more or 'no accounts'}: {seconds:.1f} CPU s"


def cpu_seconds(group: Path, *command: str) -> float:
    """CPU seconds of a command with all processes that it starts, in a control group that nothing else is in."""
    used, before = group / "cpuacct.usage", int((group / "cpuacct.usage").read_text())
    subprocess.run(["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group, *command], check=True)
    return (int(used.read_text()) - before) / 1e9


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--night", type=float, default=0, help="accounts")
    parser.add_argument("--parts", type=int, default=3, help="parts of the night that are tested")
    parser.add_argument("--cost", type=int, default=0, help="posts")
    parser.add_argument("--proofs", type=int, nargs="*", default=(), help="posts of accounts whose proofs are timed")
    parser.add_argument("--accounts", type=int, default=4, help="accounts of each size whose proofs are timed")
    parser.add_argument("--group", type=Path, help="folder of the control group")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--posts-each", type=int, default=1, help="posts of an account")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.night:
            show(night(folder, int(asked.night), asked.posts_each, asked.parts))
        if asked.proofs:
            show(proofs(folder / "demo", asked.accounts, asked.proofs))
        if asked.cost:
            show(cost(folder, asked.cost, asked.posts_each, asked.group, asked.repeats))


if __name__ == "__main__":
    main()

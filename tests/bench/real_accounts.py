"""Accounts of real posts, and the cost of testing accounts: `python -m tests.bench.real_accounts`.

Found: posts of 20 tokens, cut from what the demo's model wrote for one user, alone or among posts by people; under all
keys of the demo, with all their messages, at 1e-6. A name is wrong where it is not that user's message. People:
accounts of posts cut from the texts of one file each, which nobody marked, at 1e-2 under the demo's keys, and under a
decoy key for each. Night: one post for each of so many accounts, in files as scans write them: memory and CPU seconds
of parts. Cost: whole scans, without Ray, of the same posts with and without accounts, in turn.
"""

import argparse
import functools
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from jobs.demo.demo_keys import KEYS, TOKENIZER, make_registry
from scanner.audit.in_every_scan.account_decoys import AccountDecoys
from scanner.audit.in_every_scan.decoy_keys import Decoys
from scanner.detection.accounts import AccountJudge, Posts
from scanner.detection.posts import by_account
from scanner.detection.published import TextIds
from scanner.detection.scan_plan import open_keys
from scanner.detection.under_test import Origin
from scanner.registry import Named, load_registry, new_key
from scanner.results.account_posts import ROWS_A_PART, Together, part_of, some_accounts
from scanner.results.tables import Entry, commit, open_tables, write_file
from scanner.tokens import Tokenizer, load_tokenizer, sha256_file
from schemas.evidence_tables import ACCOUNT_POSTS
from schemas.words import Naming
from tests.bench.accounts import share
from tests.bench.spans import sample
from tests.fixed import fix_secrets
from tests.support.night import Night
from tests.support.without_ray import put_in_the_place_of_ray

TOKENS = 20
NOW = datetime(2026, 11, 22, tzinfo=UTC)


class EachMessage:
    """Holders where every message has a user, whose name is the message's number."""

    def naming(self, _key_id: str, message: int, _at: datetime) -> Named:
        """The user of a message, who is named by its number."""
        return Named(Naming.NAMED, str(message), None)


def judge_of(folder: Path, rate: float) -> tuple[AccountJudge, AccountDecoys]:
    """A judge of accounts under the demo's keys, and decoys of all accounts."""
    make_registry(folder)
    keys = load_registry(folder).keys
    judge = AccountJudge(
        open_keys(folder, keys), [2.0 * len(keys)] * len(keys), EachMessage(),
        nights=1, dedup="ngram", min_scored=16, false_positive_rate=rate,
    )  # fmt: skip
    return judge, AccountDecoys(Decoys(b"audit secret, 16", keys, "ngram", 1.0, 0.0), Origin("", "", ""), "bench")


@functools.cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))


def cut(texts: Sequence[str]) -> list[str]:
    """Posts of TOKENS tokens; the rest of a text is left out."""
    posts = []
    for text in texts:
        _, stand = _tokenizer().reference.places(text)
        ends = stand[TOKENS - 1 :: TOKENS, 1].tolist()
        posts += [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return posts


def posts_of(accounts: Sequence[Sequence[str]]) -> Posts:
    """Posts of accounts, all of one night."""
    begins = np.concatenate([[0], np.cumsum([len(posts) for posts in accounts])]).astype(np.int64)
    texts = [post for posts in accounts for post in posts]
    names = [str(i) for i in range(len(accounts))]
    return Posts(texts, begins, np.zeros(len(texts), np.int64), names, [None] * len(texts))


def found(folder: Path, sizes: Sequence[int]) -> Iterator[str]:
    """Lines on accounts of so many posts, by key."""
    judge, _ = judge_of(folder, 1e-6)
    marked, human = sample()
    of_people = cut(human)
    for key_id in KEYS:
        of_message: dict[int, list[str]] = {}
        for one in marked.get(key_id, []):
            of_message.setdefault(one.message, []).extend(cut([one.text]))
        for size in sizes:
            accounts, messages, own = [], [], 0
            for i, (message, posts) in enumerate(of_message.items()):
                if len(posts) >= min(size, 10):
                    random = np.random.default_rng([size, i])
                    others = random.choice(len(of_people), max(size - len(posts), 0), replace=False)
                    mixed = [*posts[:size], *(of_people[j] for j in others)]
                    accounts.append([mixed[j] for j in random.permutation(len(mixed))])
                    messages.append(str(message))
                    own += len(posts[:size])
            if accounts:
                rows = judge.judge(posts_of(accounts), NOW)
                names = [(messages[int(row["account_id"])], one) for row in rows for one in row["named"] or ()]
                right = sum(one["user_id"] == wanted and one["key_id"] == key_id for wanted, one in names)
                told = f"named right {share(right, len(accounts))}, wrong names {len(names) - right}"
                of_each = f"{size} posts, {own / len(accounts):.0f} of them marked (mean)"
                yield f"{key_id}: {of_each}: flagged {len(rows)}, {told}"


def people(folder: Path, corpus: Path, accounts: int, sizes: Sequence[int]) -> Iterator[str]:
    """Lines on accounts of people."""
    judge, _ = judge_of(folder / "flags", 1e-2)
    rows = pl.read_parquet(corpus, columns=["path", "text"]).group_by("path", maintain_order=True)
    files = rows.agg(pl.col("text").str.join("\n\n"))["text"].sample(fraction=1.0, shuffle=True, seed=1)
    for size in sizes:
        wanted, found = max(accounts // size, 20), list[list[str]]()
        for text in files.filter(files.str.len_chars() > 3 * TOKENS * size):
            if len(found) == wanted:
                break
            posts = cut([text[: 12 * TOKENS * size]])[:size]
            found += [posts] * (len(posts) == size)
        if not found:
            yield f"{size} posts: no file is long enough"
            continue
        _, decoys = judge_of(folder / str(size), 1e-2)
        flagged = []
        for few in range(0, len(found), 50):
            flagged += judge.judge(posts_of(found[few : few + 50]), NOW, decoys)
        yield f"{size} posts: flagged {share(len(flagged), len(found))} at 0.01; rates of single keys are below it"
        counts = pa.Table.from_batches(decoys.rows()).to_pylist()
        for kind in ("decoy_accounts", "decoy_evidence"):
            for level in (0.1, 0.01):
                of_level = [row for row in counts if row["kind"] == kind and row["threshold"] == level]
                hits, tests = (sum(row[name] for row in of_level) for name in ("hits", "tests"))
                expected = sum(row["expected"] for row in of_level)
                yield f"{size} posts: {kind} at {level}: {share(hits, tests)}, expected {expected:.1f}"


def night(folder: Path, accounts: int, parts: int) -> Iterator[str]:
    """Lines on memory and CPU seconds of some parts of a night."""
    results, random = str(folder), np.random.default_rng(1)
    ids = TextIds(b"audit secret, 16")
    open_tables(results, ["account_posts"])
    shards = []
    for first in range(0, accounts, 20_000):
        shards.append(f"shard {first}")
        columns = {name: [shards[-1]] * 20_000 for name in ("scan_id", "shard_id", "path")}
        names = pa.array([f"account {i}" for i in range(first, first + 20_000)])
        texts = random.integers(97, 123, (20_000, 100), dtype=np.uint8)
        columns |= {"row": range(20_000), "account": ids.of_accounts(names), "account_id": names}
        columns |= {"created_at": [NOW] * 20_000, "text": [text.tobytes() for text in texts]}
        rows = pa.RecordBatch.from_pydict(columns, ACCOUNT_POSTS)
        file = write_file(results, "account_posts", by_account([rows]))
        assert file is not None
        commit(results, "account_posts", [Entry(shards[-1], (file,))])
    together = Together(tuple(shards), None, -(-accounts // ROWS_A_PART))
    for part in range(parts):
        began = time.process_time()
        rows = part_of(results, together, part)
        read = time.process_time() - began
        for some in some_accounts(rows, 2**22):
            Posts.of_rows(some)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        said = f"{len(rows)} posts, read in {read:.1f} CPU s; peak {peak:.0f} MiB so far"
        yield f"part {part} of {together.parts}: {said}"


def cost(folder: Path, posts: int, repeats: int) -> Iterator[str]:
    """Lines on CPU seconds of whole scans."""
    fix_secrets(folder / "registry", "k")
    parameters = {"window": 4, "gamma": "1/4"}
    new_key(folder / "registry", "k", format="greenlist-v2", **parameters, messages=1, tokenizer=TOKENIZER)
    scanned = Night(folder, folder / "registry")
    texts = (cut(sample()[1]) * 100)[:posts]
    scanned.write("a", texts, row_group=20_000, who=[f"account {i // 10}" for i in range(len(texts))])
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        for turn in range(repeats):
            for more in ("", "accounts = { nights = 1 }"):
                scanned.configure(more=more, columns='account = "who"')
                scanned.results = str(folder / f"results {turn} {bool(more)}")
                scanned.config.write_text(scanned.config.read_text().replace('"results"', f'"{scanned.results}"'))
                began = time.process_time()
                scanned.scan()
                yield f"{len(texts)} posts, {more or 'no accounts'}: {time.process_time() - began:.1f} CPU s"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--found", type=int, nargs="*", default=(), help="posts of an account, such as 5 20 100 1000")
    parser.add_argument("--people", type=Path, help="human.parquet")
    parser.add_argument("--accounts", type=int, default=2_000, help="accounts of people are so many over their posts")
    parser.add_argument("--night", type=float, default=0, help="accounts")
    parser.add_argument("--cost", type=int, default=0, help="posts")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = (
            found(folder / "found", asked.found) if asked.found else (),
            people(folder / "people", asked.people, asked.accounts, (5, 20, 100, 1_000)) if asked.people else (),
            night(folder / "night", int(asked.night), 3) if asked.night else (),
            cost(folder, asked.cost, 3) if asked.cost else (),
        )
        for lines in parts:
            for line in lines:
                print(line, flush=True)


if __name__ == "__main__":
    main()

"""Accounts of real posts: `python -m tests.bench.real_accounts`.

Found: posts of 20 tokens, cut from what the demo's model wrote for one user. A share of an account's posts is marked,
people wrote the others. All keys of the demo are tested with all their messages, at 1e-6. A name is wrong where it is
not that user's message. The demo's sample has some 20 posts a user. For larger accounts `brickscan mark` writes texts:

    python -c "from pathlib import Path; from jobs.demo import *; make_registry(Path('registry'))"
    brickscan mark --registry registry --key demo-gumbel --user user-01 --model .model/smollm2-135m-instruct \\
        --prompts jobs/demo/prompts.txt --max-new-tokens 400 --out gumbel-01.parquet
    python -m tests.bench.real_accounts --marked gumbel-01.parquet --found 5 20 100 1000

People: accounts of posts cut from the texts of one file each, which nobody marked, under the demo's keys, and under a
decoy key for each.
"""

import argparse
import functools
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from jobs.demo import KEYS, TOKENIZER, make_registry
from scanner.controls.decoys.account_observer import AccountDecoyObserver
from scanner.controls.decoys.draws import Decoys
from scanner.detection.attribution import BatchOrigin
from scanner.detection.open_plan import open_keys
from scanner.detection.rules import Rules
from scanner.looks.accounts.judge import AccountJudge, Posts
from scanner.registry import NamedUser, load_registry
from scanner.text import Tokenizer, load_tokenizer, sha256_file
from scanner.watermark.rule import passes
from schemas.words import Naming
from tests.bench.accounts import RATE, share
from tests.bench.spans import Marked, sample

TOKENS = 20
LEVELS = (0.1, 0.01, 0.001)
"""Rates at which accounts of people are tested."""

AT_ONCE = 50
"""Accounts that are tested at a time."""

NOW = datetime(2026, 11, 22, tzinfo=UTC)

Account = TypeVar("Account")


class EachMessage:
    """Holders where every message has a user, whose name is the message's number."""

    def naming(self, _key_id: str, message: int, _at: datetime) -> NamedUser:
        """The user of a message, who is named by its number."""
        return NamedUser(Naming.NAMED, str(message), None)


def read_marked(files: Sequence[Path]) -> dict[str, list[Marked]]:
    """Texts by key that `brickscan mark` wrote."""
    marked: dict[str, list[Marked]] = {}
    for file in files:
        for key_id, *text in pl.read_parquet(file).select("key_id", "text", "message").iter_rows():
            marked.setdefault(key_id, []).append(Marked(*text))
    return marked


class Judgement(NamedTuple):
    """A judge of accounts under the demo's keys, decoys of all accounts, and the share of a rate that accounts have."""

    judge: AccountJudge
    decoys: AccountDecoyObserver
    share: float


def judged(folder: Path, rate: float) -> Judgement:
    """A judge that tests accounts as half of the looks of all keys of the demo."""
    make_registry(folder)
    keys = load_registry(folder).keys
    opened, tests = open_keys(folder, keys), 2.0 * len(keys)
    judge = AccountJudge(opened, [tests] * len(keys), EachMessage(), Rules(rate, len(keys)), nights=1)
    decoys = AccountDecoyObserver(
        Decoys(b"audit secret, 16", keys, "ngram", 1.0, 0.0), BatchOrigin("", "", ""), b"accounts;bench;"
    )
    return Judgement(judge, decoys, sum(test.watermark.basis.proven for test in opened) / tests)


@functools.cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))


def cut(texts: Sequence[str]) -> list[str]:
    """Posts of TOKENS tokens; the rest of a text is left out."""
    posts = []
    for text in texts:
        _, stand = _tokenizer().reference.encode_with_offsets(text)
        ends = stand[TOKENS - 1 :: TOKENS, 1].tolist()
        posts += [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return posts


def posts_of(accounts: Sequence[Sequence[str]]) -> Posts:
    """Posts of accounts, all of one night."""
    begins = np.concatenate([[0], np.cumsum([len(posts) for posts in accounts])]).astype(np.int64)
    texts = [post for posts in accounts for post in posts]
    names = [str(i) for i in range(len(accounts))]
    return Posts(texts, begins, names, [None] * len(texts))


class Mixed(NamedTuple):
    """An account's posts, and the message that some of them are marked for."""

    posts: list[str]
    message: int


def mixed(marked: Sequence[Marked], of_people: Sequence[str], size: int, own: int) -> list[Mixed]:
    """Accounts of so many posts, of which `own` are marked for one message; each marked post is in one account."""
    of_message: dict[int, list[str]] = {}
    for one in marked:
        of_message.setdefault(one.message, []).extend(cut([one.text]))
    random, accounts = np.random.default_rng(size), []
    for message, posts in of_message.items():
        for first in range(0, len(posts) - own + 1, own):
            others = random.choice(np.array(of_people, object), size - own, replace=False)
            together = [*posts[first : first + own], *others]
            accounts.append(Mixed([together[i] for i in random.permutation(size)], message))
    return accounts


def found(folder: Path, marked: dict[str, list[Marked]], sizes: Sequence[int], share_marked: float) -> Iterator[str]:
    """Lines on accounts of so many posts, by key."""
    judge = judged(folder, RATE).judge
    of_people = cut(sample()[1])
    for key_id, size in product([key_id for key_id in KEYS if key_id in marked], sizes):
        own = max(round(share_marked * size), 1)
        accounts = mixed(marked[key_id], of_people, size, own)
        right, wrong = 0, 0
        for few in batched(accounts):
            for row in judge.judge(posts_of([account.posts for account in few]), NOW):
                wanted = key_id, str(few[int(row["account_id"])].message)
                names = [(one["key_id"], one["user_id"]) for one in row["named"] or ()]
                wrong += sum(name != wanted for name in names)
                right += wanted in names
        if accounts:
            yield f"{key_id}: {size} posts, {own} marked: named right {share(right, len(accounts))}"
            yield f"{key_id}: {size} posts, {own} marked: wrong names {wrong}"


def people(folder: Path, corpus: Path, accounts: int, sizes: Sequence[int]) -> Iterator[str]:
    """Lines on accounts of people."""
    judge, _, of_accounts = judged(folder / "flags", LEVELS[0])
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
        decoys = judged(folder / str(size), LEVELS[0]).decoys
        began, log10_p = time.process_time(), list[float]()
        for few in batched(found):
            log10_p += [row["log10_p_global"] for row in judge.judge(posts_of(few), NOW, decoys)]
        yield f"{size} posts: {len(found)} accounts in {time.process_time() - began:.0f} CPU s"
        for level in LEVELS:
            flagged = int(passes(log10_p, level).sum())
            expected = f"expected {of_accounts * level:.2g} at most"
            yield f"{size} posts: flagged at {level}: {share(flagged, len(found))}, {expected}"
        counts = pa.Table.from_batches(decoys.rows()).to_pylist()
        for level in (0.1, 0.01):
            of_level = [row for row in counts if row["threshold"] == level]
            hits, tests, expected = (sum(row[name] for row in of_level) for name in ("hits", "tests", "expected"))
            yield f"{size} posts: decoys at {level}: {share(hits, tests)}, expected {expected:.1f}"


def batched(accounts: Sequence[Account]) -> Iterator[Sequence[Account]]:
    """A few accounts at a time."""
    return (accounts[first : first + AT_ONCE] for first in range(0, len(accounts), AT_ONCE))


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--found", type=int, nargs="*", default=(), help="posts of an account, such as 5 20 100 1000")
    parser.add_argument("--marked", type=Path, nargs="*", help="files of `brickscan mark`; else the demo's sample")
    parser.add_argument("--share", type=float, default=1.0, help="share of an account's posts that is marked")
    parser.add_argument("--people", type=Path, help="human.parquet")
    parser.add_argument("--accounts", type=int, default=2_000, help="accounts of people are so many over their posts")
    parser.add_argument("--sizes", type=int, nargs="*", default=(5, 20, 100, 1_000), help="posts of a person's account")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.found:
            marked = read_marked(asked.marked) if asked.marked else sample()[0]
            show(found(folder / "found", marked, asked.found, asked.share))
        if asked.people:
            show(people(folder / "people", asked.people, asked.accounts, asked.sizes))


def show(lines: Iterator[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()

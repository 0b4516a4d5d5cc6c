"""A night of forty flags for moderators, twenty of them traps, each with the decision that is right for it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

from scanner.registry import list_users, new_key, restore_users, set_canaries
from scanner.watermark.native.version3_marks import Version3Mark
from schemas.registry import Canaries, Canary, is_reserved
from schemas.tables import FLAGS, USER_EVENTS
from schemas.words import Naming, Proof
from tests.fixed import fix_secrets
from tests.support.night import Night
from tests.support.opened import opened
from tests.support.signed_tables import sign_as_it_is
from tests.support.two_keys import TOKENIZER, Words, marked_text, plain_text
from tests.watermark.pairs import batch_tokens

WINDOW, LENGTH = 3, 110
CANARY = "canary-00112233445566ff"
PEOPLE = [f"user-{i:02}" for i in range(20)]
POSTED = datetime(2026, 8, 1, 9, tzinfo=UTC)


class Post(NamedTuple):
    """A post of an account, and the decision that is right for its flag: None, to record nothing."""

    name: str
    account: str
    text: str
    right: str | None


class Moderated(NamedTuple):
    """A scanned night, and the right decision for each flag, by the id of its document."""

    night: Night
    right: dict[str, str | None]


def moderated_night(folder: Path, words: Words) -> Moderated:
    """Scan a night under a key of version 3, `new`, and one of version 1, `old`. Two flags have a proof that differs.

    No text makes a proof differ, so these two rows are written by hand, and signed as an operator would.
    """
    registry = folder / "registry"
    _make_keys(registry)
    posts = _posts(registry, words)
    night = Night(folder, registry)
    # the platform's record: each of these users has an account, which is called like the user
    (folder / "owners.csv").write_text("\n".join(["account_id,user_id", *(f"{user},{user}" for user in PEOPLE)]) + "\n")
    owners = 'evidence = { account_owners = "owners.csv" }'
    night.configure(more=owners, columns='account = "account"\ntime = "posted"')
    times = [POSTED + timedelta(minutes=i) for i in range(len(posts))]
    about = {"doc_id": [post.name for post in posts], "account": [post.account for post in posts], "posted": times}
    night.write("posts", [post.text for post in posts], **about)
    night.scan()
    rows = pl.read_delta(f"{night.results}/flags")
    refuted = pl.col("doc_id").str.starts_with("refuted")
    unproved = {"naming": Naming.UNPROVED, "proof": Proof.DIFFERS, "user_id": None, "named": None, "held_since": None}
    columns = (pl.when(refuted).then(pl.lit(value)).otherwise(name).alias(name) for name, value in unproved.items())
    changed = rows.with_columns(*columns).to_arrow().cast(FLAGS)
    write_deltalake(f"{night.results}/flags", changed, mode="overwrite")
    sign_as_it_is(night)
    return Moderated(night, {post.name: post.right for post in posts})


def _make_keys(registry: Path) -> None:
    fix_secrets(registry, "new", "old")
    key = {"window": WINDOW, "gamma": "1/4", "tokenizer": TOKENIZER}
    new_key(registry, "new", format="greenlist-v3", seeds=8, messages=1600, **key)
    new_key(registry, "old", format="greenlist", messages=1000, **key)
    at = POSTED - timedelta(days=60)
    free = [message for message in range(1000) if not is_reserved(message)]
    drawn = np.random.default_rng(7).permutation(free)[: len(PEOPLE) + 1].tolist()
    held = dict(zip([*PEOPLE, CANARY], drawn, strict=True))
    events = [("new", message, user, "allocated", at) for user, message in held.items()]
    events += [("old", message, user, "allocated", at) for user, message in held.items()]
    rows = [dict(zip(USER_EVENTS.names, event, strict=True)) for event in events]
    restore_users(registry, pa.Table.from_pylist(rows, USER_EVENTS))
    made = Canary(account_id=CANARY, key_id="new", message=held[CANARY], names=True)
    set_canaries(registry, Canaries(power=0.5, made=(made,)))


def _posts(registry: Path, words: Words) -> list[Post]:
    new, old, plain = _writer(registry, words), marked_text(registry, words, "old"), plain_text(words)
    held = dict(list_users(registry, ["new"]).select("user_id", "message").iter_rows())
    version_1 = dict(list_users(registry, ["old"]).select("user_id", "message").iter_rows())
    own = [new(held[user], 100 + i) for i, user in enumerate(PEOPLE)]
    posts = [Post(f"own-{i}", user, own[i], "confirmed") for i, user in enumerate(PEOPLE)]
    for i in range(3):
        quoted = "".join(f">{line}\n" for line in _lines(new(held[PEOPLE[i]], 200 + i)))
        posts.append(Post(f"quoted-{i}", f"reader-{i}", f"{quoted}\n{plain(90, i)}\n", "quoted"))
        posts.append(Post(f"copied-{i}", f"thief-{i}", own[i + 5] + plain(4, i), "quoted"))
        posts.append(Post(f"canary-{i}", f"tester-{i}", new(held[CANARY], 300 + i), "allowed"))
    for i in range(4):
        posts.append(Post(f"other-{i}", f"somebody-{i}", new(held[PEOPLE[i]], 400 + i), "unclear"))
        posts.append(Post(f"version-1-{i}", PEOPLE[i], old(version_1[PEOPLE[i]], LENGTH, 500 + i), "unclear"))
    free = next(message for message in range(1000, 1600) if not is_reserved(message))
    posts.append(Post("nobody", "nobody-s", new(free, 600), "unclear"))
    posts += [Post(f"refuted-{i}", PEOPLE[i], new(held[PEOPLE[i]], 700 + i), None) for i in range(2)]
    return posts


def _lines(text: str) -> list[str]:
    found = text.split(" ")
    return [" ".join(["", *found[at : at + 20]]).rstrip() for at in range(0, len(found), 20)]


def _writer(registry: Path, words: Words) -> Callable[[int, int], str]:
    """Writes LENGTH words for a message of `new`, each the best of 20."""
    mark = next(key.watermark for key in opened(registry) if key.key.key_id == "new")
    assert isinstance(mark, Version3Mark)

    def write(message: int, seed: int) -> str:
        generator = np.random.default_rng(seed)
        chosen = generator.integers(len(words.words), size=WINDOW).tolist()
        while len(chosen) < LENGTH:
            drawn = generator.integers(len(words.words), size=20).tolist()
            tokens = batch_tokens([words.tokens[[*chosen[-WINDOW:], one]] for one in drawn])
            chosen.append(drawn[int(mark.score(tokens, mark.rule.positions(tokens, "none"), message).argmax())])
        return "".join(" " + words.words[i] for i in chosen)

    return write

"""A key with groups of users who hold the same messages in every run, and texts that are marked for them."""

import hashlib
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from scanner.detection.attribution import OpenedKey
from scanner.registry import list_users, new_key, restore_users
from scanner.watermark.native.version3_marks import Version3Mark
from schemas.registry import is_reserved
from schemas.tables import USER_EVENTS
from tests.support.opened import opened
from tests.support.two_keys import TOKENIZER
from tests.watermark.pairs import batch_tokens

GROUPS = 40
USERS = [f"user-{i:04}" for i in range(600)]


def give_messages(folder) -> None:
    """Give all users the same messages in every run: random ones could put two users of a test into one group."""
    free = [message for message in range(GROUPS**2) if not is_reserved(message)]
    drawn = np.random.default_rng(1).permutation(free)[: len(USERS)].tolist()
    row = {"key_id": "k", "event": "allocated", "at": datetime.now(UTC)}
    rows = [row | {"message": message, "user_id": user} for message, user in zip(drawn, USERS, strict=True)]
    restore_users(folder, pa.Table.from_pylist(rows, USER_EVENTS))


def make_key(folder, form: str, **parameters) -> tuple[str, OpenedKey]:
    parameters = {"window": 2, "seeds": 8, **parameters} | ({"gamma": "1/4"} if "green" in form else {})
    (folder / "secrets").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    secret = folder / "secrets" / "k.key"
    secret.write_text(hashlib.sha256(b"groups").hexdigest())
    secret.chmod(0o600)
    new_key(folder, "k", format=form, messages=GROUPS**2, tokenizer=TOKENIZER, **parameters)
    give_messages(folder)
    (under_test,) = opened(folder)
    return folder, under_test


def writer(key, words):
    """Writes text of so many words for a message, each the best of 20; `shared`: marked only in steps of the group."""
    mark = key[1].watermark
    assert isinstance(mark, Version3Mark)

    def make(message: int, length: int, seed: int, shared: bool = False) -> str:
        generator = np.random.default_rng(seed)
        chosen = generator.integers(len(words.words), size=2).tolist()
        while len(chosen) < length:
            drawn = generator.integers(len(words.words), size=20).tolist()
            tokens = batch_tokens([words.tokens[[*chosen[-2:], one]] for one in drawn])
            positions = mark.rule.positions(tokens, "none")
            best = int(mark.score(tokens, positions, message).argmax())
            chosen.append(drawn[best if not shared or mark.group_steps(tokens, positions)[0] else 0])
        return "".join(" " + words.words[i] for i in chosen)

    return make


def held(key) -> dict[str, int]:
    rows = list_users(key[0], ["k"])
    return dict(zip(rows["user_id"], rows["message"], strict=True))

"""The demo's registry: four keys with public secrets and forty users, made afresh by the real registry code.

Two keys are of our own formats, each with room for a thousand million users. One is of version 1 of these, the paper's.
One is of vLLM's format, with which a server marks for everybody alike.

The shipped texts were marked with these secrets and messages, so both ship with the texts. Under version 3 all draws
follow from the public records too: where their form or terms change, `make sample` has to write the texts anew.
Whoever has this project can mark for any of these users: the secrets are a demonstration and protect nothing.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from scanner.registry import new_key, restore_users, set_canaries
from scanner.watermark.native.format import groups_for
from schemas.registry import Canaries, Canary
from schemas.tables import USER_EVENTS

HERE = Path(__file__).parent
SECRETS = HERE / "secrets"
USERS_FILE = HERE / "users.parquet"
CANARY_USERS = HERE / "canary-users.parquet"
CANARY_POWER = 0.9
"""Planned share of canaries' texts that are found and named right: some will be shorter than these marks need."""
TOKENIZER = HERE / "tokenizer.json"

GROUPS = groups_for(1e9)
SEEDS = 20
"""2^20 seeds, where `keys new` takes 2^24: the demo makes its keys anew each time, which takes less so."""

KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "demo-greenlist": ("greenlist-v3", {"window": 4, "gamma": "1/4", "groups": GROUPS, "seeds": SEEDS}),
    "demo-gumbel": ("gumbel-v3", {"window": 4, "groups": GROUPS, "seeds": SEEDS}),
    "demo-paper": ("greenlist", {"window": 4, "gamma": "1/4"}),
    "demo-vllm": ("vllm-gumbel", {}),
}
"""Formats of the keys and their parameters, by key id."""

MARKED_SINCE = datetime(2026, 10, 1, tzinfo=UTC)
"""Time when the users of the demo got their messages; its texts were marked thereafter."""

MESSAGES = {"demo-greenlist": GROUPS**2, "demo-gumbel": GROUPS**2, "demo-paper": 100_000, "demo-vllm": 1}


def make_registry(folder: Path, *, canaries: bool = False) -> None:
    """Make the demo's registry in a folder that holds none, with its users if they are on file, and canaries if asked.

    The secrets are copied in with mode 0600: git keeps no such modes, and a secret that others can read is refused.
    """
    secrets = folder / "secrets"
    secrets.mkdir(parents=True)
    for key_id, (method, parameters) in KEYS.items():
        copy = secrets / f"{key_id}.key"
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write((SECRETS / copy.name).read_bytes())
        new_key(
            folder,
            key_id,
            format=method,
            **parameters,
            messages=MESSAGES[key_id],
            tokenizer=TOKENIZER,
            secret=f"file:secrets/{copy.name}",
            active_from=MARKED_SINCE,
        )
    if USERS_FILE.exists():
        restore_users(folder, pq.read_table(USERS_FILE).cast(USER_EVENTS))
    if canaries:
        table = pq.read_table(CANARY_USERS).cast(USER_EVENTS)
        restore_users(folder, table)
        made = tuple(
            Canary(account_id=row["user_id"], key_id=row["key_id"], message=row["message"], names=True)
            for row in table.to_pylist()
        )
        set_canaries(folder, Canaries(power=CANARY_POWER, made=made))

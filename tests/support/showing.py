"""A registry with a key of version 3, and claims that show the seeds of texts, as far as the registry is concerned."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from scanner.registry import add_users, find_key, load_registry, new_key, open_key, read_secret, tokenizer_path
from scanner.registry.shown_seeds import ShownEvent, append_event
from scanner.text import load_tokenizer
from scanner.watermark.formats import format_of
from scanner.watermark.native.tree import leaf_of, seed_of
from scanner.watermark.positions import rule_with_shown
from tests.fixed import fix_secrets
from tests.support.two_keys import TOKENIZER

SEEDS = 10
"""n of the keys: so few seeds that a text of a hundred tokens shows a tenth of them."""


def make_seeded_registry(folder: Path, *key_ids: str) -> Path:
    """Keys of version 3 (SmolLM2's tokenizer), of which alice and bob hold messages; `seeded` where none are named."""
    names = key_ids or ("seeded",)
    fix_secrets(folder, *names)
    for key_id in names:
        parameters = {"window": 3, "gamma": "1/4", "seeds": SEEDS}
        new_key(folder, key_id, format="greenlist-v3", messages=400, tokenizer=TOKENIZER, **parameters)
    add_users(folder, None, ["alice", "bob"], datetime.now(UTC) - timedelta(minutes=1))
    return folder


def show_text(folder: Path, text: str, key_id: str = "seeded") -> ShownEvent:
    """Record the event of a claim about a whole text."""
    key = find_key(load_registry(folder), key_id)
    mark = open_key(folder, key)
    tokens = load_tokenizer(tokenizer_path(folder, key), key.tokenizer.sha256, fast=False).encode([text])
    positions = rule_with_shown(mark.rule).positions(tokens, "ngram")
    buckets = np.unique(mark.buckets(tokens, positions)).tolist()
    seed_key = format_of(key).seed_key(read_secret(key.secret, folder))
    leaves = [leaf_of(seed_of(seed_key, bucket)) for bucket in buckets]
    return append_event(folder, key_id, text.encode(), buckets, leaves)[0]

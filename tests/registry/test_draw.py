"""Free messages are drawn at random: distinct, never taken or reserved, all equally likely."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.registry import find_key, load_registry
from scanner.registry.chain import FIRST_HEAD, chain_events
from scanner.registry.users import draw
from scanner.registry.users_snapshot import UsersSnapshot
from schemas.tables import USER_EVENTS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def book_of(messages):
    events = [("k1", message, f"u{message}", "allocated", NOON) for message in messages]
    rows = pl.DataFrame(events, schema=pl.Schema(USER_EVENTS), orient="row")
    return UsersSnapshot((), chain_events(rows, 0, FIRST_HEAD), len(messages), FIRST_HEAD)


@pytest.fixture(scope="module")
def key_of(tmp_path_factory):
    """A function that makes a key with so many messages."""
    from scanner.registry import new_key

    place = tmp_path_factory.mktemp("keys")
    tokenizer = place / "tokenizer.json"
    tokenizer.write_text('{"model": {}}')
    new_key(place / "registry", "k1", format="gumbel", window=1, messages=25, tokenizer=tokenizer)
    key = find_key(load_registry(place / "registry"), "k1")
    return lambda messages: key.model_copy(update={"messages": messages})


@given(
    count=st.integers(1, 400),
    taken=st.sets(st.integers(0, 399)),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_drawn_messages_are_free_and_distinct(key_of, count, taken, share, seed):
    allowed = {m for m in range(count) if m % 20 != 19}
    used = sorted(taken & allowed)
    free = len(allowed) - len(used)
    size = round(share * free)
    drawn = draw(book_of(used), key_of(count), free, size, np.random.default_rng(seed)).tolist()
    assert len(drawn) == len(set(drawn)) == size
    assert set(drawn) <= allowed - taken
    assert size < free or set(drawn) == allowed - taken


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("taken", "size"),
    [([0, 5, 18, 20, 40], 3), ([0, 5, 18, 20, 40], 40), ([*range(19), *range(30, 39), 40, 41, 55], 2)],
    ids=["by trial", "by rank, since many are drawn", "by rank, since few are free"],
)
def test_every_free_message_is_equally_likely_at_every_place(key_of, taken, size):
    rng, users_snapshot, key = np.random.default_rng(5), book_of(taken), key_of(60)
    free = [m for m in range(60) if m % 20 != 19 and m not in taken]
    rounds = 4_000
    counts = np.zeros((size, 60), np.int64)
    for _ in range(rounds):
        counts[np.arange(size), draw(users_snapshot, key, len(free), size, rng)] += 1
    assert counts[:, free].sum() == counts.sum() == rounds * size
    for place in (counts[0], counts[-1], counts.sum(0)):
        expected = place.sum() / len(free)
        chi_square = ((place[free] - expected) ** 2 / expected).sum()
        assert chi_square < 140  # 26 to 51 degrees of freedom: exceeded less than once in 10^9 runs

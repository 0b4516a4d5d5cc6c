"""Texts whose best message is reserved are noted while they are scored; the audit counts the same from exact rows."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.controls.reserved.reserved_counts import count_reserved
from scanner.controls.reserved.texts import LARGEST_P, reserved_texts
from scanner.controls.traffic import measure
from scanner.detection.rows import TextIds, for_everybody, with_ids
from schemas.registry import is_reserved
from schemas.tables import VERDICTS
from tests.support.rows import GUMBEL_KEY as KEY
from tests.support.rows import measured, reserved_of, verdict

IDS = TextIds(bytes(range(16)))
OTHER = KEY.model_copy(update={"key_id": "other", "messages": 60})


@pytest.fixture(scope="module")
def shards() -> list[pa.RecordBatch]:
    """Exact rows of four shards, in which texts repeat, under the same account or another."""
    random = np.random.default_rng(2)
    p = -(random.exponential(1.0, 300) ** 1.5)
    texts = [
        {
            "text_sha256": random.bytes(32),
            "key_id": str(random.choice(["k", "other"])),
            "message": int(random.integers(3) * 20 + 19 if i % 2 else random.integers(60)),
            "log10_p_global": float(p[i]) if i % 11 else None,
            "flagged": bool(i % 11 and p[i] <= -4.0),
        }
        for i in range(300)
    ]
    made = []
    for shard in range(4):
        rows = []
        for row in range(200):
            which = int(random.integers(300))
            text = texts[which]
            naming = ("reserved" if is_reserved(text["message"]) else "named") if text["flagged"] else "none"
            account = ["eve", "ann", "canary-1", f"a{which}"][which % 4]
            rows.append(verdict(row, shard_id=f"s{shard}", account_id=account, **text, naming=naming))
        made.append(with_ids(pa.RecordBatch.from_pylist(rows, VERDICTS), IDS))
    return made


def noted(shards: list[pa.RecordBatch], canaries: tuple[str, ...] = ()) -> pl.DataFrame:
    batches = reserved_texts(shards, [KEY, OTHER], "ngram", IDS, canaries)
    return pl.DataFrame(pa.Table.from_batches(batches))


def test_rows_are_those_of_a_plain_loop(shards):
    found = noted(shards, ("canary-1",))
    expected = set()
    for shard in shards:
        for row in shard.to_pylist():
            p = row["log10_p_global"]
            if p is None or p > -1.0 or row["message"] % 20 != 19 or row["account_id"] == "canary-1":
                continue
            threshold = 0.1
            while threshold > 1.5e-8 and p <= np.log10(threshold / 10):
                threshold /= 10
            (text,) = IDS.for_audit(pa.array([row["text_sha256"]]))
            expected.add((row["shard_id"], text, row["key_id"], row["message"], round(np.log10(threshold))))
    said = found.select("shard_id", "text", "key_id", "message", pl.col("threshold").log10().round()).rows()
    assert len(said) == len(expected) > 50
    assert {*said} == expected
    ordinary = found.filter(pl.col("threshold") > LARGEST_P * 1.01)
    assert ordinary["account_id"].null_count() == ordinary.height > 0
    assert found["account_id"].drop_nulls().len() > 0
    assert not {*found["text"]} & {text for shard in shards for text in shard["text_id"].to_pylist()}


def told(without_top_accounts) -> list[tuple]:
    return [(one.accounts, round(one.share, 9), one.hits.sum(axis=0).tolist()) for one in without_top_accounts]


def test_the_audit_counts_the_same_from_published_rows_as_from_exact_ones(shards):
    lengths = ("row", "tokens", "scored", "shown")
    published = [for_everybody(shard, shard.select(lengths)) for shard in shards]
    without = [batch.filter(pa.compute.invert(batch["flagged"])) for batch in published]
    flags = [shard.filter(shard["flagged"]) for shard in shards]
    exact = pl.DataFrame(pa.Table.from_batches(shards))
    verdicts = pl.DataFrame(pa.Table.from_batches(without + flags)).lazy()
    now = measure(verdicts, -4.0)
    before = measured(exact, -4.0)
    for name in ("texts", "flagged", "reserved", "unheld", "scans", "unproved"):
        assert getattr(now, name) == getattr(before, name), name
    assert now.reserved > 0
    now, before = count_reserved(noted(shards).lazy(), verdicts), reserved_of(exact)
    for key in ("k", "other"):
        assert sorted(now.hits[key].tolist()) == sorted(before.hits[key].tolist())
        assert now.hits[key].sum(axis=0)[0] > 20
        assert now.hits[key].shape[1] == len(THRESHOLDS)
        assert told(now.without_top_accounts[key]) == told(before.without_top_accounts[key]) != []

"""The demo's sample holds the rows that its truth lists, and its texts carry the marks that the truth names."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.demo import HERE, KEYS, TOKENIZER, make_registry
from jobs.demo.__main__ import CANARY_TEXTS, REPLIES
from scanner.registry import list_users, load_registry, open_key
from scanner.text import load_tokenizer
from schemas.registry import RESERVED_EVERY
from tests.support.make_sample import BAD_ROWS, string_column

SAMPLES = sorted(HERE.glob("sample-*.parquet"))


@pytest.fixture(scope="module")
def truth() -> pl.DataFrame:
    return pl.concat([pl.read_parquet(HERE / "truth.parquet"), pl.read_parquet(HERE / "truth-3.parquet")])


@pytest.fixture(scope="module")
def documents() -> pa.Table:
    """The sample with its text as bytes, in which invalid UTF-8 can be looked at."""
    tables = [pq.read_table(path) for path in SAMPLES]
    return pa.concat_tables(
        table.set_column(1, "text", pa.chunked_array([c.view(pa.binary()) for c in table["text"].chunks]))
        for table in tables
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "registry"
    make_registry(folder)
    return folder


def test_replies_quote_marked_texts(truth: pl.DataFrame) -> None:
    quoted = truth.filter(pl.col("doc_id").is_in([reply.quoted for reply in REPLIES]))
    assert quoted["kind"].to_list() == ["marked"] * len(REPLIES)
    assert quoted["tokens"].min() >= 200  # long enough to be found beside the own words


def test_it_holds_what_it_should(truth: pl.DataFrame, documents: pa.Table) -> None:
    kinds = dict(truth.group_by("kind").len().iter_rows())
    marked = truth.filter(pl.col("kind") == "marked")
    assert kinds["human"] >= 300
    assert kinds["model"] >= 40
    assert kinds["bad"] == len(BAD_ROWS)
    count = dict(marked.group_by("key_id").len().iter_rows())
    assert min(count["demo-greenlist"], count["demo-gumbel"]) >= 40
    assert count["demo-paper"] >= 30
    assert count["demo-vllm"] >= 25
    assert marked["user_id"].n_unique() >= 20
    assert marked["tokens"].is_between(60, 500).all()
    assert truth.filter(pl.col("kind") == "human")["source"].n_unique() >= 10  # languages and kinds of text
    assert documents.schema.names == ["doc_id", "text", "account_id", "created_at"]
    assert documents["doc_id"].to_pylist() == truth["doc_id"].to_list()
    assert [path.name for path in SAMPLES] == ["sample-1.parquet", "sample-2.parquet", "sample-3.parquet"]
    shipped = [path for path in HERE.rglob("*") if path.is_file() and path != TOKENIZER and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in shipped) < 2_000_000


def test_the_odd_rows_are_in_it(documents: pa.Table) -> None:
    texts = documents["text"].to_pylist()
    for _, text in BAD_ROWS:
        assert text in texts
    ids = documents["doc_id"].to_pylist()
    assert len(set(ids)) == len(ids) - 1
    assert ids.count(None) == 1


def test_users_held_their_messages_before_the_documents_were_posted(
    truth: pl.DataFrame, documents: pa.Table, registry: Path
) -> None:
    users = list_users(registry)
    assert users["user_id"].n_unique() == 40
    assert users["allocated_at"].max() < min(documents["created_at"].to_pylist())
    assert max(documents["created_at"].to_pylist()) < datetime(2026, 11, 20, tzinfo=UTC)
    assert (users["message"] % RESERVED_EVERY != RESERVED_EVERY - 1).all()
    of_users = truth.filter(pl.col("kind") == "marked", pl.col("key_id") != "demo-vllm")
    held = of_users.join(users, on=["key_id", "user_id", "message"], how="anti")
    assert held.is_empty()


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("key_id", KEYS)
def test_the_marks_are_those_of_the_truth(
    key_id: str, truth: pl.DataFrame, documents: pa.Table, registry: Path
) -> None:
    """Nearly every marked text scores high under its own message; other messages score like chance."""
    (key,) = (key for key in load_registry(registry).keys if key.key_id == key_id)
    watermark = open_key(registry, key)
    rows = truth.with_row_index().filter(pl.col("kind") == "marked")
    texts = [documents["text"][i].as_py().decode() for i in rows["index"]]
    tokens = load_tokenizer(TOKENIZER, key.tokenizer.sha256).encode(texts)
    positions = watermark.rule.positions(tokens, "ngram")
    scored = np.diff(positions.offsets)
    own = (rows["key_id"] == key_id).to_numpy()
    messages = rows["message"].to_numpy() % key.messages
    log10_p = watermark.law.log10_p(watermark.score(tokens, positions, messages), scored)
    assert (log10_p[own] < -2).mean() > 0.9
    assert np.median(log10_p[own]) < -12
    assert (log10_p[~own] > -4).all()
    if key.messages > 1:
        others = watermark.score(tokens, positions, (messages + key.messages // 2) % key.messages)  # other groups
        assert (watermark.law.log10_p(others, scored) > -4).all()


@pytest.mark.costly
@pytest.mark.seconds
def test_canaries_are_nobody_and_their_texts_carry_their_messages(tmp_path: Path, truth: pl.DataFrame) -> None:
    make_registry(tmp_path / "registry", canaries=True)
    registry = load_registry(tmp_path / "registry")
    assert registry.canaries is not None
    rows, found = pl.read_parquet(HERE / "canaries.parquet"), 0
    assert rows.height == CANARY_TEXTS == 2 * 20
    assert set(rows["account_id"]) == {canary.account_id for canary in registry.canaries.made}
    assert set(rows["account_id"]).isdisjoint(truth["user_id"].drop_nulls())
    for key, part in zip(registry.keys[:2], (rows[:20], rows[20:]), strict=True):
        message_of = {c.account_id: c.message for c in registry.canaries.made if c.key_id == key.key_id}
        watermark = open_key(tmp_path / "registry", key)
        tokens = load_tokenizer(TOKENIZER, key.tokenizer.sha256).encode(part["text"].to_list())
        positions = watermark.rule.positions(tokens, "ngram")
        messages = np.array([message_of[account] for account in part["account_id"]])
        log10_p = watermark.law.log10_p(watermark.score(tokens, positions, messages), positions.scored)
        found += int((log10_p <= np.log10(1e-6 / key.messages / len(registry.keys))).sum())
    assert found == 38  # the scan finds as many, though a search with groups does not look into all groups


def test_secrets_are_copied_for_their_owner_alone(registry: Path) -> None:
    for key_id in KEYS:
        assert (registry / "secrets" / f"{key_id}.key").stat().st_mode & 0o777 == 0o600


def test_strings_of_any_bytes() -> None:
    texts = [b"a", None, b"\xff\xfe", b"", None, b"end", b"7", b"8", b"9", None]
    assert string_column(texts).view(pa.binary()).to_pylist() == texts

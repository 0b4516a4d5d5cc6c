"""Rows of the audits table: one per question and threshold, judged as one family, and told in sentences."""

import numpy as np
import pyarrow as pa
import pytest

from scanner import results
from scanner.audit.statistics.audit_rows import Audit, Question, failing, number, rate_rows, uniformity_rows
from scanner.errors import Refused, ScanFailed
from scanner.results import transactions
from schemas.audit import AUDITS
from tests.support.counted import THRESHOLDS, sums

AUDIT = Audit.begin("c" * 64, "corpus.parquet", "1", 0.01)
GREEN = Question("law", "exact", "greenlist", "document", dedup="ngram", label="greenlist;h=4;gamma=1/4")
WORDS = {"law": "fresh keys", "key": "all messages"}
KEY = Question("key", "exact", "gumbel", "account", messages=1000, key_id="k1", dedup="ngram", label="gumbel;h=2")


def test_rates():
    rows = rate_rows(AUDIT, [(GREEN, sums(1)), (KEY, sums(1.5))], THRESHOLDS)
    assert [row["verdict"] for row in rows] == ["holds", "holds", "too small", "too small"]
    assert {row["family"] for row in rows} == {4}
    assert [row["threshold"] for row in rows] == [0.1, 0.01] * 2
    table = pa.Table.from_pylist(rows, AUDITS)
    table.validate(full=True)
    assert not any(table[field.name].null_count for field in AUDITS if not field.nullable)
    said = list(failing(rows, WORDS))
    assert len(said) == 1
    assert said[0].startswith("p-values are too small for all messages of key k1: ")
    assert "of 400,000 tests reached p = 0.1, where 40,000 were expected" in said[0]
    assert said[0].endswith(", and too many at 1 smaller threshold. Test: key gumbel;h=2 ngram")


def test_a_bound_is_in_the_rows():
    rows = rate_rows(AUDIT, [(KEY, sums(1.5))], THRESHOLDS, bound=2)
    assert [(row["verdict"], row["bound"]) for row in rows] == [("holds", 2), ("holds", 2)]


def test_uniformity():
    p = np.random.default_rng(3).random(5000)
    rows = uniformity_rows(AUDIT, [(GREEN, p), (KEY, p**1.2)])
    assert [row["verdict"] for row in rows] == ["undecided", "too small"]
    pa.Table.from_pylist(rows, AUDITS).validate(full=True)
    assert next(failing(rows, WORDS)) == (
        "p-values of 5,000 documents are too small to be uniform, for all messages of key k1. "
        "Test: key gumbel;h=2 ngram"
    )


def test_parts_of_the_traffic_are_named():
    """A part follows the words for its kind. A kind without words goes by its technical name."""
    question = Question("decoy_host", "exact", "all", "document", dedup="ngram", stratum="w07")
    rows = rate_rows(AUDIT, [(question, sums(1.5))], THRESHOLDS)
    said = next(failing(rows, {"decoy_host": "decoys, host"}))
    assert said.startswith("p-values are too small for decoys, host w07: ")
    assert next(failing(rows, {})).endswith(". Test: decoy_host all ngram")


def test_numbers_are_short():
    assert [number(count) for count in (0.00012345, 2.345, 99.94, 1234567.8)] == [
        "0.000123",
        "2.35",
        "99.9",
        "1,234,568",
    ]


def test_the_table_grows_by_audits(tmp_path):
    folder = str(tmp_path / "results")
    with pytest.raises(Refused, match="no table"):
        results.audits(folder)
    rows = rate_rows(AUDIT, [(GREEN, sums(1))], THRESHOLDS)
    transactions.append_audits(folder, rows)
    transactions.append_audits(folder, rows)
    assert results.audits(folder).collect().height == 4
    (tmp_path / "file").write_text("")
    with pytest.raises(ScanFailed, match="cannot be written"):
        transactions.append_audits(str(tmp_path / "file"), rows)

"""q-values of a night that is read in parts, against a plain computation over all of its rows."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from scanner import results
from scanner.errors import Refused
from scanner.results import false_discoveries
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import SCANS
from tests.support.rows import add, filled, verdict

COLUMNS = ["text_id", "text_sha256", "log10_p_global", "key_id", "message", "user_id", "naming"]
TEXTS = 300


def rows() -> list[dict]:
    """Rows of two scans that are audited together, and of a third; texts come again, at times with another p-value."""
    random = np.random.default_rng(0)
    digests = [random.bytes(32) for _ in range(TEXTS)]
    p = np.round(-random.exponential(1.0, TEXTS), 1)  # with many ties
    p[:100] = 0.0
    found = [verdict(3 * TEXTS, scan_id="first", text_sha256=bytes(32), log10_p_global=None)]  # a key without a law
    for row in range(3 * TEXTS):
        text = int(random.integers(TEXTS))
        found.append(
            verdict(
                row,
                path=f"/in/{row % 7}",
                user=f"user {row}" if row % 5 else None,
                scan_id=str(random.choice(["first", "second", "another"])),
                text_sha256=digests[text],
                log10_p_global=float(p[text] - 0.1 * int(random.integers(3) if text % 4 == 0 else 0)),
                message=row,
                status=str(random.choice(["scored", "scored_in_part", "too_short"])),
            )
        )
    return found


@pytest.fixture
def night(tmp_path) -> str:
    folder, made = str(tmp_path / "results"), rows()
    open_tables(folder)
    for part in range(3):
        add(folder, f"shard {part}", made[part::3])
    judged = [("second", ["first", "second"]), ("nothing", ["nothing"])]
    scans = [filled(SCANS, scan_id=scan, audited_scans=of) for scan, of in judged]
    file = write_file(folder, "scans", [pa.RecordBatch.from_pylist(scans, SCANS)])
    assert file is not None
    commit(folder, "scans", [TableEntry("scans", (file,))])
    return folder


def by_hand() -> list[tuple]:
    """Each text once, by its first row in the order of (p, digest, path, row), with its q-value."""
    texts: dict[bytes, dict] = {}
    of_scan = [row for row in rows() if row["scan_id"] != "another" and row["status"] != "too_short"]
    of_scan = [row for row in of_scan if row["log10_p_global"] is not None]
    for row in sorted(of_scan, key=lambda row: (row["log10_p_global"], row["text_sha256"], row["path"], row["row"])):
        texts.setdefault(row["text_sha256"], row)
    ordered = list(texts.values())
    bounds = [row["log10_p_global"] + math.log10(len(ordered) / rank) for rank, row in enumerate(ordered, 1)]
    q = [min(0.0, *bounds[rank:]) for rank in range(len(ordered))]
    return [(*(row[name] for name in COLUMNS), value) for row, value in zip(ordered, q, strict=True)]


@pytest.mark.costly
@pytest.mark.parametrize("at_a_time", [1 << 21, 40, 1])
def test_the_parts_are_the_whole(night, monkeypatch, at_a_time):
    monkeypatch.setattr(false_discoveries, "TEXTS_AT_A_TIME", at_a_time)
    found, expected = results.q_values(night, "second").collect(), by_hand()
    assert found.columns == [*COLUMNS, "log10_q"]
    assert found.drop("log10_q").rows() == [row[:-1] for row in expected]
    assert found["log10_q"].to_list() == pytest.approx([row[-1] for row in expected], abs=1e-12)
    assert 0 < found.filter(pl.col("log10_q") <= math.log10(0.5)).height < found.height


@pytest.mark.costly
@pytest.mark.parametrize("at_a_time", [1 << 21, 7])
def test_what_is_asked_of_it_is_as_of_any_frame(night, monkeypatch, at_a_time):
    monkeypatch.setattr(false_discoveries, "TEXTS_AT_A_TIME", at_a_time)
    lazy = results.q_values(night, "second")
    whole = lazy.collect(engine="streaming")
    assert lazy.collect_schema() == whole.schema
    assert lazy.head(20).collect().equals(whole.head(20))
    few = pl.col("log10_q") <= math.log10(0.5)
    assert lazy.filter(few).select("user_id").collect().equals(whole.filter(few).select("user_id"))
    assert lazy.filter(few).head(3).collect().equals(whole.filter(few).head(3))
    assert lazy.head(30).filter(few).collect().equals(whole.head(30).filter(few))
    assert lazy.select(pl.len()).collect().item() == whole.height
    assert results.q_values(night, "second", largest=0.5).collect().equals(whole.filter(few))
    assert results.q_values(night, "second", largest=1e-9).collect().is_empty()


def test_a_scan_of_no_document_has_no_q_values_and_one_that_did_not_end_is_refused(night):
    assert results.q_values(night, "nothing").collect().is_empty()
    with pytest.raises(Refused, match="has not ended"):
        results.q_values(night, "first")

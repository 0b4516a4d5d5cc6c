"""A worker reports its progress within a batch, part by part; cutting a batch into parts changes no verdict."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from scanner.cluster import signs_of_life
from scanner.cluster.pieces import Busy, Piece, Report
from scanner.cluster.signs_of_life import SignsOfLife, parts_of, sizes_of
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.input.files import list_files
from scanner.results.transactions import open_tables
from scanner.storage.locations import table_uri
from scanner.watermark.parts import FEW_SEARCHES, LONGEST_AT_ONCE, MOST_SEARCHES


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_is_cut_where_its_texts_come_to_so_many_bytes(seed):
    generator = np.random.default_rng(seed)
    sizes = generator.choice([0, 1, 5, 50, 900], size=generator.integers(0, 60)).tolist()
    texts = ["x" * size if generator.random() < 0.9 else None for size in sizes]
    most = int(generator.integers(1, 400))
    wanted, part, size = [], [], 0
    for row, text in enumerate(texts):
        part.append(row)
        size += len(text or "")
        if size >= most:
            wanted.append(part)
            part, size = [], 0
    wanted += [part] if part else []
    batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_binary()), "row": range(len(texts))})
    assert [found["row"].to_pylist() for found in parts_of(batch, sizes_of(batch["text"]), most)] == wanted


def test_costs_beside_which_most_is_nothing_end_a_cut_too():
    """The sum of the costs no longer changes by `most`, so that only the count of documents goes on."""
    batch = pa.RecordBatch.from_pydict({"row": range(3)})
    found = parts_of(batch, np.array([1e300, 1.0, 1.0]), 1e-6)
    assert [part["row"].to_pylist() for part in found] == [[0], [1], [2]]


def test_only_texts_whose_windows_are_searched_at_once_are_priced_for_few_searches(night, plain):
    """A window costs a search of its own in longer texts, and under marks of version 1, which search none at once."""
    texts = [b"x" * LONGEST_AT_ONCE, b"x" * (LONGEST_AT_ONCE + 1), None]
    documents = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_binary())})
    night.write("a", [plain(30, 1)])
    bare = SignsOfLife(night.plan())
    sizes = np.array([LONGEST_AT_ONCE + 8, LONGEST_AT_ONCE + 9, 8])
    np.testing.assert_allclose(bare.seconds_of(documents), bare.seconds_a_byte * sizes)
    night.configure(more="[spans]\nwindows = true")
    for at_once, searches in ((True, FEW_SEARCHES), (False, MOST_SEARCHES)):
        wanted = bare.seconds_a_byte * sizes * [searches, MOST_SEARCHES, searches]
        np.testing.assert_allclose(SignsOfLife(night.plan(), windows_at_once=at_once).seconds_of(documents), wanted)


def scanned(
    night, seconds: float, monkeypatch, apart: float = 0.0, *, one_by_one: bool = False
) -> tuple[list[int | None], Report, dict[str, pl.DataFrame]]:
    """What the signs say (rows that are done, or one by one the row that is worked on), the report, and the rows."""
    monkeypatch.setattr(signs_of_life, "BETWEEN_SIGNS", seconds)
    monkeypatch.setattr(signs_of_life, "LEAST_TEXT_BYTES", 1)
    monkeypatch.setattr(signs_of_life, "SIGNS_APART", apart)
    plan = night.plan()
    open_tables(night.results)
    (shard,) = inspect_input(plan, list_files(plan.locations)).shards
    told = list(Worker(plan, "scan").scan(Piece(shard, shard.rows.start, shard.rows.stop, one_by_one)))
    signs = [sign.row if one_by_one else sign.behind for sign in told[:-1] if isinstance(sign, Busy)]
    report = told[-1]
    assert isinstance(report, Report)
    tables = {
        name: pl.concat(pl.read_parquet(f"{table_uri(night.results, name)}/{file.name}") for file in files).drop(
            "scanned_at"
        )
        for name, files in report.files.items()
        if name in ("verdicts", "quarantine", "audit_counts")
    }
    return signs, report, tables


def test_signs_come_within_a_batch_and_change_nothing(night, plain, marked, monkeypatch):
    night.configure(audit="share = 0.5\nall_messages_share = 0.3")
    texts = [
        marked(7, 60, 1),
        *(plain(30 + i, i) for i in range(20)),
        None,
        "short",
        "",
        *(plain(40, i) for i in range(9)),
    ]
    night.write("a", texts)
    whole, one, rows = scanned(night, 1e9, monkeypatch)
    signs, other, same = scanned(night, 1e-9, monkeypatch)
    each, third, alone = scanned(night, 1e9, monkeypatch, one_by_one=True)
    assert each == [*range(len(texts)), None]  # to write is no document's fault
    assert whole == [0]
    assert signs[0] == 0
    assert signs == sorted(set(signs))
    assert len(signs) >= len(texts) - 3  # a row without bytes is no part
    counts = rows["audit_counts"].sort(pl.exclude("hh", "he", "ee", "expected"))
    for again, found in ((other, same), (third, alone)):
        assert one.counts == again.counts
        assert rows["verdicts"].equals(found["verdicts"])
        assert rows["quarantine"].equals(found["quarantine"])
        assert_frame_equal(counts, found["audit_counts"].sort(pl.exclude("hh", "he", "ee", "expected")), abs_tol=1e-9)


def test_work_that_takes_no_time_has_few_signs(night, plain, monkeypatch):
    """Each sign costs the driver time, which a thousand workers share."""
    night.configure(audit="share = 0.5\nall_messages_share = 0.3")
    night.write("a", [*(plain(30, i) for i in range(8)), None])
    assert scanned(night, 1e-9, monkeypatch, apart=1e9)[0] == [0]
    monkeypatch.setattr(signs_of_life, "seconds_a_byte", lambda _plan: 1e9)  # slow documents have one sign each
    assert len(scanned(night, 1e-9, monkeypatch, apart=1e9)[0]) == 9


def test_signs_of_a_pack_count_through_its_shards(night, plain, monkeypatch):
    monkeypatch.setattr(signs_of_life, "BETWEEN_SIGNS", 1e-9)
    monkeypatch.setattr(signs_of_life, "LEAST_TEXT_BYTES", 1)
    monkeypatch.setattr(signs_of_life, "SIGNS_APART", 0.0)
    for name, rows in (("a", 3), ("b", 2)):
        night.write(name, [plain(30, i) for i in range(rows)])
    plan = night.plan()
    open_tables(night.results)
    shards = inspect_input(plan, list_files(plan.locations)).shards
    *signs, report = Worker(plan, "scan").scan_pack(shards)
    assert [sign.behind for sign in signs] == [0, 1, 2, 3, 4]
    assert [counts.documents for counts in report.counts] == [3, 2]

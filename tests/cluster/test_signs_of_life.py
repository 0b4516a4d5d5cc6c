"""A worker reports its progress within a batch, part by part; cutting a batch into parts changes no verdict."""

from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from scanner.cluster import signs_of_life
from scanner.cluster.pieces import Busy, Piece, Report
from scanner.cluster.signs_of_life import (
    LEAST_TEXT_BYTES,
    PART_TEXT_BYTES,
    SECONDS_A_PART,
    TIMES_THE_PACE,
    SignsOfLife,
    end_of_part,
    sizes_of,
)
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
    costs = sizes_of(pa.array(texts, pa.large_binary()))
    ends = [0]
    while ends[-1] < len(texts):
        ends.append(end_of_part(costs, ends[-1], most))
    assert [[*range(*bounds)] for bounds in pairwise(ends)] == wanted


def test_costs_beside_which_most_is_nothing_end_a_cut_too():
    """The sum of the costs no longer changes by `most`, so that only the count of documents goes on."""
    costs = np.array([1e300, 1.0, 1.0])
    assert [end_of_part(costs, begin, 1e-6) for begin in range(3)] == [1, 2, 3]


class Texts:
    """Texts under a plan, whose parts take so many seconds for each byte on a clock that the test moves on."""

    def __init__(self, night, monkeypatch, texts: list[bytes]) -> None:
        night.write("a", ["a"])
        self.signs = SignsOfLife(night.plan())
        self.estimated = self.signs.seconds_a_byte
        self._batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_binary()), "row": range(len(texts))})
        self._now = 0.0
        monkeypatch.setattr(signs_of_life.time, "monotonic", lambda: self._now)

    def scan(self, share: float) -> tuple[list[int], list[float]]:
        """Texts of each part, and within how many seconds the driver takes it for hung, where they take such a share
        of the estimate."""
        counts, within = [], []
        for part in self.signs.cut(self._batch):
            (sign,) = self.signs.before(part, 0, single=True)
            counts.append(len(part))
            within.append(sign.seconds)
            self._now += share * float(self.signs.seconds_of(part).sum())
        return counts, within


def test_parts_go_by_bytes_where_these_take_no_longer_than_wanted(night, monkeypatch):
    monkeypatch.setattr(signs_of_life, "seconds_a_byte", lambda _plan: 1e-3)  # a thousand seconds a megabyte
    texts = Texts(night, monkeypatch, [b"x" * 1000] * 4000)
    first, *rest = texts.scan(1e-3)[0]
    assert first == 60  # 60 estimated seconds, as nothing is known
    assert set(rest[:-1]) == {-(-PART_TEXT_BYTES // 1000)}
    assert texts.scan(1e-3)[0][0] == rest[0]  # the pace is known from the batch before


@pytest.mark.parametrize("share", [0.03, 0.3, 3.0])
def test_parts_take_as_long_as_wanted_where_texts_are_slow(night, monkeypatch, share):
    monkeypatch.setattr(signs_of_life, "seconds_a_byte", lambda _plan: 1e-3)
    texts = Texts(night, monkeypatch, [b"x" * 1000] * 4000)
    _, *rest, _ = texts.scan(share)[0]
    wanted = max(SECONDS_A_PART / share, LEAST_TEXT_BYTES * 1e-3)
    assert rest == [pytest.approx(wanted / 1.008, abs=1)] * len(rest)


def test_a_part_may_take_many_times_what_its_pace_says_and_a_text_all_that_is_estimated(night, monkeypatch):
    monkeypatch.setattr(signs_of_life, "seconds_a_byte", lambda _plan: 1e-3)
    monkeypatch.setattr(signs_of_life, "SECONDS_A_TOKEN", 0.0)  # proofs of flags come on top
    a_text, a_long_text = 1e-3 * 1008, 1e-3 * 1_000_008
    texts = Texts(night, monkeypatch, [b"x" * 1000] * 4000)
    spare = texts.signs._within(0.0)
    counts, (first, *within) = texts.scan(0.002)
    assert first == pytest.approx(spare + counts[0] * a_text, abs=0.5)  # no pace is known
    wanted = [spare + (TIMES_THE_PACE * 0.002 * count + 1) * a_text for count in counts[1:]]
    assert within == pytest.approx(wanted, abs=0.5)
    texts = Texts(night, monkeypatch, [b"x" * 1000] * 4 + [b"x" * 1_000_000])
    texts.scan(0.002)
    assert texts.scan(0.002)[1][0] >= spare + a_long_text


def test_texts_that_take_no_time_do_not_say_that_no_text_does(night, monkeypatch):
    monkeypatch.setattr(signs_of_life, "seconds_a_byte", lambda _plan: 1.0)
    texts = Texts(night, monkeypatch, [b"x" * 1000] * 1000)
    assert texts.scan(0.0)[0][-2] == 17  # LEAST_TEXT_BYTES, of 5,000 estimated seconds


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
    night, part_bytes: float, monkeypatch, apart: float = 0.0, *, one_by_one: bool = False
) -> tuple[list[int | None], Report, dict[str, pl.DataFrame]]:
    """What the signs say (rows that are done, or one by one the row that is worked on), the report, and the rows."""
    monkeypatch.setattr(signs_of_life, "PART_TEXT_BYTES", part_bytes)
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
    signs, other, same = scanned(night, 1, monkeypatch)
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
    assert scanned(night, 1, monkeypatch, apart=1e9)[0] == [0]
    monkeypatch.setattr(signs_of_life, "seconds_a_byte", lambda _plan: 1e9)  # slow documents have one sign each
    assert len(scanned(night, 1, monkeypatch, apart=1e9)[0]) == 9


def test_signs_of_a_pack_count_through_its_shards(night, plain, monkeypatch):
    monkeypatch.setattr(signs_of_life, "PART_TEXT_BYTES", 1)
    monkeypatch.setattr(signs_of_life, "SIGNS_APART", 0.0)
    for name, rows in (("a", 3), ("b", 2)):
        night.write(name, [plain(30, i) for i in range(rows)])
    plan = night.plan()
    open_tables(night.results)
    shards = inspect_input(plan, list_files(plan.locations)).shards
    *signs, report = Worker(plan, "scan").scan_pack(shards)
    assert [sign.behind for sign in signs] == [0, 1, 2, 3, 4]
    assert [counts.documents for counts in report.counts] == [3, 2]

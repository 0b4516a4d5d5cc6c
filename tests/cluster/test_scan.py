"""Whole scans on real Delta tables; where the pool matters, on real Ray."""

import hashlib
import os
import signal
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.summary import summary
from scanner import results
from scanner.cluster import machines, todo
from scanner.cluster import scan as scan_module
from scanner.cluster import work as work_module
from scanner.cluster.machines import cluster
from scanner.cluster.pieces import Piece
from scanner.cluster.scan import run_scan
from scanner.cluster.worker import Worker
from scanner.errors import ScanFailed
from scanner.input.files import list_files
from scanner.input.shards import Shard, cut
from scanner.registry import add_users, head_of, verify_users
from scanner.results import transactions
from scanner.scan_plan import make_plan
from schemas.tables import STAGES
from tests.support.inspection import inspect
from tests.support.signed_tables import delete_results
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")  # tests with `ray_cluster` use Ray all the same

IGNORED = ["scan_id", "scanned_at"]


def same_rows(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    return before.drop(IGNORED).equals(after.drop(IGNORED))


@pytest.mark.usefixtures("ray_cluster")
def test_a_night_and_the_nights_after(night, marked, plain, registry):
    """Any input: documents are scored, or in quarantine if they cannot be; none is lost or doubled."""
    alice = message_of(registry, "green", "alice")
    night.configure(columns='account = "account"\ntime = "at"', workers=2)
    now = datetime.now(UTC)

    def write(name, texts, **columns):
        extra = {"account": ["a"] * len(texts), "at": [now + timedelta(days=1)] * len(texts)}
        return night.write(name, texts, **{**extra, **columns})

    write("good", [marked(alice, 60, 1), plain(60, 2), "too short"], row_group=2)
    odd = [None, b"\xff", b"\xed\xa0\x80", "", "\0" + plain(40, 3), "<s>" + plain(40, 4), plain(40, 5), plain(40, 5)]
    write("odd", odd, doc_id=["0", "1", "2", "3", "4", "5", "twice", "twice"])
    write("empty", [])
    night.write("no_account", ["text"], at=[now])
    write("unread", ["text"] * 3, at=["yesterday", "2026-10-01", None], account=[["a"]] * 3)
    numbers = pa.table({"doc_id": ["a"], "text": [1], "account": ["a"], "at": [now]})
    pq.write_table(numbers, night.input / "wrong_type.parquet")
    whole = write("whole", [plain(40, 6)] * 50).read_bytes()
    (night.input / "whole.parquet").unlink()
    (night.input / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    (night.input / "text.parquet").write_bytes(b"doc_id,text\n")

    first = night.scan()
    assert first.exit_code == 4  # four files cannot be read
    verdicts, quarantine = night.verdicts(), night.quarantine()
    assert verdicts.select(pl.col("path").str.split("/").list.last(), "row", "status", "flagged").rows() == [
        ("good.parquet", 0, "scored", True),
        ("good.parquet", 1, "scored", False),
        ("good.parquet", 2, "too_short", False),
        ("odd.parquet", 1, "too_short", False),
        ("odd.parquet", 2, "too_short", False),
        ("odd.parquet", 3, "too_short", False),
        ("odd.parquet", 4, "scored", False),
        ("odd.parquet", 5, "scored", False),
        ("odd.parquet", 6, "scored", False),
        ("odd.parquet", 7, "scored", False),
        ("unread.parquet", 0, "too_short", False),
        ("unread.parquet", 1, "too_short", False),
        ("unread.parquet", 2, "too_short", False),
    ]
    assert verdicts["doc_id"].to_list()[8:10] == ["twice", "twice"]
    assert verdicts.row(0, named=True)["user_id"] == "alice"
    assert verdicts["created_at"][0] == now + timedelta(days=1)
    assert verdicts["account_id"].to_list() == ["a"] * 10 + [None] * 3
    assert verdicts["created_at"].to_list()[10:] == [None, datetime(2026, 10, 1, tzinfo=UTC), None]
    assert quarantine.select(pl.col("path").str.split("/").list.last(), "row", "reason").rows() == [
        ("no_account.parquet", None, "missing_column"),
        ("odd.parquet", 0, "null_text"),
        ("text.parquet", None, "not_parquet"),
        ("truncated.parquet", None, "truncated"),
        ("wrong_type.parquet", None, "wrong_type"),
    ]
    record = night.last_scan()
    assert (record["documents"], record["too_short"], record["flagged"]) == (14, 7, 1)
    assert record["values_not_read"] == 3
    assert (record["quarantined"], record["files_quarantined"], record["exit_code"]) == (1, 4, 4)
    assert (record["shards"], record["shards_skipped"]) == (7, 0)
    assert [key["key_id"] for key in record["keys"]] == ["green", "gum"]
    assert record["users_head"] == head_of(registry)
    spent = record["core_seconds"]
    assert set(spent) == set(STAGES)
    hours = (sum(spent.values()) - spent["commit"]) / 3600
    assert record["documents_a_core_hour"] == pytest.approx(record["documents"] / hours)
    assert record["bytes_a_core_hour"] == pytest.approx(record["text_bytes"] / hours)
    assert 0 < record["slowest_seconds"] <= 3600 * hours
    assert record["slowest_path"].endswith(".parquet")
    assert record["skew"] >= 1

    again = night.scan()
    assert (again.work.skipped, again.totals.shards) == (7, 0)
    assert night.verdicts().equals(verdicts)
    assert night.quarantine().equals(quarantine)
    assert night.last_scan()["shards_skipped"] == 7

    add_users(registry, None, ["carla"])
    night.configure(rate=1e-3, columns='account = "account"\ntime = "at"', more="max_quarantined_share = 1.0")
    assert night.scan().totals.shards == 0  # neither users nor thresholds make old shards new
    heads = {record["users_head"], night.last_scan()["users_head"]}
    assert len(heads) == 2
    assert verify_users(registry, heads).holds

    write("later", [plain(40, 7)])
    third = night.scan()
    assert (third.work.skipped, third.totals.shards, third.totals.counts.documents) == (7, 1, 1)
    assert night.verdicts().filter(~pl.col("path").str.ends_with("later.parquet")).equals(verdicts)
    assert night.verdicts().height == verdicts.height + 1

    os.utime(night.input / "good.parquet", ns=(0, 0))
    assert night.scan().totals.counts.documents == 3  # a new modification time makes a new file
    assert night.verdicts().height == verdicts.height + 4
    assert results.verdicts(night.results).collect().height == verdicts.height + 1


@pytest.mark.costly
def test_what_a_file_becomes_after_it_was_listed(night, plain, monkeypatch):
    """Vanished and changed files are reported, and a rerun scans them when they are back."""
    for name in ("early", "late", "changed", "stays"):
        night.write(name, [plain(40, seed) for seed in range(4)], row_group=2)
    late = (night.input / "late.parquet").read_bytes()
    times = {path: os.stat(path).st_mtime_ns for path in night.input.iterdir()}

    def list_then_lose(*given, **told):
        files = list_files(*given, **told)
        (night.input / "early.parquet").rename(night.folder / "early")
        return files

    def look_up_then_lose(*args):
        (night.input / "late.parquet").unlink()
        os.utime(night.input / "changed.parquet", ns=(0, 0))
        return transactions.find_committed(*args)

    with monkeypatch.context() as patch:
        patch.setattr(scan_module, "list_files", list_then_lose)
        patch.setattr(work_module, "find_committed", look_up_then_lose)
        first = night.scan()
    assert first.exit_code == 4
    assert set(night.verdicts()["path"]) == {str(night.input / "stays.parquet")}
    assert night.quarantine().select(pl.col("path").str.split("/").list.last(), "row", "reason").rows() == [
        ("changed.parquet", None, "changed"),
        ("early.parquet", None, "vanished"),
        ("late.parquet", None, "vanished"),
    ]
    (night.folder / "early").rename(night.input / "early.parquet")
    (night.input / "late.parquet").write_bytes(late)
    for path, modified in times.items():
        os.utime(path, ns=(modified, modified))
    second = night.scan()
    assert second.totals.counts.documents == 12
    assert night.verdicts().height == 16
    assert night.quarantine().height == 3


def test_a_corrupt_row_group_costs_its_own_rows(night, plain):
    path = night.write("part", [plain(40, seed) for seed in range(12)], row_group=4)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)
    night.scan()
    assert night.verdicts()["row"].to_list() == [0, 1, 2, 3, 8, 9, 10, 11]
    quarantine = night.quarantine()
    assert quarantine["row"].to_list() == [4, 5, 6, 7]
    assert set(quarantine["reason"]) == {"unreadable"}


class Fragile(Worker):
    """A worker that some texts kill: one text once, right after the results were written, others every time."""

    def scan(self, piece: Piece):
        table = pq.read_table(piece.shard.file.path, columns=["text"])
        texts = table["text"].to_pylist()[piece.start : piece.stop]
        events = [*super().scan(piece)]
        once = Path(piece.shard.file.path).parent.parent / "died"
        if any("ACCIDENT" in text for text in texts) and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if any("KILL" in text for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        if any("RAISE" in text for text in texts):
            raise RuntimeError("odd text")
        yield from (event for event in events)  # Ray needs a generator


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_documents_that_kill_their_worker(night, plain, monkeypatch):
    monkeypatch.setattr(todo, "ATTEMPTS", 2)  # each worker takes seconds to start
    night.configure(columns='account = "account"')
    night.write("a", [plain(30, seed) for seed in range(3)], account=["mallory"] * 3)
    accident = [plain(30, seed) + (" ACCIDENT" if seed == 3 else "") for seed in range(8)]
    night.write("b", accident, account=["bob"] * 8)
    night.scan()
    expected = night.verdicts()
    delete_results(night.results, night.registry)
    texts = pq.read_table(night.input / "a.parquet")
    bad = texts["text"].to_pylist()
    bad[0], bad[2] = "KILL", "RAISE"
    pq.write_table(texts.set_column(0, "text", pa.array(bad)), night.input / "a.parquet")
    outcome = night.scan(worker=Fragile)
    assert outcome.exit_code == 0
    assert (night.folder / "died").exists()
    found, quarantine = night.verdicts(), night.quarantine()
    assert found["row"].to_list() == [1, *range(8)]
    assert same_rows(found.filter(pl.col("path").str.ends_with("b.parquet")), expected.tail(8))
    whose = ("row", "reason", "doc_id", "account_id", "text_sha256")
    assert quarantine.select(whose).rows() == [
        (0, "killed_worker", "a:0", "mallory", hashlib.sha256(b"KILL").digest()),
        (2, "failed", "a:2", "mallory", hashlib.sha256(b"RAISE").digest()),
    ]
    assert "RuntimeError: odd text" in quarantine["detail"][1]
    assert found["shard_id"].n_unique() == 2
    assert set(quarantine["shard_id"]) == {found["shard_id"][0]}
    assert outcome.totals.counts.quarantined == 2
    assert night.scan().totals.shards == 0


@pytest.mark.costly
def test_too_much_quarantine(night, plain):
    night.configure(more="max_quarantined_share = 0.2")
    night.write("a", [plain(30, 1)] * 7 + [None] * 2)
    assert night.scan().exit_code == 4
    assert night.last_scan()["exit_code"] == 4
    night.write("b", [plain(30, 1)] * 8 + [None] * 2)
    assert night.scan().exit_code == 0
    (night.input / "c.parquet").write_bytes(b"")
    assert night.scan().exit_code == 4  # every file that was left to scan is bad


def test_nothing_to_scan(night):
    outcome = night.scan()
    assert (outcome.exit_code, outcome.work.shard_count, outcome.first_commit) == (4, 0, None)
    assert night.verdicts().height == 0
    assert (night.last_scan()["documents"], night.last_scan()["exit_code"]) == (0, 4)


def test_a_scan_that_fails_is_on_record(night, plain, monkeypatch):
    night.write("a", [plain(30, 1)])

    def full(*_args):
        raise ScanFailed("results: no space left")

    monkeypatch.setattr("scanner.cluster.commits.commit", full)
    with pytest.raises(ScanFailed, match="no space left"):
        night.scan()
    assert night.last_scan()["exit_code"] == 1
    monkeypatch.undo()
    assert night.scan().totals.counts.documents == 1


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_an_interrupted_scan_keeps_what_is_finished(night, plain):
    for i in range(6):
        night.write(f"f{i}", [plain(30, seed) for seed in range(3)])

    commits = []

    def interrupt_at_the_first_commit(_work, totals):
        if totals.shards and not commits:
            commits.append(totals)
            raise KeyboardInterrupt

    outcome = run_scan(night.plan(), interrupt_at_the_first_commit)
    assert outcome.exit_code == 130
    assert 0 < outcome.totals.shards < 6
    assert night.last_scan()["exit_code"] == 130
    rest = night.scan()
    assert rest.totals.shards == 6 - outcome.totals.shards
    assert night.verdicts().height == 18


@pytest.mark.parametrize(
    "handler",
    [None, lambda *_: sys.exit(signal.SIGTERM), signal.default_int_handler],
    ids=["ours", "Ray's", "as Ray waits"],
)
def test_sigterm_while_ray_starts_is_on_record(night, plain, monkeypatch, handler):
    night.write("a", [plain(30, 1)])

    def connect():
        if handler:
            signal.signal(signal.SIGTERM, handler)  # as ray.init does
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(scan_module, "cluster", cluster)
    monkeypatch.setattr(machines, "ray_begun", lambda _config: nullcontext(connect))
    assert night.scan().exit_code == 143
    assert night.last_scan()["exit_code"] == 143
    assert signal.getsignal(signal.SIGTERM) == before


class Finalised:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("handler", [None, lambda *_: sys.exit(signal.SIGTERM)], ids=["ours", "Ray's"])
def test_sigterm_in_a_finaliser_is_not_lost(night, plain, monkeypatch, handler):
    night.write("a", [plain(30, 1)])

    def connect():
        if handler:
            signal.signal(signal.SIGTERM, handler)  # as ray.init does
        Finalised()  # Python drops what a handler raises in a finaliser

    monkeypatch.setattr(scan_module, "cluster", cluster)
    monkeypatch.setattr(machines, "ray_begun", lambda _config: nullcontext(connect))
    assert night.scan().exit_code == 143
    assert night.last_scan()["exit_code"] == 143


def test_a_sigterm_over_the_commit_of_the_scans_row_changes_neither_that_nor_the_exit_code(night, plain, monkeypatch):
    night.write("a", [plain(30, 1)])
    commit = transactions.commit

    def signalled(folder, name, *rest):
        if name == "scans":
            monkeypatch.undo()
            signal.raise_signal(signal.SIGTERM)
        return commit(folder, name, *rest)

    monkeypatch.setattr(transactions, "commit", signalled)
    outcome = night.scan()
    assert (outcome.exit_code, night.last_scan()["exit_code"], outcome.stopped) == (0, 0, True)

    monkeypatch.setattr(transactions, "commit", signalled)
    calls = iter([signal.raise_signal, *[lambda _: None] * 9])
    outcome = run_scan(night.plan(), lambda *_: next(calls)(signal.SIGINT))  # SIGINT came first
    assert (outcome.exit_code, outcome.stopped) == (130, True)
    assert results.scans(night.results).collect()["exit_code"].to_list() == [0, 130]


def test_leaving_for_another_reason_is_no_sigterm(night, plain, monkeypatch):
    def connect():
        raise SystemExit(3)

    night.write("a", [plain(30, 1)])
    monkeypatch.setattr(scan_module, "cluster", cluster)
    monkeypatch.setattr(machines, "ray_begun", lambda _config: nullcontext(connect))
    with pytest.raises(SystemExit):
        night.scan()
    assert night.last_scan()["exit_code"] == 1


def whole_file(plan) -> Piece:
    (file,) = list_files(plan.locations)
    (rows,) = cut(inspect(file, plan.columns))
    return Piece(Shard("shard", file, rows), rows.start, rows.stop)


def test_a_text_of_ten_megabytes(night, plain):
    night.configure(more='keys = ["green"]')
    text = plain(20_000, 1)
    long = text * (10_000_000 // len(text) + 1)
    night.write("long", [plain(40, 1), long, plain(40, 2)])
    plan = night.plan()
    transactions.open_tables(plan.results)
    *_, report = Worker(plan, "scan").scan(whole_file(plan))
    assert (report.counts.documents, report.counts.quarantined) == (3, 0)
    assert report.counts.text_bytes > 10_000_000


def test_a_date_chooses_the_folder(night, plain):
    folder = night.input / "2026-08-31"
    folder.mkdir()
    night.write("2026-08-31/a", [plain(30, 1)])
    night.write("other", [plain(30, 1)])
    plan = make_plan(night.configure(paths=["in/{date}"]), datetime(2026, 8, 31).date())
    assert [file.path for file in list_files(plan.locations)] == [str(folder / "a.parquet")]


def test_a_plan_holds_no_secret(night, registry):
    import pickle

    secrets = [path.read_text().strip() for path in (registry / "secrets").iterdir()]
    pickled = pickle.dumps(night.plan())
    assert len(secrets) == 3  # two keys' secrets and the audit's
    for secret in secrets:
        assert secret.encode() not in pickled
        assert bytes.fromhex(secret) not in pickled


def test_summary_has_pieces_beside_flags(night, registry, marked, plain):
    """Five edits of one marked text and one text of another user: six distinct texts, two independent pieces."""
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    edits = [f"{marked(alice, 60, 1)} {plain(4, seed)}" for seed in range(5)]
    night.write("a", [*edits, marked(bob, 60, 2), plain(60, 9)])
    outcome = night.scan()
    assert (outcome.audit.traffic.flagged, outcome.audit.traffic.pieces) == (6, 2)
    said = " ".join(summary(outcome, night.results, 1e-6).split())
    assert "6 documents, 6 distinct texts, 2 without near-duplicates" in said
    assert "near-duplicates are flagged together or not at all" in said

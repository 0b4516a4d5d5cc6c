"""Input, registry and results on S3: a real server on this machine, real drivers, one of them killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, convert_to_deltalake, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow import fs

from scanner import results
from scanner.detection.open_plan import open_detector
from scanner.errors import Refused, SecretError
from scanner.input.columns import Columns
from scanner.input.documents import read
from scanner.input.files import find_file, list_files
from scanner.input.inspector import Inspector
from scanner.registry import Holders, add_users, head_of, ledger, list_users, load_registry, new_key, retire_key
from scanner.results import upkeep
from scanner.results.retention import erase_user
from scanner.results.transactions import find_committed, open_tables
from scanner.scan_plan import make_plan
from scanner.storage.locations import table_uri
from schemas.tables import VERDICTS
from tests.chaos.night import start_driver
from tests.support import encodings
from tests.support.command_line import call
from tests.support.icebergs import NAME, make_table, name_catalog
from tests.support.night import Night
from tests.support.rows import add, entry, rows_of, same, verdict
from tests.support.submitted import free_ports, secrets_of, wait_for
from tests.support.two_keys import TOKENIZER, message_of

BUCKET = "s3://night"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED00",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+of/the+bucket/0000000000",
}
FILES, ROWS = 30, 30


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[fs.S3FileSystem]:
    """An S3 server in its own process, with one bucket; environment variables name it, as they name a real one."""
    (port,) = free_ports(1)
    patch = pytest.MonkeyPatch()
    settings = {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",  # the variable that Arrow reads
        "AWS_ALLOW_HTTP": "true",  # the server has no certificate
    }
    for name, value in settings.items():
        patch.setenv(name, value)
    log = (tmp_path_factory.mktemp("s3") / "log").open("wb")
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        store = fs.S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True)
        wait_for(lambda: store.create_dir("night") is None, server)
        yield store
    finally:
        server.terminate()
        server.wait(30)
        log.close()
        patch.undo()


@pytest.mark.costly
def test_a_delta_table_in_a_store_is_read_by_its_log(s3):
    lake = f"{BUCKET}/lake"
    for names in ("ab", "cd"):
        rows = {"doc_id": list(names), "text": [f"text of {n}" for n in names], "account": ["ann b"] * 2}
        write_deltalake(lake, pa.table(rows), mode="append", partition_by=["account"])
    first = {file.path: file for file in list_files([f"delta:{lake}"])}
    assert len(first) == 2
    DeltaTable(lake).update(updates={"text": "'new'"}, predicate="doc_id = 'a'")
    files = list_files([lake])
    columns, found = Columns("text", "doc_id", None, None), dict[str, bytes]()
    with Inspector() as inspector:
        for file, groups in inspector.inspect_all(files, columns):
            assert isinstance(groups, list)
            for part in read(file, columns, 0, groups[0].rows):
                found |= dict(zip(part["doc_id"].to_pylist(), part["text"].to_pylist(), strict=True))
    assert found == {"a": b"new", "b": b"text of b", "c": b"text of c", "d": b"text of d"}
    (changed,) = [file for file in files if file.path not in first]
    assert changed.entry is not None
    assert find_file(changed.path).size == changed.size
    assert changed.entry.parents == first.keys() - {file.path for file in files}
    with pytest.raises(Refused, match="set them in the environment"):
        list_files([f"{lake}?region=us-east-1"])


@pytest.mark.costly
def test_of_two_commits_to_one_snapshot_one_wins(s3):
    """Commits on S3 stand on the conditional put."""
    folder = f"{BUCKET}/put"
    open_tables(folder)
    uri = table_uri(folder, "verdicts")
    for version in range(10):
        tables = [DeltaTable(uri) for _ in range(4)]
        gate = threading.Barrier(len(tables))

        def write(table: DeltaTable, gate=gate, version=version) -> bool:
            (file,) = entry(folder, "x", [verdict(version)]).files
            properties = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(f"t{version}", 1)])
            gate.wait()
            try:
                action = AddAction(file.name, file.size, {}, 0, True, file.stats)
                table.create_write_transaction([action], "append", VERDICTS, commit_properties=properties)
            except CommitFailedError:
                return False
            return True

        with ThreadPoolExecutor(len(tables)) as threads:
            assert sorted(threads.map(write, tables)) == [False, False, False, True]
    assert rows_of(folder) == list(range(10))


@pytest.mark.costly
def test_racing_drivers_commit_each_shard_once(s3):
    folder = f"{BUCKET}/race"
    open_tables(folder)

    def drive(seed: int) -> set[str]:
        order = sorted(range(10), key=lambda i: (i * (2 * seed + 7)) % 13)
        return set().union(*(add(folder, f"shard-{i}", [verdict(i)]) for i in order))

    with ThreadPoolExecutor(3) as threads:
        won = list(threads.map(drive, range(3)))
    assert rows_of(folder) == list(range(10))
    assert sorted(shard for shards in won for shard in shards) == sorted(f"shard-{i}" for i in range(10))


@pytest.mark.costly
def test_upkeep_and_erasure(s3):
    folder = f"{BUCKET}/upkeep"
    open_tables(folder)
    for i in range(6):
        add(folder, f"t{i}", [verdict(i, user="alice" if i % 2 else "bob", message=i % 2)])
    lost = entry(folder, "never", [verdict(9)]).files[0].name
    with ThreadPoolExecutor(2) as threads:
        merged = list(threads.map(upkeep.compact, [folder, folder]))
    assert sum(done.made for both in merged for done in both if done.table == "verdicts") == 1
    assert rows_of(folder) == list(range(6))
    assert erase_user(folder, ["alice"]) == 3
    assert {done.gone for done in upkeep.vacuum(folder)} == {0}  # the lost file may be a running scan's
    assert rows_of(folder) == list(range(6))
    there = s3.get_file_info(fs.FileSelector("night/upkeep/verdicts"))
    files = {Path(info.path).name for info in there if info.is_file}
    assert files == {lost} | {Path(uri).name for uri in DeltaTable(table_uri(folder, "verdicts")).file_uris()}
    assert find_committed(folder, "verdicts", [f"t{i}" for i in range(7)]) == {f"t{i}" for i in range(6)}


@pytest.fixture(scope="module")
def far_registry(s3, registry, tmp_path_factory) -> str:
    """A copy of the tests' registry on S3, with users and one tokenizer; secrets are named by absolute paths."""
    text = (registry / "keys.toml").read_text()
    text = text.replace("file:secrets/", f"file:{registry}/secrets/").replace(str(TOKENIZER), "tokenizer.json")
    with s3.open_output_stream("night/registry/keys.toml") as file:
        file.write(text.encode())
    with s3.open_output_stream("night/registry/tokenizer.json") as file:
        file.write(TOKENIZER.read_bytes())
    fs.copy_files(str(registry / "users"), "night/registry/users", fs.LocalFileSystem(), s3)
    return f"{BUCKET}/registry"


def copy_input(s3: fs.S3FileSystem, night: Night, source: str, folder: str, patch: pytest.MonkeyPatch) -> str:
    """Copy a night's input into a folder of the store, as files or a table, and return how scan.toml names it."""
    if source == "iceberg":
        endpoint = {"S3__ENDPOINT": os.environ["AWS_ENDPOINT_URL"], "S3__REGION": os.environ["AWS_REGION"]}
        name_catalog(night.folder, patch, WAREHOUSE=folder, **endpoint)
        files = sorted(night.input.glob("*.parquet"))
        table = make_table(pq.read_schema(files[0]))
        for file in files:
            table.append(pq.read_table(file))
        return NAME
    fs.copy_files(str(night.input), folder.removeprefix("s3://"), fs.LocalFileSystem(), s3)
    if source == "delta":
        convert_to_deltalake(folder)
    return folder


def driver(night: Night) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.scan", "--config", str(night.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HOME": str(night.folder)},
    )


@pytest.mark.long
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    "source",
    ["files", "delta", "iceberg"],
)
def test_a_night_on_s3_with_a_killed_driver_and_two_at_once(
    s3, far_registry, night, registry, marked, plain, source, monkeypatch
):
    alice = message_of(registry, "green", "alice")
    for i in range(FILES):
        night.write(f"f{i:02}", [marked(alice, 60, i), *(plain(60, 1000 * i + j) for j in range(ROWS - 1))])
    night.scan()
    expected = night.verdicts()
    folder, broken = f"{BUCKET}/in-{source}/2026-08-31", source == "files"
    night.results = f"{BUCKET}/results-{source}"
    paths = [copy_input(s3, night, source, folder, monkeypatch)]
    with s3.open_output_stream(f"{folder.removeprefix('s3://')}/broken.parquet") as file:  # in no log
        file.write(b"PAR1 and no more")
    config = night.configure(paths=paths, more="max_lost_files = 1").read_text()
    config = config.replace(str(registry), far_registry).replace('"results"', f'"{night.results}"')
    night.config.write_text(config)

    killed = start_driver(night.config, at="between the commits", commit=4, delay=0)
    shown = [killed.communicate(timeout=480)[0]]
    assert killed.returncode == -signal.SIGKILL, shown
    before = night.verdicts().height
    assert 0 < before < FILES * ROWS
    both = [driver(night), driver(night)]
    for process in both:
        shown += process.communicate(timeout=480)
        assert process.returncode == 0, shown
    name = pl.col("doc_id").str.split(":").list.first()  # Iceberg gives files names of its own
    found = night.verdicts().with_columns(path=f"{night.input}/" + name + ".parquet").sort("path", "row")
    copied = ["shard_id", "first_seen_at"]  # the copies have times of their own
    assert same(found.drop(copied), expected.drop(copied))
    faulty = night.quarantine().select("path", "reason").rows()
    assert faulty == [(f"{folder}/broken.parquet", "truncated")] * broken
    scans = results.scans(night.results).collect()
    assert scans["exit_code"].to_list() == [0, 0]
    assert scans["documents"].sum() == FILES * ROWS - before
    assert night.scan().work.skipped == FILES + broken

    assert results.flagged(night.results).collect()["user_id"].to_list() == ["alice"] * FILES
    code, out, _ = call("flagged", night.config, "--limit", "100")
    assert (code, out.count("alice")) == (0, FILES)
    for command in ("compact", "vacuum"):
        assert call(command, night.config)[0] == 0
    kept = night.verdicts().sort("doc_id")
    assert same(kept, found.sort("doc_id").with_columns(path=kept["path"]))

    shown += [out, repr(make_plan(night.config))]
    objects = s3.get_file_info(fs.FileSelector("night", recursive=True))
    everything = {info.path: s3.open_input_file(info.path).read() for info in objects if info.is_file}
    everything |= {f"output {i}": text.encode() for i, text in enumerate(shown)}
    assert not any(value.encode() in text for value in CREDENTIALS.values() for text in everything.values())
    assert encodings.found(secrets_of(registry), everything) == set()


@pytest.mark.long
@pytest.mark.usefixtures("without_ray")
def test_flags_on_s3_are_explained(s3, far_registry, night, registry, marked, plain, tmp_path):
    """Input, results and registry are on S3; then the input is deleted."""
    night.write("a", [marked(message_of(registry, "green", "alice"), 60, 1), plain(60, 2)])
    fs.copy_files(str(night.input), "night/explained", fs.LocalFileSystem(), s3)
    config = night.configure(paths=[f"{BUCKET}/explained"], more="evidence = { keep_text = true }").read_text()
    far = config.replace(str(registry), far_registry).replace('"results"', f'"{BUCKET}/explained-results"')
    night.config.write_text(far)
    night.scan()
    for gone in (False, True):
        code, out, err = call("explain", night.config, "a:0")
        assert (code, "Text kept by the scan" in out, "is not shown" in out) == (0, gone, False), out + err
        code, out, err = call("replay", night.config, "a:0")
        assert (code, "comes out the same" in out) == (0, True), out + err
        code, out, err = call("report", night.config, "--out", tmp_path / "report")
        assert (code, "1 pages of flags" in out) == (0, True), out + err
        if not gone:
            s3.delete_dir("night/explained")


@pytest.mark.costly
def test_users_of_a_registry_on_s3(s3, tmp_path, registry, monkeypatch):
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", 2)  # so that an index is made
    new_key(tmp_path, "k", format="gumbel", window=1, messages=200, tokenizer=TOKENIZER)
    far = f"{BUCKET}/users"
    with s3.open_output_stream("night/users/keys.toml") as file:
        file.write((tmp_path / "keys.toml").read_bytes())
    names = [f"user{i}" for i in range(6)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda name: add_users(far, None, [name]), names))
    given = list_users(far)
    assert sorted(given["user_id"]) == names
    assert given["message"].n_unique() == len(names)
    assert call("users", "list", "--registry", far)[1].count("user") == 1 + len(names)
    assert call("users", "remove", "user0", "--erase", "--yes", "--registry", far + "/")[0] == 0
    add_users(far, None, ["user6", "user7"])
    message = list_users(far).filter(pl.col("user_id") == "user1")["message"][0]
    assert Holders.load(far, ["k"]).naming("k", message, datetime.now(UTC)).user_id == "user1"
    assert f" {message} " in call("users", "show", "user1", "--registry", far)[1]
    assert call("users", "verify", "--registry", far, "--head", head_of(far))[0] == 0
    index = [
        info.path
        for info in s3.get_file_info(fs.FileSelector("night/users/users/_index", recursive=True))
        if info.is_file
    ]
    assert any(path.endswith(".arrow") for path in index)
    assert not any(b"user0" in s3.open_input_file(path).read() for path in index)
    assert "copy its keys.toml to this registry" in call("keys", "retire", "k", "--registry", far)[2]
    with pytest.raises(Refused, match="a local folder"):
        retire_key(far, "k")


def test_refusals(s3, far_registry, night):
    with pytest.raises(Refused, match=r"s3://night/none/keys\.toml does not exist"):
        load_registry(f"{BUCKET}/none")
    with s3.open_output_stream("night/relative/keys.toml") as file:
        file.write((night.registry / "keys.toml").read_bytes())
    text = night.config.read_text()
    night.config.write_text(text.replace(str(night.registry), f"{BUCKET}/relative"))
    with pytest.raises(SecretError, match="a relative path cannot start at s3://night/relative"):
        open_detector(make_plan(night.config))
    night.config.write_text(text.replace('"results"', '"s3://night/results?region=us-east-1"'))
    with pytest.raises(Refused, match=r"results: .* has options after a '\?'"):
        make_plan(night.config)
    night.config.write_text(
        text.replace('["in"]', '["s3://night?region=us-east-1"]').replace('"results"', '"s3://night/x"')
    )
    with pytest.raises(Refused, match="results: s3://night/x is inside the input path"):
        make_plan(night.config)


def test_a_uri_of_a_local_folder_is_that_folder(night):
    text = night.config.read_text()
    there = make_plan(night.config)
    text = text.replace(f'"{night.registry}"', f'"file://{night.registry}"')
    night.config.write_text(
        text.replace('"results"', f'"file://{night.results}"').replace('["in"]', f'["file://{night.input}"]')
    )
    here = make_plan(night.config)
    assert (here.registry, here.results, here.locations) == (there.registry, there.results, there.locations)

import base64
import datetime
import json
import os
import socket
import string
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scanner.errors import FileFault, Refused
from scanner.input import delta_tables, files
from scanner.input.files import InputFile, find_file, list_files, resolve
from scanner.input.tables import TableFiles, TableReading
from tests.support.deltas import delete_by_vector
from tests.support.slow_store import SlowStore

DATE = datetime.date(2026, 8, 31)


def listed(*locations: object) -> list[str]:
    return [file.path for file in list_files([str(location) for location in locations])]


def touch(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_plain_path_starts_at_the_configuration():
    base = Path("/etc/brickscan")
    assert resolve("in/../night", base, None) == "/etc/brickscan/night"
    assert resolve("/data/night/", base, None) == "/data/night"
    assert resolve("file:///data/night", base, None) == "/data/night"
    assert resolve("s3://bucket/night?region=eu-west-1", base, None) == "s3://bucket/night?region=eu-west-1"


def test_a_date_fills_in():
    assert resolve("/data/{date}/x-{date}", Path("/"), DATE) == "/data/2026-08-31/x-2026-08-31"
    assert resolve("/data/all", Path("/"), DATE) == "/data/all"
    with pytest.raises(Refused, match=r"'/data/\{date\}' contains \{date\}; give the date with --date yesterday"):
        resolve("/data/{date}", Path("/"), None)


def test_a_refusal_names_the_newest_date_that_is_there(tmp_path):
    for name in ("2026-11-14", "2026-11-20", "2026-11-21", "2026-11-22.old", "latest"):
        touch(tmp_path / "[in]" / name / ("part" if name == "2026-11-21" else f"{name}.parquet"))
    for path, date in (("[in]/{date}", "2026-11-21"), ("[in]/{date}/{date}.parquet", "2026-11-20")):
        with pytest.raises(Refused, match=f"give the date with --date {date}$"):
            resolve(path, tmp_path, None)
    with pytest.raises(Refused, match=r"give the date with --date yesterday$"):
        resolve("s3://bucket/{date}", tmp_path, None)


@pytest.mark.parametrize("location", ["s3://bucket/x?nosuch=1", "nosuch://host/x"])
def test_a_uri_that_nothing_reads_is_refused(location):
    with pytest.raises(Refused, match="is not a path that can be read"):
        list_files([location])


@pytest.mark.parametrize(
    "uri", ["s3://AKIA:hunter2/hunter2@bucket/x", "s3://AKIA:/hunter2@bucket/x", "gs://a:1h/unter2@b"]
)
def test_a_password_with_a_slash_is_refused_and_not_repeated(uri):
    with pytest.raises(Refused, match="must not contain a password") as refused:
        resolve(uri, Path("/"), None)
    assert "unter2" not in str(refused.value)


@pytest.mark.parametrize("uri", ["hdfs://host:8020/a@b", "s3://bucket/dt=10:00/a@b", "hdfs://[::1]/a@b", "s3://a@b/c"])
def test_an_at_or_a_colon_is_no_password(uri):
    assert resolve(uri, Path("/"), None) == uri


def test_what_is_behind_a_question_mark_is_not_repeated():
    with pytest.raises(Refused, match=r"Unexpected query parameter in S3 URI: 'secret_key'") as refused:
        list_files(["s3://bucket/x?secret_key=hunter2"])
    assert "hunter2" not in str(refused.value)


def test_a_password_in_a_path_is_refused_and_not_repeated():
    with pytest.raises(Refused, match="must not contain a password") as refused:
        resolve("s3://key:hunter2@bucket/x", Path("/"), None)
    assert "hunter2" not in str(refused.value)


def test_folders_are_listed_at_any_depth_in_order(tmp_path):
    for name in ("b/2.parquet", "a/deep/er/1.parquet", "3.parquet", "b/notes.txt", "b/4.parquet.tmp"):
        touch(tmp_path / name)
    assert listed(tmp_path) == [str(tmp_path / name) for name in ("3.parquet", "a/deep/er/1.parquet", "b/2.parquet")]


def test_hidden_and_unfinished_files_are_left_out_below_the_path_only(tmp_path):
    folder = tmp_path / "_night"
    for name in ("_log/1.parquet", ".tmp/1.parquet", "_1.parquet", "x/.2.parquet", "x/3.parquet"):
        touch(folder / name)
    assert listed(folder) == [str(folder / "x/3.parquet")]


@pytest.mark.parametrize("store", [False, True])
def test_hidden_partitions_are_read(tmp_path, monkeypatch, store):
    """A folder `name=value` is a partition whatever its name begins with; all else that is hidden is told of."""
    read = ("_day=1/1.parquet", ".day=2/_x=y/1.parquet", "day=3/1.parquet")
    lost = ("_tmp/day=3/1.parquet", "_day=1/_4.parquet", "_a=b.parquet", "day=3/.x/y/z.parquet")
    for name in (*read, *lost, "_SUCCESS", ".a.parquet.crc", "_tmp/notes.txt"):
        touch(tmp_path / name)
    if store:
        monkeypatch.setattr(files, "filesystem_of", SlowStore(0).filesystem_of)
    told = []
    found = list_files([f"s3:/{tmp_path}" if store else str(tmp_path)], passed_over=told.append)
    assert sorted(file.inner for file in found) == sorted(str(tmp_path / name) for name in read)
    assert sorted(told) == sorted(str(tmp_path / name) for name in lost)
    assert {file.values["_day"] for file in found if "_day" in file.values} == {"1"}


def test_hidden_files_with_a_link_are_read(tmp_path):
    """A store of contents (git-annex, DVC) hides the files that links lead to; a hidden link loses nothing either."""
    for name in ("a", "b"):
        touch(tmp_path / ".store" / f"{name}.parquet")
    touch(tmp_path / "day=1" / "c.parquet")
    (tmp_path / "a.parquet").symlink_to(tmp_path / ".store" / "a.parquet")
    (tmp_path / ".newest").symlink_to(tmp_path / "day=1")
    (tmp_path / "day=1" / ".c.parquet").symlink_to("c.parquet")
    told = []
    found = [file.path for file in list_files([str(tmp_path)], passed_over=told.append)]
    assert found == [str(tmp_path / "a.parquet"), str(tmp_path / "day=1" / "c.parquet")]
    assert told == [str(tmp_path / ".store" / "b.parquet")]


def test_a_table_in_a_hidden_partition_is_refused(tmp_path, place):
    touch(tmp_path / "_day=1" / "1.parquet")
    touch(tmp_path / "_day=1" / LOGS["Delta"])
    with pytest.raises(Refused, match="is the folder of a Delta table"):
        listed(place)


LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/v1.metadata.json",
}


@pytest.fixture(params=["here", "in a store"])
def place(request, tmp_path, monkeypatch) -> str:
    """A folder with a table in `lake/table`, by its path on this machine or in a store."""
    if request.param == "here":
        return str(tmp_path)
    monkeypatch.setattr(files, "filesystem_of", SlowStore(0).filesystem_of)
    return f"s3:/{tmp_path}"


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("where", ["lake/table", "lake", "lake/table/dt=1", "lake/table/dt=1/1.parquet", ""])
def test_a_table_is_refused_at_above_and_below_a_path(tmp_path, monkeypatch, place, kind, where):
    table = tmp_path / "lake" / "table"
    touch(table / "dt=1" / "1.parquet")
    touch(tmp_path / "lake" / "2.parquet")
    assert listed(f"{place}/{where}")
    touch(table / LOGS[kind])
    refusal = rf"lake/table' is the folder of an? {kind} table, whose files may contain rows"
    if (kind, where) == ("Delta", "lake/table"):
        monkeypatch.setattr(delta_tables, "read_delta", lambda location, reading: TableFiles([]))
        assert listed(f"{place}/{where}") == []
        return
    with pytest.raises(Refused, match=refusal):
        listed(f"{place}/{where}")
    with pytest.raises(Refused, match=rf"is the folder of an? {kind} table"):
        listed(f"{place}/lake/2.parquet", f"{place}/{where}")
    assert listed(f"{place}/lake/2.parquet") == [f"{place}/lake/2.parquet"]  # beside it


@pytest.mark.parametrize("kind", LOGS)
def test_links_into_a_table_are_refused(tmp_path, kind):
    file = touch(tmp_path / "table" / "dt=1" / "1.parquet")
    touch(tmp_path / "table" / LOGS[kind])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.parquet").symlink_to(file)
    (tmp_path / "folders").mkdir()
    (tmp_path / "folders" / "part").symlink_to(file.parent)
    for path in (tmp_path / "in", tmp_path / "in" / "1.parquet", tmp_path / "folders"):
        with pytest.raises(Refused, match=f"table' is the folder of an? {kind} table"):
            listed(path)


def test_what_is_no_table_is_listed(tmp_path, place):
    """A table in a hidden folder is not read; `metadata` and JSON alone make no table."""
    for name in (f"_old/{LOGS['Delta']}", "metadata/about.json", "x/v1.metadata.json", "metadata/1.parquet"):
        touch(tmp_path / name)
    assert listed(place) == [f"{place}/metadata/1.parquet"]


def test_looking_for_tables_costs_a_store_some_requests_a_path(tmp_path, monkeypatch):
    for number in range(200):
        touch(tmp_path / f"{number % 20}" / f"{number}.parquet")
    store = SlowStore(0)
    monkeypatch.setattr(files, "filesystem_of", store.filesystem_of)
    assert len(listed(f"s3:/{tmp_path}")) == 200
    assert store.requests.total() <= 2 + 3 * len(tmp_path.parents) + 3


def test_results_of_a_scan_are_no_input(tmp_path):
    from scanner.results.transactions import open_tables

    open_tables(str(tmp_path / "results"))
    for path in (tmp_path, tmp_path / "results"):
        with pytest.raises(Refused, match="is the folder of a Delta table"):
            listed(path)


def test_a_file_that_stayed_is_the_same_object_and_one_that_changed_is_not(tmp_path):
    paths = [touch(tmp_path / name) for name in ("a/1.parquet", "a/2.parquet", "b/3.parquet")]
    first = list_files([str(tmp_path)])
    paths[1].write_text("longer than before")
    os.utime(paths[2], ns=(0, first[2].modified + 1))
    second = list_files([str(tmp_path)], before=first)
    assert second == list_files([str(tmp_path)])
    assert [old is new for old, new in zip(first, second, strict=True)] == [True, False, False]
    assert list_files([str(tmp_path / "a")], before=second)[0].location == str(tmp_path / "a")


def test_overlapping_paths_count_once(tmp_path):
    file = touch(tmp_path / "a" / "1.parquet")
    assert listed(tmp_path, tmp_path / "a", file) == [str(file)]


def test_a_named_file_needs_no_suffix(tmp_path):
    assert listed(touch(tmp_path / "documents.bin")) == [str(tmp_path / "documents.bin")]


def test_names_are_kept_as_they_are(tmp_path):
    file = touch(tmp_path / "a?b#c %20" / "x=1;y é.parquet")
    assert listed(tmp_path) == listed(file.parent) == listed(file) == [str(file)]


_B85 = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"


def let_vectors_be_relative(table: Path) -> None:
    """Have a log name deletion vectors by a path below its table, as Spark does (Delta protocol, storage type u)."""
    log = table / "_delta_log" / f"{1:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for vector in (action["add"]["deletionVector"] for action in actions if "add" in action):
        identity = uuid.UUID(Path(vector["pathOrInlineDv"]).stem.removeprefix("deletion_vector_"))
        packed = base64.b85encode(identity.bytes).decode().translate(str.maketrans(_B85, _Z85))
        vector |= {"storageType": "u", "pathOrInlineDv": packed}
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


@pytest.mark.parametrize("name", ["what?", "a%20b", "a#*:b", "[é]\\b", "a\nb"])
def test_a_table_in_a_folder_of_any_name_is_read(tmp_path, name):
    """A plain path has no options and no escapes; deltalake read `a b` for `a%20b`."""
    table = tmp_path / name / "posts"
    stored = pa.table({"text": ["a", "b", "c"], "doc_id": ["1", "2", "3"], "account": ["x y", "x y", "p%20q"]})
    write_deltalake(str(tmp_path / "made"), stored, partition_by=["account"])
    delete_by_vector(tmp_path / "made", ["1"])
    let_vectors_be_relative(tmp_path / "made")
    (tmp_path / name).mkdir()
    (tmp_path / "made").rename(table)
    write_deltalake(str(tmp_path / "a b" / "posts"), stored.slice(0, 1))  # as some of the names read without escapes
    write_deltalake(str(tmp_path / "?" / "posts"), stored.slice(0, 1))
    for path in (str(table), f"delta:{table}"):
        found = list_files([resolve(path, tmp_path, None)])
        assert sorted(file.values["account"] for file in found) == ["p%20q", "x y"]
        assert sorted(int(file.rows_not_read(0, 2).sum()) for file in found) == [0, 1]
        for file in found:
            assert file.path.startswith(str(table))
            assert file.open().read(4) == b"PAR1"
            assert find_file(file.path).path == file.path
    found = list_files([str(table)], reading=TableReading(version=0))
    assert not any(file.rows_not_read(0, 2).any() for file in found)


def fault_of(file: InputFile) -> FileFault:
    with pytest.raises(FileFault) as fault:
        file.check_unchanged()
    return fault.value


@pytest.mark.parametrize("name", [b"/\xff.parquet", b"/\xff/1.parquet"])
def test_a_name_that_is_no_utf8_costs_its_own_file_only(tmp_path, name):
    os.makedirs(os.path.dirname(os.fsencode(tmp_path) + name), exist_ok=True)
    Path(os.fsdecode(os.fsencode(tmp_path) + name)).write_text("x")
    sound = touch(tmp_path / "sound.parquet")
    named_so = touch(tmp_path / name.decode(errors="backslashreplace").lstrip("/"))  # as the odd name is shown
    files = list_files([str(tmp_path)])
    assert sorted(file.path for file in files) == sorted([str(named_so), str(named_so), str(sound)])
    (odd,) = [file for file in files if not file.modified]
    assert (fault_of(odd).reason, fault_of(odd).lasting) == ("unreadable", True)
    assert "is not valid UTF-8; rename it" in fault_of(odd).detail


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets must be short
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("make", [fifo, unix_socket, device])
def test_what_is_no_regular_file_is_listed_and_never_opened(tmp_path, make):
    make(tmp_path / "1.parquet")
    for location in (tmp_path, tmp_path / "1.parquet"):
        (file,) = list_files([str(location)])
        assert file.path == str(tmp_path / "1.parquet")
        assert (fault_of(file).reason, fault_of(file).lasting) == ("no_regular_file", True)


def test_a_file_that_became_a_folder_is_no_regular_file(tmp_path):
    path = touch(tmp_path / "1.parquet")
    (file,) = list_files([str(tmp_path)])
    path.unlink()
    path.mkdir()
    assert fault_of(file).reason == "no_regular_file"


def test_hard_links_count_once(tmp_path):
    one = touch(tmp_path / "b" / "1.parquet")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").mkdir()
    os.link(one, tmp_path / "a" / "2.parquet")
    (tmp_path / "c" / "3.parquet").symlink_to(one)
    other = touch(tmp_path / "d" / "same-content.parquet")
    assert listed(tmp_path) == listed(tmp_path, one) == [str(tmp_path / "a" / "2.parquet"), str(other)]


def test_an_inode_of_a_file_with_one_name_says_nothing(tmp_path, monkeypatch):
    """Some network filesystems give several files the same inode."""
    both = [str(touch(tmp_path / "1.parquet")), str(touch(tmp_path / "2.parquet"))]
    status = os.stat(both[0])
    assert status.st_nlink == 1
    monkeypatch.setattr(files.os, "stat", lambda *_, **__: status)
    assert listed(*both) == both


def test_a_path_that_none_can_be_is_refused(tmp_path):
    with pytest.raises(Refused, match="NUL"):
        listed(f"{tmp_path}/a\0b")


def test_links_in_a_circle_multiply_nothing(tmp_path):
    file, deep = touch(tmp_path / "a" / "1.parquet"), touch(tmp_path / "a" / "b" / "2.parquet")
    (deep.parent / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "here").symlink_to(".")
    assert listed(tmp_path) == [str(file), str(deep)]


def test_links_lead_elsewhere_and_a_file_reached_twice_counts_once(tmp_path):
    elsewhere = touch(tmp_path / "elsewhere" / "1.parquet")
    folder = tmp_path / "in"
    touch(folder / "own.parquet")
    for name, target in (("b.parquet", elsewhere), ("a.parquet", elsewhere), ("c", elsewhere.parent)):
        (folder / name).symlink_to(target)
    expected = [str(folder / "a.parquet"), str(folder / "own.parquet")]
    assert listed(folder) == listed(folder, tmp_path / "in" / "c") == expected


def test_a_link_to_nothing_is_listed_and_found_to_be_gone(tmp_path):
    (tmp_path / "1.parquet").symlink_to("nowhere")
    (file,) = list_files([str(tmp_path)])
    with pytest.raises(FileFault, match="no longer exists"):
        file.open()


def test_an_empty_folder_is_no_error_and_a_missing_one_is(tmp_path):
    assert listed(tmp_path) == []
    with pytest.raises(Refused, match="nowhere' does not exist"):
        listed(tmp_path / "nowhere")


def test_a_uri_of_a_local_file_is_listed_as_what_it_is(tmp_path):
    file = touch(tmp_path / "1.parquet")
    assert listed(resolve(f"file://{tmp_path}", Path("/"), None), tmp_path) == [str(file)]


@pytest.fixture
def file(tmp_path) -> InputFile:
    touch(tmp_path / "1.parquet", "first")
    return list_files([str(tmp_path)])[0]


def test_a_listed_file_is_known_by_size_and_time(file):
    assert file.size == 5
    assert file.modified == os.stat(file.path).st_mtime_ns
    file.check_unchanged()
    assert file.open().read() == b"first"


def change_size(path: str) -> None:
    before = os.stat(path)
    Path(path).write_text("longer than before")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_time(path: str) -> None:
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("happens", "reason", "detail"),
    [
        (os.unlink, "vanished", "no longer exists"),
        (change_size, "changed", "5 bytes then, 18 now"),
        (change_time, "changed", r"modified at \d+ ns since 1970 then, at \d+ now"),
    ],
)
def test_what_happens_to_a_file_is_seen(file, happens, reason, detail):
    happens(file.path)
    with pytest.raises(FileFault, match=detail) as fault:
        file.check_unchanged()
    assert fault.value.reason == reason
    assert not fault.value.lasting


def test_a_fault_has_a_reason_of_the_vocabulary():
    assert FileFault("truncated", "").lasting
    with pytest.raises(ValueError, match="'odd' is not a reason"):
        FileFault("odd", "")

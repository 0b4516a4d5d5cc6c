"""The processes that read footers: they die alone, are replaced, end with the inspector, and are told no secret."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.errors import FileFault, ScanFailed
from scanner.input import files as files_module
from scanner.input import inspector as module
from scanner.input.columns import Columns
from scanner.input.files import InputFile, list_files
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.storage.locations import REQUESTS_AT_ONCE
from tests.support import footers
from tests.support.footers import File
from tests.support.hostile_files import histogram
from tests.support.slow_store import SlowStore
from tests.support.thrift import I64, LIST, STRUCT, Field, List, write_struct

COLUMNS = Columns("text", None, None, None)


@pytest.fixture
def inspector():
    with Inspector() as one:
        yield one


@pytest.fixture
def sound(tmp_path) -> InputFile:
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "sound.parquet")
    return list_files([str(tmp_path / "sound.parquet")])[0]


def children_of(pid: int) -> list[int]:
    """Living children of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if ") Z " not in Path(f"/proc/{child}/stat").read_text()]


def rows(answer: list[RowGroup] | FileFault) -> int | str:
    return answer.reason if isinstance(answer, FileFault) else sum(group.rows for group in answer)


def contradictory(path: Path) -> Path:
    file = File(path)
    file.footer[footers.FILE_ROWS].value += 1
    return file.write(path)


def test_each_file_gets_its_own_answer_whatever_the_others_do(inspector, tmp_path, monkeypatch):
    """Many files are handed over together; some kill the process, contradict themselves or are no Parquet."""
    monkeypatch.setattr(module, "_TOGETHER_BYTES", 5000)  # room for a few footers
    expected = []
    for number in range(200):
        path = tmp_path / f"{number:03d}.parquet"
        pq.write_table(pa.table({"text": ["x"] * (number + 1), "doc_id": ["i"] * (number + 1)}), path)
        match number % 17:
            case 3 | 4:
                histogram(0)(path)
                expected.append("unreadable")
            case 6:
                contradictory(path)
                expected.append("unreadable")
            case 8:
                path.write_bytes(b"no Parquet")
                expected.append("not_parquet")
            case _:
                expected.append(number + 1)
    files = list_files([str(tmp_path)])
    found = list(inspector.inspect_all(files, COLUMNS))
    assert [file for file, _ in found] == files
    assert [rows(answer) for _, answer in found] == expected
    assert list(inspector.inspect_all([], COLUMNS)) == []


def test_a_process_that_died_for_another_reason_costs_no_file(inspector, sound):
    inspector.inspect(sound, COLUMNS)
    for end in (signal.SIGKILL, signal.SIGABRT):
        (child,) = children_of(inspector._server.pid)
        os.kill(child, end)
        assert inspector.inspect(sound, COLUMNS)[0].rows == 2
        assert child not in children_of(inspector._server.pid)


def test_a_server_that_died_is_started_again(inspector, sound):
    inspector.inspect(sound, COLUMNS)
    for _ in range(2):
        (child,) = children_of(inspector._server.pid)
        os.kill(inspector._server.pid, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        assert inspector.inspect(sound, COLUMNS)[0].rows == 2


def test_a_process_that_is_killed_from_outside_again_and_again_is_no_fault_of_the_file(inspector, sound, monkeypatch):
    """A machine that runs out of memory kills processes like this; a later scan tries the file again."""
    ask = module._Process.ask

    def killed(self, *arguments):
        os.kill(self.pid, signal.SIGKILL)
        return ask(self, *arguments)

    monkeypatch.setattr(module._Process, "ask", killed)
    with pytest.raises(FileFault) as fault:
        inspector.inspect(sound, COLUMNS)
    assert (fault.value.reason, fault.value.lasting) == ("io_error", False)


@pytest.mark.costly
def test_no_process_outlives_the_inspector(sound):
    with Inspector() as inspector:
        inspector.inspect(sound, COLUMNS)
        server = inspector._server.pid
        processes = [server, *children_of(server)]
        assert len(processes) == 2
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(ScanFailed, match="cannot be started"):  # a late thread may ask, too
        inspector.inspect(sound, COLUMNS)


AND_DIES = """
import os, sys
from pathlib import Path
from scanner.input.columns import Columns
from scanner.input.files import list_files
from scanner.input.inspector import Inspector
inspector = Inspector()
inspector.inspect(list_files([sys.argv[1]])[0], Columns("text", None, None, None))
server = inspector._server.pid
print(server, Path(f"/proc/{server}/task/{server}/children").read_text(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.costly
def test_no_process_outlives_a_driver_that_is_killed(sound):
    done = subprocess.run([sys.executable, "-c", AND_DIES, sound.path], capture_output=True, text=True, check=False)
    processes = [int(pid) for pid in done.stdout.split()]
    assert len(processes) == 2, done.stderr
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_processes_are_told_no_secret_and_import_no_ray(inspector, sound, monkeypatch):
    monkeypatch.setenv("BRICKSCAN_KEY", "hunter2")
    inspector.inspect(sound, COLUMNS)
    for pid in (inspector._server.pid, *children_of(inspector._server.pid)):
        assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    code = "import sys, scanner.input.inspector; print({'ray', 'torch', 'numba', 'polars'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_few_processes_serve_many_threads(inspector, sound):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(inspector.inspect(sound, COLUMNS)[0].rows)) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [2] * 20
    assert 1 <= len(children_of(inspector._server.pid)) <= module._PROCESSES


def test_what_the_library_says_when_it_ends_a_process_is_not_shown(tmp_path, capfd):
    with Inspector() as inspector, pytest.raises(FileFault):
        inspector.inspect(list_files([str(histogram(0)(tmp_path / "a.parquet"))])[0], COLUMNS)
    out, err = capfd.readouterr()
    assert out == err == ""


TAKES_LONG = """
import os, sys
from multiprocessing import Pipe
from scanner.input import inspector
inspector.CPU_SECONDS = 0.3
def slow(*_):
    while True:
        pass
inspector._groups_or_fault = slow
ours, theirs = Pipe()
pid = os.fork()
if pid == 0:
    inspector._answer_requests(theirs)
theirs.close()
ours.send_bytes(b'[["text", null, null, null], [[0, 0, {}]]]\\n')
print(os.waitpid(pid, 0)[1])
"""


def test_a_footer_that_takes_too_long_ends_its_process():
    done = subprocess.run([sys.executable, "-c", TAKES_LONG], capture_output=True, text=True, check=True)
    assert os.WTERMSIG(int(done.stdout)) == signal.SIGPROF
    assert signal.SIGPROF in module._FAULTS_OF_CODE


NEEDS_MUCH = """
import sys
from pathlib import Path
import pyarrow as pa
from scanner.input import inspector
from scanner.input.columns import Columns
inspector.FOOTER_MEMORY = int(sys.argv[2])
inspector.limit_memory()
footer = pa.py_buffer(Path(sys.argv[1]).read_bytes())
print(inspector._groups_or_fault(footer, 2**30, Columns("text", None, None, None), {}))
"""


@pytest.mark.costly
def test_a_footer_that_needs_too_much_memory_is_unreadable(tmp_path):
    """A column chunk takes three bytes in a footer, and hundreds of bytes once it is read."""
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    fields = write_struct({number: one for number, one in File(tmp_path / "a.parquet").footer.items() if number < 4})
    chunks = List(STRUCT, [{2: Field(I64, 0)}] * 50_000)
    group = write_struct({1: Field(LIST, chunks), 2: Field(I64, 0), 3: Field(I64, 0)})
    footer = fields[:-1] + bytes([0x19, 14 << 4 | STRUCT]) + 14 * group + b"\0"
    (tmp_path / "footer").write_bytes(footer + len(footer).to_bytes(4, "little") + b"PAR1")
    for memory, read in ((2**28, False), (2**31, True)):
        command = [sys.executable, "-c", NEEDS_MUCH, str(tmp_path / "footer"), str(memory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ("contradicts itself" in done.stdout) == read
        assert "'unreadable'" in done.stdout or -done.returncode in module._FAULTS_OF_CODE, done


@pytest.fixture
def store(monkeypatch) -> SlowStore:
    store = SlowStore(0.03)
    monkeypatch.setattr(files_module, "filesystem_of", store.filesystem_of)
    return store


def test_many_files_of_a_store_are_asked_for_at_once_and_seldom(inspector, store, tmp_path):
    for number in range(300):
        pq.write_table(pa.table({"text": ["x"] * (number + 1)}), tmp_path / f"{number:03d}.parquet")
    noise = os.urandom(200_000).hex()
    pq.write_table(pa.table({"text": [noise]}), tmp_path / "large.parquet")
    files = list_files([f"s3:/{tmp_path}"])
    assert store.requests == {"look up": 1 + 3 * len((tmp_path / "x").parents), "list": 1}  # three logs of tables each
    store.requests.clear()
    assert [rows(answer) for _, answer in inspector.inspect_all(files, COLUMNS)] == [*range(1, 301), 1]
    assert store.requests == {"open": 301, "read": 302}, "the beginning of the large one is read by itself"
    assert store.together > 32
    assert pa.io_thread_count() >= REQUESTS_AT_ONCE, "a client of Arrow holds so many connections"


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda path: path.unlink(), "vanished"),
        (lambda path: path.write_bytes(path.read_bytes() + b"more"), "changed"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "changed"),  # same length, later
    ],
    ids=["gone", "longer", "another"],
)
def test_what_happened_to_a_file_of_a_store_is_told(inspector, store, sound, happens, reason):
    (file,) = list_files([f"s3:/{sound.path}"])
    happens(Path(sound.path))
    assert rows(inspector._inspect([file], COLUMNS)[0]) == reason

"""Read untrusted footers in separate processes. A file that ends such a process does not end the scan.

The driver reads a footer's bytes and sends them to a process. A server, this file run as
`python -m scanner.input.inspector FD`, forks a new process in some milliseconds. The process reads as many footers as
it survives. It gets no path, no secret and no credentials. An attacker who takes it over has only the footers sent to
it.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing.connection import Connection
from typing import NamedTuple

import pyarrow as pa

from scanner.errors import FileFault, ScanFailed
from scanner.input.columns import Columns, ColumnSource, Sources
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup, read_footer, row_groups
from scanner.storage.locations import REQUESTS_AT_ONCE, is_uri

CPU_SECONDS = 20.0
"""CPU seconds that a footer may take. The largest allowed footer takes one or two."""

FOOTER_MEMORY = 2 * 2**30
"""Bytes of memory that a footer may take. The largest one takes a fraction."""

_THREADS = 24  # threads that read footers on local disks; as many more for a store, whose requests are slow
_PROCESSES = 2  # processes that read footers: one may be busy with a slow footer
_TOGETHER = 32  # files, and bytes of their footers, that are sent together
_TOGETHER_BYTES = 2**20
_STARTS = 2  # attempts to start a process, each with a server
_NUMBER = struct.Struct("<q")  # process ids and wait statuses
_FAULTS_OF_CODE = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPROF)

Answer = list[RowGroup] | FileFault


class _Footer(NamedTuple):
    """The footer of a file, and the size of the file.

    sources: where the file has the columns.
    """

    size: int
    data: pa.Buffer
    sources: Sources


class _Process(NamedTuple):
    pid: int
    connection: Connection

    def ask(self, columns: Columns, footers: Sequence[_Footer]) -> Iterator[Answer]:
        """Yield one answer for each footer, in order.

        Raises:
            EOFError, OSError: a footer ended the process.
        """
        asked = [[footer.size, footer.data.size, _without_values(footer.sources)] for footer in footers]
        head = json.dumps([list(columns), asked]).encode()
        self.connection.send_bytes(b"\n".join([head, b"".join(footer.data for footer in footers)]))
        for _ in footers:
            answer = json.loads(self.connection.recv_bytes())
            yield (
                FileFault(*answer["fault"]) if "fault" in answer else [RowGroup(*group) for group in answer["groups"]]
            )


class Inspector:
    """Inspects files, from any number of threads. Processes start when they are needed, and end with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the server and its socket
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turns = threading.Semaphore(_PROCESSES)
        self._idle: list[_Process] = []
        self._closed = False

    def __enter__(self) -> "Inspector":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def inspect(self, file: InputFile, columns: Columns) -> list[RowGroup]:
        """Read a file's footer. Check that it is consistent and has the columns, with types that can be scanned.

        Raises:
            FileFault: the file cannot be scanned.
            ScanFailed: no process can be started.
        """
        (answer,) = self._inspect([file], columns)
        if isinstance(answer, FileFault):
            raise answer
        return answer

    def inspect_all(self, files: Sequence[InputFile], columns: Columns) -> Iterator[tuple[InputFile, Answer]]:
        """Inspect files, many at a time. Yield each file with its result, in order.

        Raises:
            ScanFailed: no process can be started.
        """
        listed = [*files]  # once, because each access makes an object of a table's file
        at_once = REQUESTS_AT_ONCE if any(is_uri(file.location) for file in listed) else _THREADS
        together = min(_TOGETHER, -(-len(listed) // at_once)) or 1
        parts = [listed[begin : begin + together] for begin in range(0, len(listed), together)]
        threads = ThreadPoolExecutor(at_once)
        try:
            for part, answers in zip(parts, threads.map(self._inspect, parts, repeat(columns)), strict=True):
                yield from zip(part, answers, strict=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # after an interrupt, do not wait for the rest

    def close(self) -> None:
        """End all processes, for good."""
        with self._lock:
            self._closed = True
            self._end()

    def _inspect(self, files: Sequence[InputFile], columns: Columns) -> list[Answer]:
        answers: list[Answer] = []
        footers: list[_Footer] = []
        indices: list[int] = []  # places of the footers among the answers

        def answer_together() -> None:
            for index, answer in zip(indices, self._ask_processes(footers, columns), strict=True):
                answers[index] = _fault_of_change(files[index], answer)
            footers.clear()
            indices.clear()

        for file in files:
            answers.append([])
            try:
                if not is_uri(file.location):  # a store has no special files, and shows the size after opening
                    file.check_unchanged()
                footers.append(_Footer(file.size, read_footer(file), file.sources(columns)))
                indices.append(len(answers) - 1)
            except FileFault as fault:
                answers[-1] = _fault_of_change(file, fault)
            if sum(footer.data.size for footer in footers) > _TOGETHER_BYTES:
                answer_together()
        answer_together()
        return answers

    def _ask_processes(self, footers: Sequence[_Footer], columns: Columns) -> list[Answer]:
        """Return the answers of a process. A footer that ended it is given once more, alone, to a new process."""
        answers: list[Answer] = []
        with self._turns:
            while len(answers) < len(footers):
                process = self._idle.pop() if self._idle else self._fork()
                try:
                    answers.extend(process.ask(columns, footers[len(answers) :]))  # those before its end
                except (EOFError, OSError):
                    process.connection.close()
                    answers.append(self._ask_new_process(footers[len(answers)], columns))
                else:
                    self._idle.append(process)
        return answers

    def _ask_new_process(self, footer: _Footer, columns: Columns) -> Answer:
        process = self._fork()
        try:
            (answer,) = process.ask(columns, [footer])
        except (EOFError, OSError):
            process.connection.close()
            ended = self._wait_status(process.pid)
            if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) in _FAULTS_OF_CODE:
                how = signal.Signals(os.WTERMSIG(ended)).name
                return FileFault("unreadable", f"the process that read the footer was killed by {how}")
            return FileFault("io_error", "the process that read the footer was killed twice from outside")
        self._idle.append(process)
        return answer

    def _fork(self) -> _Process:
        own_end, far_end = socket.socketpair()
        with own_end, far_end, self._lock:
            for _ in range(0 if self._closed else _STARTS):
                line = self._socket or self._start()
                try:
                    socket.send_fds(line, [_NUMBER.pack(0)], [far_end.fileno()])
                    return _Process(_receive(line), Connection(own_end.detach()))
                except (EOFError, OSError):
                    self._end()
        raise ScanFailed("the process that reads footers of the input cannot be started or was killed")

    def _wait_status(self, pid: int) -> int:
        """Return the wait status of a process. 0: its server is gone too."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            if self._socket is not None:
                self._socket.sendall(_NUMBER.pack(pid))
                return _receive(self._socket)
        return 0

    def _start(self) -> socket.socket:
        self._socket, far_end = socket.socketpair()
        with far_end:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "scanner.input.inspector", str(far_end.fileno())],
                pass_fds=[far_end.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the driver
                env=_environment(),
            )
        return self._socket

    def _end(self) -> None:
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)  # its session: the server and its forked processes
            self._server.wait()
        if self._socket is not None:
            self._socket.close()
        self._server = self._socket = None
        while self._idle:
            self._idle.pop().connection.close()


def _fault_of_change(file: InputFile, answer: Answer) -> Answer:
    """Return the answer, or if the file has changed meanwhile, that change, which may be the cause of a fault."""
    if isinstance(answer, FileFault):
        try:
            file.check_unchanged()
        except FileFault as other:
            return other
    return answer


def _environment() -> dict[str, str]:
    """Return the environment variables with which Python finds its modules.

    Others are left out, because the environment may contain secrets.
    """
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    paths = [path or os.getcwd() for path in sys.path]
    # no threads in a process that forks; Arrow's memory is returned to the system, and counted as it is used
    fixed = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return inherited | fixed | {"PYTHONPATH": os.pathsep.join(paths)}


def _receive(line: socket.socket) -> int:
    data = line.recv(_NUMBER.size, socket.MSG_WAITALL)
    if len(data) < _NUMBER.size:
        raise EOFError
    return int(_NUMBER.unpack(data)[0])


def serve_processes() -> None:
    """Serve requests until the line is closed: fork a process (0, with its end of a line), or report how one ended."""
    limit_memory()
    # from Python 3.12 on, fork warns of pyarrow's threads; they only wait for work, and a child gives them none
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        while True:
            request, descriptors, _, _ = socket.recv_fds(line, _NUMBER.size, 1)
            if len(request) < _NUMBER.size:
                return
            if not descriptors:
                line.sendall(_NUMBER.pack(os.waitpid(_NUMBER.unpack(request)[0], 0)[1]))
            elif (pid := os.fork()) == 0:
                line.close()
                _answer_requests(Connection(descriptors[0]))
                os._exit(0)
            else:
                os.close(descriptors[0])
                line.sendall(_NUMBER.pack(pid))


def limit_memory() -> None:
    """Limit the memory of this process, and let it leave no core dump when it is ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (FOOTER_MEMORY, FOOTER_MEMORY))


def _answer_requests(line: Connection) -> None:
    """Answer for one footer after another, until the line is closed or this process ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stderr.fileno())  # C++ may print bytes of the file when it ends a process
    with contextlib.suppress(EOFError):
        while True:
            request = line.recv_bytes()
            begin = request.index(b"\n") + 1
            names, asked = json.loads(request[:begin])
            for file_size, footer_size, fields in asked:
                footer = pa.py_buffer(request).slice(begin, footer_size)
                begin += footer_size
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # ends this process
                sources = {role: ColumnSource(*source) for role, source in fields.items()}
                line.send_bytes(json.dumps(_groups_or_fault(footer, file_size, Columns(*names), sources)).encode())
            signal.setitimer(signal.ITIMER_PROF, 0)


def _without_values(sources: Sources) -> dict[str, list[object]]:
    return {role: [source.names, source.field_id, source.has_value] for role, source in sources.items()}


def _groups_or_fault(footer: pa.Buffer, size: int, columns: Columns, sources: Sources) -> dict[str, object]:
    try:
        return {"groups": row_groups(footer, size, columns, sources)}
    except FileFault as fault:
        return {"fault": [fault.reason, fault.detail.encode(errors="backslashreplace").decode()]}
    except MemoryError:
        return {"fault": ["unreadable", f"the footer needs more than {FOOTER_MEMORY} bytes of memory to be read"]}


if __name__ == "__main__":
    serve_processes()

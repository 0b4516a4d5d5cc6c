"""Untrusted footers, read in processes of their own: a file that ends such a process costs itself, no scan.

The driver reads a footer's bytes and hands them over. Behind it stands a server (scanner.input.inspecting), which has
imported what is needed and forks, in some milliseconds, a process for as many footers as it survives.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing.connection import Connection
from typing import NamedTuple

import pyarrow as pa

from scanner.errors import FileFault, ScanFailed
from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup, read_footer
from scanner.storage.locations import REQUESTS_AT_ONCE, is_uri

_THREADS = 24  # threads that read footers of this machine's disks; as many more for a store, whose requests are slow
_PROCESSES = 2  # processes that look into footers: one may be busy with a slow footer
_TOGETHER = 32  # files, and bytes of their footers, that are handed over at once
_TOGETHER_BYTES = 2**20
_STARTS = 2  # attempts to start a process, each with a server
_NUMBER = struct.Struct("<q")  # process ids and wait statuses
_FAULTS_OF_CODE = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPROF)

Answer = list[RowGroup] | FileFault


class _Footer(NamedTuple):
    """The footer of a file of so many bytes. partitions: names of columns that stand beside the file."""

    size: int
    data: pa.Buffer
    partitions: tuple[str, ...]


class _Process(NamedTuple):
    """A forked process, and the line to it."""

    pid: int
    line: Connection

    def ask(self, columns: Columns, footers: Sequence[_Footer]) -> Iterator[Answer]:
        """One answer for each footer, in their order. Raises EOFError or OSError when the process ends over one."""
        sizes = [[footer.size, footer.data.size, footer.partitions] for footer in footers]
        head = json.dumps([list(columns), sizes]).encode()
        self.line.send_bytes(b"\n".join([head, b"".join(footer.data for footer in footers)]))
        for _ in footers:
            answer = json.loads(self.line.recv_bytes())
            yield FileFault(*answer["fault"]) if "fault" in answer else [RowGroup(*one) for one in answer["groups"]]


class Inspector:
    """Inspects files, from any number of threads. Processes are started when they are needed, and end with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the server and the line to it
        self._server: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._turns = threading.Semaphore(_PROCESSES)
        self._idle: list[_Process] = []
        self._closed = False

    def __enter__(self) -> "Inspector":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def inspect(self, file: InputFile, columns: Columns) -> list[RowGroup]:
        """Read a file's footer, and check that it agrees with itself and has the columns, of types that can be scanned.

        Raises:
            FileFault: the file cannot be scanned.
            ScanFailed: no process can be started.
        """
        (answer,) = self._inspect([file], columns)
        if isinstance(answer, FileFault):
            raise answer
        return answer

    def inspect_all(self, files: Sequence[InputFile], columns: Columns) -> Iterator[tuple[InputFile, Answer]]:
        """Inspect files, many at a time. Yields each file with its result, in their order.

        Raises:
            ScanFailed: no process can be started.
        """
        at_once = REQUESTS_AT_ONCE if any(is_uri(file.location) for file in files) else _THREADS
        together = min(_TOGETHER, -(-len(files) // at_once)) or 1
        parts = [files[begin : begin + together] for begin in range(0, len(files), together)]
        threads = ThreadPoolExecutor(at_once)
        try:
            for part, answers in zip(parts, threads.map(self._inspect, parts, repeat(columns)), strict=True):
                yield from zip(part, answers, strict=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # an interrupt does not wait for the rest

    def close(self) -> None:
        """End all processes, for good."""
        with self._lock:
            self._closed = True
            self._end()

    def _inspect(self, files: Sequence[InputFile], columns: Columns) -> list[Answer]:
        answers: list[Answer] = []
        footers: list[_Footer] = []
        places: list[int] = []  # the footers' places among the answers

        def look() -> None:
            for place, answer in zip(places, self._look_into(footers, columns), strict=True):
                answers[place] = _now(files[place], answer)
            footers.clear()
            places.clear()

        for file in files:
            answers.append([])
            try:
                if not is_uri(file.location):  # anything in a store can be opened, and then shows its size
                    file.check_unchanged()
                footers.append(_Footer(file.size, read_footer(file), tuple(file.values)))
                places.append(len(answers) - 1)
            except FileFault as fault:
                answers[-1] = _now(file, fault)
            if sum(footer.data.size for footer in footers) > _TOGETHER_BYTES:
                look()
        look()
        return answers

    def _look_into(self, footers: Sequence[_Footer], columns: Columns) -> list[Answer]:
        """Answers of a process. The footer at which it ended is given once more, alone, to a new process."""
        answers: list[Answer] = []
        with self._turns:
            while len(answers) < len(footers):
                process = self._idle.pop() if self._idle else self._fork()
                try:
                    answers.extend(process.ask(columns, footers[len(answers) :]))  # as many as the process answers
                except (EOFError, OSError):
                    process.line.close()
                    answers.append(self._look_again(footers[len(answers)], columns))
                else:
                    self._idle.append(process)
        return answers

    def _look_again(self, footer: _Footer, columns: Columns) -> Answer:
        process = self._fork()
        try:
            (answer,) = process.ask(columns, [footer])
        except (EOFError, OSError):
            process.line.close()
            ended = self._how_it_ended(process.pid)
            if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) in _FAULTS_OF_CODE:
                how = signal.Signals(os.WTERMSIG(ended)).name
                return FileFault("unreadable", f"the footer ends the process that reads it, by {how}")
            return FileFault("io_error", "the process that reads the footer was ended over it twice, from outside")
        self._idle.append(process)
        return answer

    def _fork(self) -> _Process:
        ours, theirs = socket.socketpair()
        with ours, theirs, self._lock:
            for _ in range(0 if self._closed else _STARTS):
                line = self._line or self._start()
                try:
                    socket.send_fds(line, [_NUMBER.pack(0)], [theirs.fileno()])
                    return _Process(_receive(line), Connection(ours.detach()))
                except (EOFError, OSError):
                    self._end()
        raise ScanFailed("the process that reads footers of the input cannot be started, or was ended")

    def _how_it_ended(self, pid: int) -> int:
        """Wait status of a process; 0 when its server is gone too."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            if self._line is not None:
                self._line.sendall(_NUMBER.pack(pid))
                return _receive(self._line)
        return 0

    def _start(self) -> socket.socket:
        self._line, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "scanner.input.inspecting", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the driver
                env=_environment(),
            )
        return self._line

    def _end(self) -> None:
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)  # its session: the server and what it forked
            self._server.wait()
        if self._line is not None:
            self._line.close()
        self._server = self._line = None
        while self._idle:
            self._idle.pop().line.close()


def _now(file: InputFile, answer: Answer) -> Answer:
    """The answer, or a change of the file meanwhile, which may have caused a fault."""
    if isinstance(answer, FileFault):
        try:
            file.check_unchanged()
        except FileFault as other:
            return other
    return answer


def _environment() -> dict[str, str]:
    """Environment in which Python finds its modules. Secrets, which may stand in the environment, are not handed on."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    paths = [path or os.getcwd() for path in sys.path]
    # no threads in a process that forks; memory that is given back, and counts as it is used
    fixed = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return kept | fixed | {"PYTHONPATH": os.pathsep.join(paths)}


def _receive(line: socket.socket) -> int:
    data = line.recv(_NUMBER.size, socket.MSG_WAITALL)
    if len(data) < _NUMBER.size:
        raise EOFError
    return int(_NUMBER.unpack(data)[0])

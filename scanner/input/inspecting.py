"""The processes behind scanner.input.inspector: a server that forks, and forked processes that read footers.

Run as `python -m scanner.input.inspecting FD`. It gets no path, no secret and no credentials: whoever takes one of
these processes over has nothing but the footers that it was sent.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import warnings
from multiprocessing.connection import Connection

import pyarrow as pa

from scanner.errors import FileFault
from scanner.input.columns import Columns
from scanner.input.footers import row_groups

CPU_SECONDS = 20.0
"""CPU seconds that a footer may take; the largest that is read takes one or two."""

MEMORY = 2 * 2**30
"""Bytes of memory that a footer may take; the largest takes a fraction."""

_NUMBER = struct.Struct("<q")


def main() -> None:
    """Serve requests until the line is closed: fork a process (0, with its end of a line), or report how one ended."""
    limit()
    # from Python 3.12 on, fork warns of pyarrow's threads: they wait for work, and a child gives them none
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
                _look(Connection(descriptors[0]))
                os._exit(0)
            else:
                os.close(descriptors[0])
                line.sendall(_NUMBER.pack(pid))


def limit() -> None:
    """Let this process take so much memory, and leave nothing of its own when it is ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def _look(line: Connection) -> None:
    """Answer for one footer after the other, until the line is closed or this process ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stderr.fileno())  # C++ may print bytes of the file when it ends a process
    with contextlib.suppress(EOFError):
        while True:
            request = line.recv_bytes()
            begin = request.index(b"\n") + 1
            columns, sizes = json.loads(request[:begin])
            for file_size, footer_size, partitions in sizes:
                footer = pa.py_buffer(request).slice(begin, footer_size)
                begin += footer_size
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # ends this process
                line.send_bytes(json.dumps(_answer(footer, file_size, Columns(*columns), partitions)).encode())
            signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(footer: pa.Buffer, size: int, columns: Columns, partitions: list[str]) -> dict[str, object]:
    try:
        return {"groups": row_groups(footer, size, columns, partitions)}
    except FileFault as fault:
        return {"fault": [fault.reason, fault.detail.encode(errors="backslashreplace").decode()]}
    except MemoryError:
        return {"fault": ["unreadable", f"the footer needs more than {MEMORY} bytes of memory to be read"]}


if __name__ == "__main__":
    main()

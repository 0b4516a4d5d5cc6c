"""Memory of a process: how much it holds, and a limit on how much it may take."""

import resource
import sys
from pathlib import Path

from scanner.errors import ScanFailed


def limit_memory(most: int, *, more: bool = False) -> None:
    """Let this process take so many bytes, or so many more than it has; beyond that: MemoryError, or its end (Linux).

    The kernel counts memory that is mapped for data, so mapped memory that is not touched yet (arenas, stacks, a
    device's address space) is added. A limit on all address space would count libraries and Ray's shared store.

    Raises:
        ScanFailed: it takes more already.
    """
    if sys.platform != "linux":
        return
    held, data = resident(), _pages(5)
    if more:
        most += held
    if held >= most:
        raise ScanFailed(
            f"it takes {held >> 20} MiB before its first document, and may take {most >> 20}; raise "
            "cluster.worker_memory_mb, or let fewer workers share a machine"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = most - held + data
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    return _pages(1)


def _pages(field: int) -> int:
    """Bytes of a field of /proc/self/statm (proc(5)); 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def peak_memory() -> int:
    """Most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""What processes that hold a text do first, so that it ends with them, and what is raised where they cannot answer."""

import ctypes
import resource
import signal
from pathlib import Path

from scanner.errors import InternalFault

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


class Unavailable(InternalFault):
    """No answer can be given now; its text is for the caller."""


def forbid_core_dumps() -> None:
    """Have the system write no image of this process, in which texts would stand, wherever it sends images."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_with_parent() -> None:
    """Have the system end this process with the one that began it, else it would hold a text, or keys, after that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_before_server() -> None:
    """Have the system end this process first, the largest of several, where memory ends."""
    Path("/proc/self/oom_score_adj").write_text("1000")

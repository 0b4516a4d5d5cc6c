"""What processes that hold a text do first, so that it ends with them, and what is raised where they cannot answer."""

import ctypes
import resource
import signal
from pathlib import Path

from scanner.errors import InternalFault

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


class Unavailable(InternalFault):
    """No answer can be given now. Its text is for the caller."""


def forbid_core_dumps() -> None:
    """Forbid the system to write an image of this process, in which texts would stand, wherever it sends images."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine_process() -> None:
    """Have the system end this process with the server, or earlier where memory ends, and write no image of it.

    Else it would hold a text, or keys, after the server.
    """
    Path("/proc/self/oom_score_adj").write_text("1000")  # first: root alone may, once the process forbids its image
    forbid_core_dumps()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

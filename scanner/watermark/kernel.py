"""Kernels: functions that `scanner.watermark.compiler` compiles at their first call, with a cache on disk.

numba takes most of a second to import, and most commands call no kernel: a kernel imports it when it is first called.
Python can run them too, for a single short text (`interpreted`).
"""

import contextlib
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

Inline = Literal["never", "always"]

PACKAGE = Path(__file__).parents[1]
"""Folder of the package whose kernels lie in the cache by their place in it."""


@functools.cache
def cache_folder() -> str:
    """Return NUMBA_CACHE_DIR if set; else a folder beside this file if that can be written; else the user's cache.

    A user without a home has no cache: the folder is then one that cannot be created, not one in the current folder.
    """
    pycache = Path(__file__).parent / "__pycache__"
    if folder_name := os.environ.get("NUMBA_CACHE_DIR"):
        folder = Path(folder_name)
    elif os.access(pycache.parent, os.W_OK):
        folder = pycache
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(cache if os.path.isabs(cache) else os.devnull) / "brickscan"
    return str(folder / f"kernels-{sys.implementation.cache_tag}")


def compiled_before() -> bool:
    """Return whether this machine's disk holds kernels. If not, a first use compiles for a while.

    If so, it only compiles what changed since.
    """
    return any(Path(cache_folder()).rglob("*.nbi"))


def compiled_count() -> int:
    """Return how many compiled kernels this machine's disk holds."""
    return sum(1 for _ in Path(cache_folder()).rglob("*.nbc"))


def share_steps(*steps: Callable[[], object]) -> None:
    """Run steps that compile kernels; of several processes, each begins with one that no other is at.

    For example, two workers begin on a new machine: one compiles scores, the other normal forms and then decoys. A
    kernel that both need is compiled once, and the process that comes second loads it.
    """
    postponed = []
    for number, step in enumerate(steps):
        with contextlib.ExitStack() as locks:
            try:
                Path(cache_folder()).mkdir(parents=True, exist_ok=True)
                lock = locks.enter_context((Path(cache_folder()) / f"step-{number}.lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                postponed.append(step)
                continue
            except OSError:  # without a cache, or locks, each process compiles all for itself
                pass
            step()
    for step in postponed:
        step()


class Kernel:
    """A function that is compiled at its first call. Pickles as its name, as functions do."""

    are_interpreted: ClassVar[bool] = False

    def __init__(self, function: Callable[..., Any], inline: Inline) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.inline = function, inline

    @functools.cached_property
    def compiled(self) -> Any:  # noqa: ANN401 - numba has no types
        """The function as numba compiles it for each kind of arguments."""
        from scanner.watermark.compiler import compile_function

        return compile_function(self.py_func, self.inline)

    @property
    def __call__(self) -> Callable[..., Any]:
        """What a call runs: numba's function, or Python's where kernels are interpreted."""
        return self.py_func if Kernel.are_interpreted else self.compiled

    @property
    def _numba_type_(self) -> object:
        """The type that numba asks of a name in a kernel; with it, numba calls the compiled function."""
        return self.compiled._numba_type_

    @property
    def targetoptions(self) -> object:
        """The options that numba asks for before it puts the body of `py_func` in place of a call."""
        return self.compiled.targetoptions

    def __reduce__(self) -> str:
        return self.py_func.__qualname__


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Let Python run the kernels of this process meanwhile, those that other threads call too.

    One short text takes a second so, where compiling takes most of a minute. The numbers are the same: numpy's whole
    numbers of few bits wrap as numba's do.
    """
    import numpy as np  # late: most commands call no kernel

    Kernel.are_interpreted = True
    try:
        with np.errstate(over="ignore"):
            yield
    finally:
        Kernel.are_interpreted = False


def kernel(function: Function) -> Function:
    """Compile a function for this machine at the first call; it runs without Python's global lock."""
    return cast(Function, Kernel(function, "never"))


def inlined(function: Function) -> Function:
    """Compile as `kernel` does, but put the body into every kernel that calls it.

    Use it for functions too large for the compiler to inline.
    """
    return cast(Function, Kernel(function, "always"))

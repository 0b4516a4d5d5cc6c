"""Define kernels: functions that `scanner.watermark.compiler` compiles at their first call, with a cache on disk.

Importing numba takes most of a second, and most commands call no kernel. So a kernel imports it at its first call.
Python can also run kernels, for a single short text (`interpreted`).
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
"""Folder of the package. The cache stores its kernels by their place in it."""


@functools.cache
def cache_folder() -> str:
    """Return NUMBA_CACHE_DIR if set. Else a folder beside this file if that can be written, else the user's cache.

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

    If so, it only compiles kernels that changed since.
    """
    return any(Path(cache_folder()).rglob("*.nbi"))


def compiled_count() -> int:
    """Return the number of compiled kernels on this machine's disk."""
    return sum(1 for _ in Path(cache_folder()).rglob("*.nbc"))


def share_steps(*steps: Callable[[], object]) -> None:
    """Run steps that compile kernels. Of several processes, each begins with a step that no other process is at.

    For example, two workers begin on a new machine: one compiles scores, the other normal forms and then decoys. A
    kernel that both need is compiled once, and the second process loads it.
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
            except OSError:  # without a cache, or without locks, each process compiles everything for itself
                pass
            step()
    for step in postponed:
        step()


class Kernel:
    """A function that is compiled at its first call. It pickles as its name, as functions do."""

    are_interpreted: ClassVar[bool] = False

    def __init__(self, function: Callable[..., Any], inline: Inline) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.inline = function, inline

    @functools.cached_property
    def compiled(self) -> Any:  # noqa: ANN401 - numba has no types
        """Return the function as numba compiles it for each kind of arguments."""
        from scanner.watermark.compiler import compile_function

        return compile_function(self.py_func, self.inline)

    @property
    def __call__(self) -> Callable[..., Any]:
        """Return the function that a call runs: numba's, or Python's if kernels are interpreted."""
        return self.py_func if Kernel.are_interpreted else self.compiled

    @property
    def _numba_type_(self) -> object:
        """Return the type that numba asks of a name in a kernel. With it, numba calls the compiled function."""
        return self.compiled._numba_type_

    @property
    def targetoptions(self) -> object:
        """Return the options that numba asks for before it inlines the body of `py_func` in place of a call."""
        return self.compiled.targetoptions

    def __reduce__(self) -> str:
        return self.py_func.__qualname__


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Let Python run the kernels of this process for now, including those that other threads call.

    One short text then takes a second, while compiling takes most of a minute. The numbers are the same, because
    numpy's integers of few bits wrap as numba's do.
    """
    import numpy as np  # late: most commands call no kernel

    Kernel.are_interpreted = True
    try:
        with np.errstate(over="ignore"):  # hashes and ciphers wrap on purpose
            yield
    finally:
        Kernel.are_interpreted = False


def kernel(function: Function) -> Function:
    """Compile a function for this machine at the first call. It runs without Python's global lock."""
    return cast(Function, Kernel(function, "never"))


def inlined(function: Function) -> Function:
    """Compile as `kernel` does, but put the body into every kernel that calls it.

    Use it for functions too large for the compiler to inline.
    """
    return cast(Function, Kernel(function, "always"))

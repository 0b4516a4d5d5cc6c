"""Kernels: functions that `scanner.watermark.compiler` compiles at their first call, with a cache on disk.

numba takes most of a second to import, and most commands call no kernel: a kernel imports it when it is first called.
"""

import functools
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

Inline = Literal["never", "always"]

PACKAGE = Path(__file__).parents[1]
"""Folder of the package whose kernels lie in the cache by their place in it."""


@functools.cache
def cache_folder() -> str:
    """NUMBA_CACHE_DIR where it is set; else beside this file, where that can be written; else in the user's cache.

    A user without a home has no cache: the folder is one that nobody can make, not one in the current folder.
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
    """Whether this machine's disk holds kernels. If not, a first use compiles for a while; else what changed since."""
    return any(Path(cache_folder()).rglob("*.nbi"))


def compiled_count() -> int:
    """Return how many compiled kernels this machine's disk holds."""
    return sum(1 for _ in Path(cache_folder()).rglob("*.nbc"))


class Kernel:
    """A function that is compiled at its first call. Pickles as its name, as functions do."""

    def __init__(self, function: Callable[..., Any], inline: Inline) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.inline = function, inline

    @functools.cached_property
    def compiled(self) -> Any:  # noqa: ANN401 - numba has no types
        """What numba compiles for each kind of arguments."""
        from scanner.watermark.compiler import compile_function

        return compile_function(self.py_func, self.inline)

    __call__ = property(operator.attrgetter("compiled"))  # each call is numba's, without a step of Python's before it

    @property
    def _numba_type_(self) -> object:
        """What numba asks of a name that stands in a kernel; with it, it calls the compiled one."""
        return self.compiled._numba_type_

    @property
    def targetoptions(self) -> object:
        """What numba asks before it puts the body of `py_func` in place of a call."""
        return self.compiled.targetoptions

    def __reduce__(self) -> str:
        return self.py_func.__qualname__


def kernel(function: Function) -> Function:
    """Compile for this machine at the first call; runs without Python's global lock."""
    return cast(Function, Kernel(function, "never"))


def inlined(function: Function) -> Function:
    """As `kernel`, but its body stands in every kernel that calls it: what is too large for the compiler to inline."""
    return cast(Function, Kernel(function, "always"))

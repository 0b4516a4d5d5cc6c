"""Compiling kernels: numba, with a cache on disk that any change of any kernel file makes void.

numba's own cache looks only at the file of the function that is called. After an upgrade that changed a cipher alone it
would go on with old ciphers inside new scores, so the cache lies in a folder named by a digest of this whole package.
Kernels lie there by their place in the package: numba's own folders are named by the path of the sources, which is a
new one for each upload of `ray job submit`.
When several processes need a kernel at the same time, as workers of a first scan do, one compiles it and the others
wait.
"""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import numba
from numba.core import config as _config
from numba.core.caching import UserProvidedCacheLocator
from numba.core.codegen import get_host_cpu_features
from numba.core.compiler_lock import global_compiler_lock

from scanner.watermark.kernel import PACKAGE, cache_folder

config: Any = _config  # its settings are not in the type stubs


def _features() -> str:
    """Features of this machine's processor, and vectors of 512 bits wherever it has them: LLVM prefers those of 256.

    Ciphers side by side gain a quarter by the wide ones, and no kernel lost by them (Xeon of family 6, model 167).
    """
    features = str(get_host_cpu_features())
    return f"{features},-prefer-256-bit" if "+avx512f" in features.split(",") else features


if config.CPU_FEATURES is None:
    config.CPU_FEATURES = _features()


LONGEST_WAIT = 60.0
"""Most seconds to wait for another process that compiles a kernel; the slowest kernel takes some."""

_one_by_one: set[str] = set()
"""Kernels whose lock this process holds; the compiler's own lock guards it."""


def _wait_for(lock: TextIO) -> None:
    """Lock a file; raises TimeoutError, an OSError, when whoever holds it was stopped and will not let it go."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
    raise TimeoutError(f"{lock.name} was held for {LONGEST_WAIT} s")


@contextlib.contextmanager
def _one_process(name: str) -> Iterator[None]:
    """Let no other process compile a kernel meanwhile; go on where that cannot be, as on a filesystem without locks.

    The compiler's lock comes first, as it does where one kernel has another compiled that it calls: threads that took
    the two in different orders would wait for each other. Processes do not, since calls go in no circle.
    """
    with global_compiler_lock, contextlib.ExitStack() as locks:
        if name not in _one_by_one:
            with contextlib.suppress(OSError):
                Path(cache_folder()).mkdir(parents=True, exist_ok=True)
                lock = locks.enter_context((Path(cache_folder()) / f"{name}.lock").open("w"))
                _wait_for(lock)
            _one_by_one.add(name)
            locks.callback(_one_by_one.remove, name)
        yield


class ByPlaceInPackage(UserProvidedCacheLocator):  # type: ignore[misc]
    """The folder of a kernel within the cache: the same wherever this package lies."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Name of the folder of a source file's kernels: its modules' names, or numba's own for other sources."""
        folder = Path(py_file).absolute().parent
        if folder.is_relative_to(PACKAGE.absolute()):
            return ".".join(folder.relative_to(PACKAGE.absolute().parent).parts)
        return str(super().get_suitable_cache_subpath(py_file))


_LOCATORS = f"{__name__}.{ByPlaceInPackage.__name__},UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator"
"""Kinds of places for the cache, of which numba takes the first that can be written."""


def compile_function(function: Callable[..., Any], inline: Literal["never", "always"]) -> Callable[..., Any]:
    """Compile for this machine at the first call, once among all processes that share the cache."""
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = cache_folder(), _LOCATORS
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, inline=inline)(function)
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
    # looks into the cache first: once another process has compiled, it is found there
    find_or_compile, name = compiled.compile, f"{function.__module__}.{function.__qualname__}"

    def compile_once(signature: object) -> object:
        with _one_process(name):
            return find_or_compile(signature)

    compiled.compile = compile_once
    return cast(Callable[..., Any], compiled)

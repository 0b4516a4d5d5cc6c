"""Compile kernels with numba. The cache on disk returns a kernel only if nothing that it is made of has changed.

numba's own cache looks only at the file of the called function. After an upgrade that changed only a cipher, it would
continue to use old ciphers inside new scores. So this cache knows a kernel by a digest of its code, of the constants
that it reads, and of the kernels that it calls. A change invalidates the kernels that it reaches, and no others.

The cache stores kernels by their place in the package. numba's own folders are named by the path of the sources, which
is a new one for each upload of `ray job submit`.

When several processes need a kernel at the same time, like workers of a first scan, one compiles it and the others
wait. numba names the files of a kernel's types by a count, so two processes that save two of them at once would mix
them up.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import secrets
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TextIO, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core.bytecode import FunctionIdentity

from scanner.watermark.kernel import PACKAGE, Inline, Kernel, cache_folder

config: Any = numba.config  # type: ignore[attr-defined] # it is not in the type stubs


def _features() -> str:
    """Return this machine's processor features, with 512-bit vectors if it has them.

    By default LLVM prefers 256 bits.
    """
    # Wide vectors make ciphers side by side a quarter faster, and no kernel slower (Xeon of family 6, model 167).
    features = str(llvm.get_host_cpu_features().flatten())
    return f"{features},-prefer-256-bit" if "+avx512f" in features.split(",") else features


if config.CPU_FEATURES is None:
    config.CPU_FEATURES = _features()


# The one private part of numba here, pinned by its version and by a test. numba numbers functions of one name, such as
# those inside of sort and of argsort, by a count that begins anew in each process, and links kernels by it. It would
# confuse them with kernels that other processes compiled. numba has no public option for it.
FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))

LONGEST_WAIT = 60.0
"""Largest number of seconds to wait for another process that compiles a kernel. The slowest kernel takes some."""

_one_thread = threading.RLock()
_one_by_one: set[str] = set()
"""Kernels whose lock this process holds. `_one_thread` guards this set."""


def _wait_for(lock: TextIO) -> None:
    """Lock a file.

    Raises:
        TimeoutError: an OSError. The process that holds the lock was stopped and will not release it.
    """
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
    raise TimeoutError(f"{lock.name} was held for {LONGEST_WAIT} s")


@contextlib.contextmanager
def _one_process(name: str) -> Iterator[None]:
    """Keep other processes from compiling a kernel for now. Continue if locks fail, as on some filesystems."""
    # One thread compiles at a time, with all kernels that its kernel calls: threads that locked files in different
    # orders would wait for each other. Processes do not, because no kernel calls itself through others.
    with _one_thread, contextlib.ExitStack() as locks:
        if name not in _one_by_one:
            with contextlib.suppress(OSError):
                lock = locks.enter_context((Path(cache_folder()) / f"{name}.lock").open("w"))
                _wait_for(lock)
            _one_by_one.add(name)
            locks.callback(_one_by_one.remove, name)
        yield


class PlaceInCache:
    """The place of a kernel in the cache, for numba's cache locators: in the folder of its modules, by its digest.

    The folder is the same wherever this package is installed.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._digest, self._folder = digest_of(function), folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Self:
        """Return the place of a function of a source file."""
        folder, package = Path(file).absolute().parent, PACKAGE.absolute()
        if folder.is_relative_to(package):
            name = ".".join(folder.relative_to(package.parent).parts)
        else:
            name = f"{folder.name}_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        return cls(function, Path(cache_folder()) / name)

    def get_cache_path(self) -> str:
        """Return the folder of the cached kernel's files."""
        return str(self._folder)

    def ensure_cache_path(self) -> None:
        """Create the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        """Return the digest of all that the cached kernel was made of."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return the part of the cached kernel's file names that distinguishes it from others of its name."""
        return self._digest[:16]


@functools.cache
def digest_of(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of everything that decides the compiled kernel, except numba and the machine: 64 hex digits.

    Raises:
        TypeError: the function reads a global of a kind that this digest does not know.
    """
    digest = hashlib.sha256(repr(_plain(function.__code__, function.__doc__)).encode())
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in (*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()):
        digest.update(_content(value))
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        # a function that calls itself already has its code in the digest
        itself = isinstance(value, Kernel) and value.py_func is function
        digest.update(name.encode() + (b" itself" if itself else _content(value)))
    return digest.hexdigest()


def _content(value: object) -> bytes:
    """Return the content of a global that a kernel reads, as bytes that differ if it differs."""
    if isinstance(value, Kernel):
        # with its name, by which numba imports it when it loads a kernel that calls it
        name = f"{value.py_func.__module__}.{value.py_func.__qualname__}"
        return f"kernel {name} {value.inline} {digest_of(value.py_func)}\n".encode()
    if isinstance(value, np.ndarray | np.generic):
        return f"array {value.dtype.str} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}\n".encode()
    if isinstance(value, tuple):
        return b"tuple %d\n" % len(value) + b"".join(map(_content, value))
    if isinstance(value, types.ModuleType | type) and _full_name(value).partition(".")[0] in _LIBRARIES:
        return f"name {_full_name(value)}\n".encode()
    if value is None or isinstance(value, bool | int | float | str):
        return f"{type(value).__name__} {value!r}\n".encode()
    raise TypeError(f"a kernel reads {value!r}; it may only read numbers, strings, tuples, arrays, types and kernels")


_LIBRARIES = ("builtins", "math", "numpy")
"""Packages that kernels may read by name, because numba knows their functions."""


def _full_name(value: types.ModuleType | type) -> str:
    return value.__name__ if isinstance(value, types.ModuleType) else f"{value.__module__}.{value.__qualname__}"


def _names(code: types.CodeType) -> set[str]:
    """Return the names that code may read from its module."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _plain(part: object, docstring: str | None = None) -> object:
    """Return code, or a constant in it, as values for a repr without docstrings, file names and line numbers."""
    if isinstance(part, types.CodeType):
        consts = part.co_consts
        if docstring is not None and consts[0] == docstring:
            consts = consts[1:]
        return (
            *(part.co_code, part.co_exceptiontable, part.co_names, part.co_varnames, part.co_freevars),
            *(part.co_argcount, part.co_posonlyargcount, part.co_kwonlyargcount, part.co_flags),
            *map(_plain, consts),
        )
    return sorted(map(repr, part)) if isinstance(part, frozenset) else (type(part).__name__, repr(part))


def _can_write(folder: Path) -> bool:
    """Return whether files can be created in a folder. A missing folder is created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _forget_compiled(function: Callable[..., Any]) -> bool:
    """Delete a kernel's files from the cache. Return whether there were any."""
    place = PlaceInCache.from_function(function, function.__code__.co_filename)
    files = [*Path(place.get_cache_path()).glob(f"*{place.get_disambiguator()}*.nb?")]
    for file in files:
        file.unlink(missing_ok=True)
    return bool(files)


def compile_function(function: Callable[..., Any], inline: Inline) -> Callable[..., Any]:
    """Compile a function for this machine at the first call, once among all processes that share the cache.

    If the cache's folder cannot be written, each process compiles for itself.
    """
    locator_classes = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{PlaceInCache.__name__}"
    try:
        dispatcher: Any = numba.njit(cache=_can_write(Path(cache_folder())), nogil=True, inline=inline)(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = locator_classes
    # looks into the cache first: if another process has compiled it, it is found there
    find_or_compile, name = dispatcher.compile, f"{function.__module__}.{function.__qualname__}"

    def compile_once(signature: object) -> object:
        with _one_process(name):
            try:
                return find_or_compile(signature)
            except (AttributeError, ImportError):  # the cache's list uses an old name of an argument type
                if not _forget_compiled(function):
                    raise
                return find_or_compile(signature)

    dispatcher.compile = compile_once
    return cast(Callable[..., Any], dispatcher)

"""Compiling kernels: numba, with a cache on disk that gives a kernel only while all that it is made of is the same.

numba's own cache looks only at the file of the function that is called. After an upgrade that changed a cipher alone it
would go on with old ciphers inside new scores. So the cache knows a kernel by a digest of its code, of the constants
that it reads, and of the kernels that it calls: a change voids the kernels that it reaches, and no others.
Kernels lie there by their place in the package: numba's own folders are named by the path of the sources, which is a
new one for each upload of `ray job submit`.
When several processes need a kernel at the same time, as workers of a first scan do, one compiles it and the others
wait.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import secrets
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import config as _config
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import UserProvidedCacheLocator, UserWideCacheLocator
from numba.core.codegen import get_host_cpu_features
from numba.core.compiler_lock import global_compiler_lock

from scanner.watermark.kernel import PACKAGE, Inline, Kernel, cache_folder

config: Any = _config  # its settings are not in the type stubs


def _load_array_functions() -> None:
    """Load numba's array functions without scipy's linear algebra: an eighth of a second, and 17 MiB of a process.

    They import it to know that it is there, and whoever compiles `numpy.cov`, which needs it, imports it then.
    """
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment] # an import of it fails meanwhile
    try:
        from numba.np import arraymath
    finally:
        del sys.modules["scipy.linalg"]
    arraymath._HAVE_BLAS = True


_load_array_functions()


def _features() -> str:
    """Features of this machine's processor, and vectors of 512 bits wherever it has them: LLVM prefers those of 256."""
    # Ciphers side by side gain a quarter by the wide ones, and no kernel lost by them (Xeon of family 6, model 167).
    features = str(get_host_cpu_features())
    return f"{features},-prefer-256-bit" if "+avx512f" in features.split(",") else features


if config.CPU_FEATURES is None:
    config.CPU_FEATURES = _features()


# numba tells functions of one name, as those inside of sort and of argsort, apart by a count that begins anew in each
# process, and links kernels by it: with kernels that other processes compiled, one would be taken for the other
FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))

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
    """Let no other process compile a kernel meanwhile; go on where that cannot be, as on a filesystem without locks."""
    # The compiler's lock comes first, as where one kernel has another compiled that it calls: threads that took the two
    # in different orders would wait for each other. Processes do not, since calls go in no circle.
    with global_compiler_lock, contextlib.ExitStack() as locks:
        if name not in _one_by_one:
            with contextlib.suppress(OSError):
                Path(cache_folder()).mkdir(parents=True, exist_ok=True)
                lock = locks.enter_context((Path(cache_folder()) / f"{name}.lock").open("w"))
                _wait_for(lock)
            _one_by_one.add(name)
            locks.callback(_one_by_one.remove, name)
        yield


class _ByDigest:
    """What numba asks of a place in a cache: here it goes by what a kernel is made of, not by its file."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[call-arg] # numba's, beside this in every subclass
        self._digest = digest_of(py_func)

    def get_source_stamp(self) -> str:
        """What a cached kernel was made of."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Part of a cached kernel's file name."""
        return self._digest[:16]


class InHome(_ByDigest, UserWideCacheLocator):  # type: ignore[misc]
    """A place where the cache's folder cannot be written."""

    def ensure_cache_path(self) -> None:
        """Raise FileNotFoundError where the user has no home: numba would make a folder `~` in the current one."""
        if not os.path.isabs(self.get_cache_path()):
            raise FileNotFoundError("the user has no home")
        super().ensure_cache_path()


class ByPlaceInPackage(_ByDigest, UserProvidedCacheLocator):  # type: ignore[misc]
    """The folder of a kernel within the cache: the same wherever this package lies."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Name of the folder of a source file's kernels: its modules' names, or numba's own for other sources."""
        folder = Path(py_file).absolute().parent
        if folder.is_relative_to(PACKAGE.absolute()):
            return ".".join(folder.relative_to(PACKAGE.absolute().parent).parts)
        return str(super().get_suitable_cache_subpath(py_file))


_LOCATORS = ",".join(f"{__name__}.{place.__name__}" for place in (ByPlaceInPackage, InHome))
"""Kinds of places for the cache, of which numba takes the first that can be written."""


@functools.cache
def digest_of(function: Callable[..., Any]) -> str:
    """SHA-256 of all that decides what a kernel compiles to, but for numba and the machine, as 64 hexadecimal digits.

    Raises:
        TypeError: the function reads a global of a kind that this digest does not know.
    """
    made_of = hashlib.sha256(repr(_plain(function.__code__, function.__doc__)).encode())
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in (*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()):
        made_of.update(_content(value))
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        # one that calls itself has its code in the digest already
        itself = isinstance(value, Kernel) and value.py_func is function
        made_of.update(name.encode() + (b" itself" if itself else _content(value)))
    return made_of.hexdigest()


def _content(value: object) -> bytes:
    """What a kernel reads, as bytes that differ where it differs."""
    if isinstance(value, Kernel):
        return f"kernel {value.inline} {digest_of(value.py_func)}\n".encode()
    if isinstance(value, np.ndarray | np.generic):
        return f"array {value.dtype.str} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}\n".encode()
    if isinstance(value, tuple):
        return b"tuple %d\n" % len(value) + b"".join(map(_content, value))
    if isinstance(value, types.ModuleType | type) and _full_name(value).partition(".")[0] in _LIBRARIES:
        return f"name {_full_name(value)}\n".encode()
    if value is None or isinstance(value, bool | int | float | str):
        return f"{type(value).__name__} {value!r}\n".encode()
    raise TypeError(f"a kernel reads {value!r}; it may read numbers, strings, tuples, arrays, types and kernels")


_LIBRARIES = ("builtins", "math", "numpy")
"""Packages that kernels may read by name: numba knows what their functions compile to."""


def _full_name(value: types.ModuleType | type) -> str:
    return value.__name__ if isinstance(value, types.ModuleType) else f"{value.__module__}.{value.__qualname__}"


def _names(code: types.CodeType) -> set[str]:
    """Names that code may read from its module."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _plain(part: object, docstring: str | None = None) -> object:
    """Code, or a constant in it, as values whose repr tells all of it but for docstrings, names of files and lines."""
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


def _keep_as_bitcode(library: Any) -> None:  # noqa: ANN401 - numba has no types
    """Keep the module of a kernel from the cache as bytes, which take a tenth of its memory: only compilers read it."""
    bitcode, linked = library._shared_module.as_bitcode(), library._get_module_for_linking
    library._shared_module = None

    def parse_and_link() -> object:
        if library._shared_module is None:
            library._shared_module = llvm.parse_bitcode(bitcode)
        return linked()

    library._get_module_for_linking = parse_and_link


def compile_function(function: Callable[..., Any], inline: Inline) -> Callable[..., Any]:
    """Compile for this machine at the first call, once among all processes that share the cache.

    Where no folder of a cache can be written, each process compiles for itself.
    """
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = cache_folder(), _LOCATORS
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, inline=inline)(function)
    except RuntimeError:  # numba's word for: none of _LOCATORS can be written
        compiled = numba.njit(nogil=True, inline=inline)(function)
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
    load_overload = compiled._cache.load_overload

    def load(signature: object, context: object) -> object:
        try:
            loaded = load_overload(signature, context)
        except ImportError:  # a kernel that it calls stood in a module that is gone since: its code is the same
            return None
        if loaded is not None:
            _keep_as_bitcode(loaded.library)
        return loaded

    compiled._cache.load_overload = load
    # looks into the cache first: once another process has compiled, it is found there
    find_or_compile, name = compiled.compile, f"{function.__module__}.{function.__qualname__}"

    def compile_once(signature: object) -> object:
        with _one_process(name):
            return find_or_compile(signature)

    compiled.compile = compile_once
    return cast(Callable[..., Any], compiled)

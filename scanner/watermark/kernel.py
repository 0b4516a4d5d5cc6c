"""Compiling kernels: numba, with a cache on disk that any change of any kernel file makes void.

numba's own cache looks only at the file of the function that is called. After an upgrade that changed a cipher alone it
would go on with old ciphers inside new scores, so the cache lies in a folder named by a digest of this whole package.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numba
from numba.core import config as _config

config: Any = _config  # its settings are not in the type stubs
Function = TypeVar("Function", bound=Callable[..., Any])


def _digest() -> str:
    sources = hashlib.sha256()
    package = Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        sources.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return sources.hexdigest()[:16]


def _cache_folder() -> str:
    """NUMBA_CACHE_DIR where it is set; else beside the sources, where that can be written; else in the user's cache."""
    if config.CACHE_DIR:
        place = Path(config.CACHE_DIR)
    elif os.access(Path(__file__).parent, os.W_OK):
        place = Path(__file__).parent / "__pycache__"
    else:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brickscan"
    return str(place / f"kernels-{_digest()}")


_FOLDER = _cache_folder()


def compiled_before() -> bool:
    """Whether kernels of these sources lie compiled on this machine's disk; else a first use compiles for a while."""
    return any(Path(_FOLDER).rglob("*.nbi"))


def _compile(function: Function, inline: Literal["never", "always"]) -> Function:
    before, config.CACHE_DIR = config.CACHE_DIR, _FOLDER
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, inline=inline)(function)
    finally:
        config.CACHE_DIR = before
    return cast(Function, compiled)


def kernel(function: Function) -> Function:
    """Compile for this machine at the first call; runs without Python's global lock."""
    return _compile(function, "never")


def inlined(function: Function) -> Function:
    """As `kernel`, but its body stands in every kernel that calls it: what is too large for the compiler to inline."""
    return _compile(function, "always")

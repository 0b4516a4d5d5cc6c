"""Read and make the secrets of master keys. They are given by reference, and no message contains a byte of them."""

import contextlib
import os
import re
import stat
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from scanner.errors import SecretError
from scanner.storage.locations import is_uri, sync_to_disk

SECRET_SIZES = range(16, 65)
"""Allowed lengths of a secret in bytes, unless its format has others."""

NEW_BYTES = 32

_MOST_READ = 2048
"""Number of bytes that are read of a file at most. It is more than the text of any secret has."""

_TOO_OPEN = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


def secret_path(reference: str, base: Path | str) -> Path | None:
    """Return the file that a `file:` reference names (a relative path starts at `base`), or None for `env:`.

    Raises:
        SecretError: the path is relative, and `base` is a URI. Secrets are not fetched from another machine.
    """
    kind, _, path = reference.partition(":")
    if kind == "file" and is_uri(base) and not Path(path).is_absolute():
        raise SecretError(
            f"secret {reference}: a relative path cannot start at {base}; in keys.toml, give the absolute path of a "
            "mounted file, or env:NAME"
        )
    return Path(base) / path if kind == "file" else None


_DRAW = "Draw one with `brickscan keys new`, or with `openssl rand -hex 32`"


def read_secret(
    reference: str,
    base: Path | str,
    sizes: range = SECRET_SIZES,
    *,
    guessable: bool = False,
    if_guessed: str | None = None,
) -> bytes:
    """Read the key bytes behind a reference, `file:PATH` or `env:NAME`. Both contain hexadecimal text.

    Args:
        reference: reference to the secret.
        base: folder that a relative path starts from.
        sizes: allowed numbers of bytes.
        guessable: whether the secret may be easy to guess, as the published keys of other stacks are.
        if_guessed: advice for a secret that must not be, but is, easy to guess. None: draw another.

    Raises:
        SecretError: there is nothing, it is no secret, it follows a pattern, or other users could read or change it.
            The message names only the place.
    """
    path, advice = secret_path(reference, base), None if guessable else if_guessed or _DRAW
    if path is not None:
        return _decode(_read_file(path), f"secret file {path}", sizes, advice)
    name = reference.removeprefix("env:")
    if name not in os.environ:
        raise SecretError(
            f"environment variable {name} is not set; it should contain a key's secret as hexadecimal text"
        )
    return _decode(os.environb[os.fsencode(name)], f"environment variable {name}", sizes, advice)


def read_private_file(path: Path) -> bytes:
    """Read a private file of fewer than 2,048 bytes, such as a key as PEM.

    Raises:
        SecretError: there is no file, it is too long, or other users can read or change it. The message names only the
            place.
    """
    raw = _read_file(path)
    if len(raw) >= _MOST_READ:
        raise SecretError(f"secret file {path}: is too long (fewer than {_MOST_READ} bytes are read)")
    return raw


def new_secret_file(path: Path, draw: Callable[[bytes], bytes] = bytes) -> bytes:
    """Make a secret from 32 bytes of the operating system's generator, and write it to a new file.

    The file is never overwritten. Its mode is 0600, and it is on the disk when this returns. New folders above it get
    mode 0700.

    draw: makes the secret from the 32 bytes. By default, they are the secret.

    Raises:
        SecretError: the file already exists or cannot be made. No file is left behind.
    """
    secret = draw(os.urandom(NEW_BYTES))
    new_private_file(path, secret.hex().encode() + b"\n")
    return secret


def new_private_file(path: Path, content: bytes) -> None:
    """Make a new file for its owner only, mode 0600. It is on the disk when this returns.

    Raises:
        SecretError: as for `new_secret_file`.
    """
    try:
        _make_private_folders(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except (OSError, ValueError) as error:
        raise SecretError(f"secret file {path}: cannot be created ({_why(error)})") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        sync_to_disk(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise SecretError(f"secret file {path}: cannot be written ({_why(error)})") from None


def _make_private_folders(folder: Path) -> None:
    if not folder.is_dir():
        _make_private_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _read_file(path: Path) -> bytes:
    """Read the file's first bytes, more than any secret has.

    Permissions are checked on the opened file, after links.
    """
    where = f"secret file {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        advice = "; write it, or restore it from a copy" if isinstance(error, FileNotFoundError) else ""
        raise SecretError(f"{where}: cannot be read ({_why(error)}){advice}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SecretError(f"{where}: is not a regular file; give the path of one")
        if mode & _TOO_OPEN:
            raise SecretError(
                f"{where}: has mode {stat.S_IMODE(mode):04o}; others must not read it, and its group and others must "
                "not write it: chmod 600 it, and replace the secret if it may have been read"
            )
        return os.read(descriptor, _MOST_READ)
    except OSError as error:
        raise SecretError(f"{where}: cannot be read ({_why(error)})") from None
    finally:
        os.close(descriptor)


def _decode(raw: bytes, where: str, sizes: range, if_guessed: str | None) -> bytes:
    """Return the key bytes of hexadecimal text.

    Args:
        raw: the text.
        where: name of its place, for errors.
        sizes: allowed numbers of bytes.
        if_guessed: advice if it is easy to guess. None: it may be.

    Raises:
        SecretError: it is not hexadecimal, has another size, or is easy to guess.
    """
    digits = raw.strip()
    if not re.fullmatch(rb"(?:[0-9a-fA-F]{2})+", digits):
        raise SecretError(f"{where}: is not hexadecimal text (an even number of digits 0-9 a-f on one line)")
    if len(digits) // 2 not in sizes:
        size = f"{len(digits) // 2}" if len(raw) < _MOST_READ else f"more than {sizes[-1]}"
        allowed = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise SecretError(f"{where}: has a secret of {size} bytes; {allowed} are allowed")
    secret = bytes.fromhex(digits.decode("ascii"))
    if if_guessed is not None and (pattern := _pattern(secret)):
        raise SecretError(f"{where}: has a secret that can be guessed: {pattern}. {if_guessed}")
    return secret


def _pattern(secret: bytes) -> str | None:
    """Return the pattern of a secret that was not drawn at random, in words that reveal no byte.

    None: there is none.
    """
    # 16 random bytes are refused once in 7 million draws (all printable: (95/256)^16 = 1.3e-7), and 32 never in
    # practice. Of the 8 bytes of other stacks, one in 2,800 is all printable, so that is no sign there.
    steps = bytes((right - left) % 256 for left, right in pairwise(secret))
    if any(secret[period:] == secret[:-period] for period in range(1, len(secret) // 2 + 1)):
        return "it repeats itself"
    # on average, 101 of 128 random bytes differ, and 221 of 512
    if min(len(set(secret)), len(set(steps))) < min(len(secret), 128) // 2:
        return "it has too few different bytes, or its bytes go up in steps"
    if len(secret) >= 16 and all(32 <= byte < 127 for byte in secret):
        return "it is text, such as a password, written in hexadecimal digits"
    return None


def _why(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "not a path"

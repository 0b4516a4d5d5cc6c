"""Where the secrets of master keys live: references in, key bytes out, and never a key byte in a message."""

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
"""Bytes that a secret may have, unless its format says otherwise."""

NEW_BYTES = 32

_MOST_READ = 2048
"""Most bytes that are read of a file, more than any secret's text has."""

_TOO_OPEN = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


def secret_path(reference: str, base: Path | str) -> Path | None:
    """Return the file that a `file:` reference names (a relative path starts at `base`), or None for `env:`.

    Raises:
        SecretError: a relative path, and `base` is a URI: secrets are not fetched from afar.
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
    """Read the key bytes behind a reference: `file:PATH` or `env:NAME`, hexadecimal text in both.

    Args:
        reference: where the secret is.
        base: where a relative path starts.
        sizes: how many bytes it may have.
        guessable: whether it may be guessable, as the published keys of other stacks are.
        if_guessed: advice where it may not and is; None: draw another.

    Raises:
        SecretError: nothing is there, it is not a secret, it follows a pattern, or others could read or change it.
            Names the place only.
    """
    path, advice = secret_path(reference, base), None if guessable else if_guessed or _DRAW
    if path is not None:
        return _decode(_read_file(path), f"secret file {path}", sizes, advice)
    name = reference.removeprefix("env:")
    if name not in os.environ:
        raise SecretError(f"environment variable {name} is not set; it should hold a key's secret as hexadecimal text")
    return _decode(os.environb[os.fsencode(name)], f"environment variable {name}", sizes, advice)


def read_private_file(path: Path) -> bytes:
    """Read a private file of fewer than 2,048 bytes, such as a key as PEM.

    Raises:
        SecretError: nothing is there, it is too long, or others can read or change it. Names the place only.
    """
    raw = _read_file(path)
    if len(raw) >= _MOST_READ:
        raise SecretError(f"secret file {path}: is too long (fewer than {_MOST_READ} bytes are read)")
    return raw


def new_secret_file(path: Path, draw: Callable[[bytes], bytes] = bytes) -> bytes:
    """Make a secret from 32 bytes of the operating system's generator, and the file that holds it.

    The file is new (never overwritten), its mode 0600, and it is on the disk when this returns; folders that have to be
    made for it have mode 0700. `draw` makes the secret of the 32 bytes, which it is by default.

    Raises:
        SecretError: the file is there already or cannot be made; no file is left behind.
    """
    secret = draw(os.urandom(NEW_BYTES))
    new_private_file(path, secret.hex().encode() + b"\n")
    return secret


def new_private_file(path: Path, content: bytes) -> None:
    """Make a new file for its owner only, mode 0600, which is on the disk when this returns.

    Raises:
        SecretError: as for `new_secret_file`.
    """
    try:
        _make_private_folders(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except (OSError, ValueError) as error:
        raise SecretError(f"secret file {path}: cannot be made ({_why(error)})") from None
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
    """Read the file's first bytes, more than any secret has. Rights are checked on the opened file, after links."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        advice = "; bring it back from its copy" if isinstance(error, FileNotFoundError) else ""
        raise SecretError(f"secret file {path}: cannot be read ({_why(error)}){advice}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SecretError(f"secret file {path}: is not a regular file; give the path of a file of hexadecimal text")
        if mode & _TOO_OPEN:
            raise SecretError(
                f"secret file {path}: has mode {stat.S_IMODE(mode):04o}; others must not read it, nor its group or "
                "others write it: chmod 600 it, and make a new key if it may have been read"
            )
        return os.read(descriptor, _MOST_READ)
    except OSError as error:
        raise SecretError(f"secret file {path}: cannot be read ({_why(error)})") from None
    finally:
        os.close(descriptor)


def _decode(raw: bytes, where: str, sizes: range, if_guessed: str | None) -> bytes:
    """Return the key bytes of hexadecimal text.

    Args:
        raw: the text.
        where: names its place in errors.
        sizes: how many bytes it may have.
        if_guessed: advice where it can be guessed; None: it may be guessable.

    Raises:
        SecretError: it is not hexadecimal, has another size, or can be guessed.
    """
    digits = raw.strip()
    if not re.fullmatch(rb"(?:[0-9a-fA-F]{2})+", digits):
        raise SecretError(f"{where}: is not hexadecimal text (an even number of digits 0-9 a-f on one line)")
    if len(digits) // 2 not in sizes:
        size = f"{len(digits) // 2}" if len(raw) < _MOST_READ else f"more than {sizes[-1]}"
        allowed = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise SecretError(f"{where}: holds a secret of {size} bytes; {allowed} are allowed")
    secret = bytes.fromhex(digits.decode("ascii"))
    if if_guessed is not None and (pattern := _pattern(secret)):
        raise SecretError(f"{where}: holds a secret that can be guessed: {pattern}. {if_guessed}")
    return secret


def _pattern(secret: bytes) -> str | None:
    """Return the pattern that shows a secret not to be drawn at random, in words that reveal nothing; None: none."""
    # 16 random bytes are refused once in 7 million draws (all printable: (95/256)^16 = 1.3e-7), 32 never in practice;
    # of 8, as other stacks have them, one in 2,800 is all printable, so that tells nothing there.
    steps = bytes((right - left) % 256 for left, right in pairwise(secret))
    if any(secret[period:] == secret[:-period] for period in range(1, len(secret) // 2 + 1)):
        return "it repeats itself"
    # in the mean, 101 of 128 random bytes differ, and 221 of 512
    if min(len(set(secret)), len(set(steps))) < min(len(secret), 128) // 2:
        return "its bytes are too few different ones, or go up in steps"
    if len(secret) >= 16 and all(32 <= byte < 127 for byte in secret):
        return "it is text, such as a password, written as hexadecimal digits"
    return None


def _why(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "not a path"

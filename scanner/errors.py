"""Every error that is raised on purpose, as two trees: messages for people, and messages between our own parts.

A message for people says what was wrong (where, which value), what is allowed, what to do.

BrickscanError
├── Refused            before any work: a configuration, registry or argument that cannot be right (exit code 2)
│   ├── SecretError    a secret that cannot be read or that too many can read
│   └── TokenizerError a tokenizer file that is missing or is not the one that was pinned
├── TableError         a table of another version, or that is not as brickscan left it (exit code 2)
└── ScanFailed         work that had to stop (exit code 1)
InternalFault
├── FileFault          a file that cannot be scanned as it is, which puts it into quarantine
├── BackendUnlike      a faster tokenizer that is not installed, or does not give the reference's tokens
└── TooLate            a change of the users table that another one came before
"""

import difflib
import importlib.metadata
import re
from collections.abc import Iterable

from schemas.words import LASTING_FILE_REASONS, PASSING_FILE_REASONS


def install_of(extra: str) -> str:
    """Return the commands that install an extra.

    No index has brickscan, and a stranger could publish one under its name.
    """
    wheel = f"brickscan-{importlib.metadata.version('brickscan')}-py3-none-any.whl"
    return f"`pip install '{wheel}[{extra}]'`, or in a checkout `pip install '.[{extra}]'`"


class BrickscanError(Exception):
    """Root of all errors that brickscan raises on purpose. Its text is meant for people.

    exit_code: exit code of a command that it ends.
    """

    exit_code = 1


class Refused(BrickscanError):
    """A configuration, registry or argument that cannot be right. Nothing was done."""

    exit_code = 2


class TableError(BrickscanError):
    """A table that is of another version, not as brickscan signed and left it, or that was never signed.

    It is no Refused: code that goes on without a missing text or key must not go on after an edit.
    """

    exit_code = 2


class SecretError(Refused):
    """A secret that cannot be read, or a file of one that others can read. It never carries key bytes."""


class TokenizerError(Refused):
    """A tokenizer file that is missing, unreadable or not the pinned one."""


class ScanFailed(BrickscanError):
    """A job that had to stop. Everything committed stays, and running the job again continues from there."""


class InternalFault(Exception):
    """A message from one part to another, which handles it. It never leaves brickscan."""


class FileFault(InternalFault):
    """A file that cannot be scanned as it is. It has a reason of schemas.words and a detail for people."""

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in LASTING_FILE_REASONS + PASSING_FILE_REASONS:
            raise ValueError(f"{reason!r} is not a reason for a file's quarantine")
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    @property
    def lasting(self) -> bool:
        """Return whether the fault is the file's own. While the file stays the same, reading it again does not help."""
        return self.reason in LASTING_FILE_REASONS


class BackendUnlike(InternalFault):
    """A faster tokenizer that is not installed, cannot load a tokenizer file, or gives other tokens."""


class TooLate(InternalFault):
    """The table has changed since the state that a decision was made on."""


def in_a_line(error: Exception) -> str:
    """Write a library's message in one line, without colours and traces.

    Delta's errors, for example, are drawn as trees.
    """
    message = re.split(r"\n *0: ", str(error))[0]  # if RUST_BACKTRACE is set, a trace follows
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|\u21b3", " ", message).split())


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the nearest allowed word. Empty if none is near."""
    near = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""

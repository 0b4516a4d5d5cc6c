"""What can go wrong, as one tree. Each message says what was wrong (where, which value), what is allowed, what to do.

BrickscanError
├── Refused            before any work: a configuration, registry or argument that cannot be right (exit code 2)
│   ├── SecretError    a secret that cannot be read or that too many can read
│   └── TokenizerError a tokenizer file that is missing or is not the one that was pinned
└── ScanFailed         work that had to stop (exit code 1)
"""

import re


class BrickscanError(Exception):
    """Root of everything that brickscan raises on purpose; its text is meant for people."""


class Refused(BrickscanError):
    """A configuration, registry or argument that cannot be right; nothing was done."""


class SecretError(Refused):
    """A secret that cannot be read, or a file of one that others can read. Never carries key bytes."""


class TokenizerError(Refused):
    """A tokenizer file that is missing, unreadable or not the pinned one."""


class ScanFailed(BrickscanError):
    """A job that had to stop; what was committed stays, and running it again goes on from there."""


def in_a_line(error: Exception) -> str:
    """What a library says, in a line and without colours: Delta's errors are drawn as trees."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|\u21b3", " ", str(error)).split())

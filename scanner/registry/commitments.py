"""The list of published commitments: a text file that is only appended to, with running numbers and chained digests.

    number day key_id commitment messages tokenizer head
    head = SHA-256("brickscan commitments 2" line feed, head of the line before (64 zeros before the first) line feed,
                   number day key_id commitment messages tokenizer)

messages is how many the key has, and tokenizer the SHA-256 of its tokenizer.json. A key gets a further line where one
of these was changed, so that a claim of fewer messages, or of another tokenizer, shows.

Whoever has a copy of the list, or its last head alone, can tell whether a later list still begins with it. A line that
is changed or taken out of the middle breaks the chain; lines taken off the end are missed by those alone who saw them.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from scanner.errors import Refused
from scanner.registry.keys_file import load_registry, local_folder, locked
from scanner.storage.locations import MOST_ROWS, read_named, write_whole
from schemas.registry import MasterKey

_BEFORE = "0" * 64
_TITLE = "brickscan commitments 2"
_LINE = re.compile(
    r"([1-9][0-9]*) ([0-9]{4}-[0-9]{2}-[0-9]{2}) ([a-z0-9][a-z0-9._-]{0,63}) ([0-9a-f]{64}) ([1-9][0-9]*) "
    r"([0-9a-f]{64}) ([0-9a-f]{64})"
)


class Published(NamedTuple):
    """A line: its running number, the day (UTC), what it says of a key, and the head after it.

    commitment, tokenizer, head: as hex; tokenizer: SHA-256 of the tokenizer.json.
    """

    number: int
    day: str
    key_id: str
    commitment: str
    messages: int
    tokenizer: str
    head: str


def read_published(path: Path) -> list[Published]:
    """The lines of a list, whose chain holds.

    Raises:
        Refused: it cannot be read, or a line is not as it was written; names it.
    """
    try:
        text = read_named(path, MOST_ROWS).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'no ASCII'})") from None
    found: list[Published] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise Refused(
                f"{path}, line {number}: is no `number day key commitment messages tokenizer head`; restore the list"
            )
        before = found[-1].head if found else _BEFORE
        if int(match[1]) != number or match[7] != _head(before, line.rpartition(" ")[0]):
            raise Refused(
                f"{path}, line {number}: number and head do not follow from the line before: lines were changed, moved "
                "or taken out. Restore the list from a copy that others keep"
            )
        found.append(Published(number, match[2], match[3], match[4], int(match[5]), match[6], match[7]))
    return found


def _head(before: str, body: str) -> str:
    return sha256(f"{_TITLE}\n{before}\n{body}".encode()).hexdigest()


def _of_key(key: MasterKey) -> tuple[str | None, int, str]:
    """What a line says of a key: commitment, messages, tokenizer."""
    return key.commitment, key.messages, key.tokenizer.sha256


def publish(folder: Path | str, path: Path) -> tuple[list[Published], int]:
    """Append the registry's commitments that a list lacks, in the order in which the keys were made.

    Args:
        folder: the registry's folder, whose lock is held.
        path: the list's path; the file is made if it does not exist. It may hold keys of other registries too.

    Returns:
        The whole list, and how many of its last lines are new.

    Raises:
        Refused: as `read_published`; or it cannot be written.
    """
    folder = local_folder(folder)
    keys = load_registry(folder).keys
    with locked(folder):
        lines = read_published(path) if path.exists() else []
        known = {line[3:6] for line in lines}
        day = datetime.now(UTC).date().isoformat()
        before = len(lines)
        for key in keys:
            if key.commitment is not None and _of_key(key) not in known:
                number, last = len(lines) + 1, lines[-1].head if lines else _BEFORE
                body = number, day, key.key_id, key.commitment, key.messages, key.tokenizer.sha256
                lines.append(Published(*body, _head(last, " ".join(map(str, body)))))
        if len(lines) > before:
            text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
            try:
                write_whole(path, lambda file: file.write(text.encode()))
            except OSError as error:
                raise Refused(f"{path}: cannot be written ({error.strerror}); name another file") from None
    return lines, len(lines) - before


def faults(lines: Sequence[Published], earlier: Sequence[Published], folder: Path | str | None) -> list[str]:
    """Reasons why a list is wrong, for people. It must begin with an earlier copy, and hold a registry's keys.

    Args:
        lines: the list's lines.
        earlier: lines of a copy that was kept; empty: there is none.
        folder: the registry's folder, or a URI; None: no registry is compared.
    """
    changed = [
        f"line {old.number} of the earlier copy, of key {old.key_id}, is not in the list: it was cut or begun anew"
        for old, new in zip(earlier, [*lines, *[None] * len(earlier)], strict=False)
        if old != new
    ][:1]
    known = {line[3:6] for line in lines}
    keys = load_registry(folder).keys if folder is not None else ()
    lacking = [key.key_id for key in keys if key.commitment is not None and _of_key(key) not in known]
    return changed + [
        f"key {key_id} of the registry, with its messages and tokenizer, is not in the list: `brickscan keys publish`"
        for key_id in lacking
    ]

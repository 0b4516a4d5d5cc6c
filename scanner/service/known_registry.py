"""Record the state of a detector's registry, to refuse a registry that was put back to an older state."""

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanner.errors import Refused
from scanner.registry import head_of, numbers_of_heads
from scanner.registry.leases import SECONDS_TO_RENEW
from scanner.registry.shown_seeds import ShownUpTo, shown_path, shown_since
from scanner.storage.locations import is_uri, read_named, write_whole
from schemas.registry import MasterKey


class _KnownRegistry(BaseModel):
    """The state of a registry that a detector has seen.

    keys: ids of its keys.
    users_head: head of the chain of users. None: there are no users.
    shown: last event by which seeds of a served key were shown, by the key's id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[str, ...] = ()
    users_head: str | None = None
    shown: dict[str, ShownUpTo] = {}


def refuse_older(registry: Path | str, keys: tuple[str, ...], file: Path, served: Sequence[MasterKey]) -> None:
    """Compare a registry with the state in a file, and write its present state into the file.

    Args:
        registry: folder or URI of the registry.
        keys: ids of its keys.
        file: the file. It is made if it does not exist.
        served: the keys that are served.

    Raises:
        Refused: a key is gone, the chain of users never had the recorded head, or an event that showed seeds is
            missing, so the registry was put back to an older state. Or the file cannot be read.
    """
    try:
        recorded_state = _KnownRegistry.model_validate_json(read_named(file)) if file.exists() else _KnownRegistry()
    except (OSError, ValidationError):
        raise Refused(
            f"{file}: is not as the detector wrote it; restore it from a copy, or delete it if there is no newer copy"
        ) from None
    # a process that replaces another one knows no event, and would score what was shown as if it were secret
    shown = {
        key.key_id: _last_shown(registry, key, recorded_state.shown.get(key.key_id))
        for key in served
        if key.record is not None
    }
    state = _KnownRegistry(keys=keys, users_head=head_of(registry), shown=recorded_state.shown | shown)
    if state == recorded_state:
        return
    lost_keys, head = sorted(set(recorded_state.keys) - set(state.keys)), recorded_state.users_head
    if lost_keys or (head and not numbers_of_heads(registry, [head])):
        loss = f"the key {lost_keys[0]}" if lost_keys else f"the head {head} of its users"
        raise Refused(
            f"registry {registry}: is older than this detector's state, or is a different registry, since it lacks "
            f"{loss}: restore its newest backup; if this registry is the right one, delete {file}"
        )
    write_whole(file, lambda out: out.write(state.model_dump_json().encode()))


_READ: dict[str, tuple[tuple[int, ...], ShownUpTo | None]] = {}
"""What `_last_shown` returned, by the path of a key's file, and the file's inode, size and time then.

A file on another machine has the minute in their place.
"""


def _last_shown(registry: Path | str, key: MasterKey, then: ShownUpTo | None) -> ShownUpTo | None:
    """Return the last event of a key, whose file is read anew when it was changed. Raises as `shown_since`."""
    path, stamp = shown_path(registry, key.key_id), tuple[int, ...]()
    if is_uri(path):
        stamp = (int(time.monotonic() // SECONDS_TO_RENEW),)
    elif Path(path).exists():
        found = Path(path).stat()
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
    if _READ.get(path) != (stamp, then):
        _READ[path] = stamp, shown_since(registry, key, then).last
    return _READ[path][1]

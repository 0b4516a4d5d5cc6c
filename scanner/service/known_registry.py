"""Record the state of a detector's registry, to refuse a registry that was put back to an older state."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanner.errors import Refused
from scanner.registry import head_of, numbers_of_heads
from scanner.storage.locations import read_named, write_whole


class _KnownRegistry(BaseModel):
    """The state of a registry that a detector has seen.

    keys: ids of its keys.
    users_head: head of the chain of users. None: there are no users.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[str, ...] = ()
    users_head: str | None = None


def refuse_older(registry: Path | str, keys: tuple[str, ...], file: Path) -> None:
    """Compare a registry with the state in a file, and write its keys and its head of users into the file.

    Args:
        registry: folder or URI of the registry.
        keys: ids of its keys.
        file: the file. It is made if it does not exist.

    Raises:
        Refused: a key is gone, or the chain of users never had the recorded head, so the registry was put back to an
            older state. Or the file cannot be read.
    """
    try:
        recorded_state = _KnownRegistry.model_validate_json(read_named(file)) if file.exists() else _KnownRegistry()
    except (OSError, ValidationError):
        raise Refused(
            f"{file}: is not as the detector writes it; restore it from a copy, or delete it if none is newer"
        ) from None
    state = _KnownRegistry(keys=keys, users_head=head_of(registry))
    if state == recorded_state:
        return
    lost_keys, head = sorted(set(recorded_state.keys) - set(state.keys)), recorded_state.users_head
    if lost_keys or (head and not numbers_of_heads(registry, [head])):
        loss = f"the key {lost_keys[0]}" if lost_keys else f"the head {head} of its users"
        raise Refused(
            f"registry {registry}: is older than this detector, or another, since it lacks {loss}: put back its "
            f"newest backup; if it is meant, delete {file}"
        )
    write_whole(file, lambda out: out.write(state.model_dump_json().encode()))

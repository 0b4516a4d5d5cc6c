"""Canaries: users who are nobody, with messages of their own, for whom the serving side marks texts every night."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scanner.errors import Refused
from scanner.registry.answers import messages_held
from scanner.registry.keys_file import change_registry, find_key, load_registry
from scanner.registry.users import give_messages
from schemas.registry import Canaries, Canary, CanaryStrength, Registry


def make_canaries(
    folder: Path | str,
    key_ids: Sequence[str] | None,
    count: int,
    power: float,
    at: datetime | None = None,
    measured: Sequence[CanaryStrength] = (),
) -> Canaries:
    """Make canaries up to this number, and give each a message under each key, as any user gets theirs.

    Canaries that have a message keep it. Earlier canaries stay on record, whatever becomes of the users.

    Args:
        folder: the registry's folder.
        key_ids: keys that text is marked with; None for every key that is not retired.
        count: how many canaries.
        power: planned share of their texts that are found.
        at: time of the allocation, with a time zone; now by default.
        measured: texts like theirs, by which each scan plans for itself; none: scans go by the power.

    Returns:
        All canaries of the registry.

    Raises:
        Refused: a key that is unknown or retired, or has too few free messages.
    """
    registry, now = load_registry(folder), datetime.now(UTC)
    known = registry.canaries.made if registry.canaries else ()
    if key_ids is None:
        keys = [key for key in registry.keys if not key.has_ended(now)]
    else:
        keys = [find_key(registry, key_id) for key_id in dict.fromkeys(key_ids)]
    for key in keys:
        if key.has_ended(now):
            raise Refused(f"key {key.key_id!r} is retired: nothing is marked with it; name a key that is not")
    ids = list(dict.fromkeys(canary.account_id for canary in known))[:count]
    ids += [f"canary-{secrets.token_hex(8)}" for _ in range(count - len(ids))]
    of_users = [key.key_id for key in keys if key.messages > 1]
    if of_users:
        give_messages(folder, of_users, ids, at)
    made = []
    for key in keys:
        held = messages_held(folder, key.key_id, ids) if key.messages > 1 else dict.fromkeys(ids, 0)
        made += [
            Canary(account_id=name, key_id=key.key_id, message=held[name], names=key.messages > 1)
            for name in ids
            if name in held
        ]
    return set_canaries(folder, Canaries(power=power, made=tuple(made), measured=tuple(measured)))


def set_canaries(folder: Path | str, canaries: Canaries) -> Canaries:
    """Record canaries beside the earlier ones, which stay; power and measured texts are the new ones. Returns all.

    Raises:
        Refused: there is no registry.
    """

    def recorded(registry: Registry) -> Registry:
        before = registry.canaries.made if registry.canaries else ()
        made = tuple(dict.fromkeys((*before, *canaries.made)))
        return registry.model_copy(update={"canaries": canaries.model_copy(update={"made": made})})

    return change_registry(folder, recorded).canaries or canaries

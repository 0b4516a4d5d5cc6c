"""The registry of a platform: its master keys, where their secrets live, its users and the messages they hold."""

from scanner.registry.holders import Holders, Named
from scanner.registry.keys import (
    admit_key,
    check_secret,
    find_key,
    load_registry,
    new_key,
    open_key,
    registry_sha256,
    retire_key,
    set_audit_secret,
    suggested_parameters,
    tokenizer_path,
)
from scanner.registry.secrets import read_secret
from scanner.registry.users import (
    Allocation,
    add_users,
    erase_users,
    list_users,
    look_alikes,
    remove_users,
    restore_users,
    unknown_users,
)

__all__ = [
    "Allocation",
    "Holders",
    "Named",
    "add_users",
    "admit_key",
    "check_secret",
    "erase_users",
    "find_key",
    "list_users",
    "load_registry",
    "look_alikes",
    "new_key",
    "open_key",
    "read_secret",
    "registry_sha256",
    "remove_users",
    "restore_users",
    "retire_key",
    "set_audit_secret",
    "suggested_parameters",
    "tokenizer_path",
    "unknown_users",
]

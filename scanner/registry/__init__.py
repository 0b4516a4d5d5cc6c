"""The registry of a platform: its master keys, where their secrets live, its users and the messages they hold."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanner.registry.holders import (
        WantedUsers,
        given_at,
        given_rows,
        head_of,
        list_users,
        messages_held,
        numbers_of_heads,
        pages,
        unknown_users,
        users_of,
    )
    from scanner.registry.keys import (
        TRIAL_BEGAN,
        admit_key,
        begin_trial,
        check_audit_secret,
        check_secret,
        make_audit_secret,
        new_key,
        open_key,
        retire_key,
        set_audit_secret,
        suggested_parameters,
        tokenizer_path,
    )
    from scanner.registry.keys_file import (
        audit_secret_of,
        find_key,
        lasting_secret_of,
        load_registry,
        read_audit_secret,
        read_lasting_secret,
        registry_sha256,
    )
    from scanner.registry.naming import Holders, NamedUser, VerifiedHolders
    from scanner.registry.record import NO_RECORD, NamesPart, Record
    from scanner.registry.secrets import read_secret
    from scanner.registry.users import (
        Allocation,
        add_users,
        erase_users,
        look_alikes,
        make_canaries,
        remove_users,
        restore_users,
        set_canaries,
    )
    from scanner.registry.verification import Verification, verified_rows, verified_users, verify_since, verify_users

__all__ = [
    "NO_RECORD",
    "TRIAL_BEGAN",
    "Allocation",
    "Holders",
    "NamedUser",
    "NamesPart",
    "Record",
    "Verification",
    "VerifiedHolders",
    "WantedUsers",
    "add_users",
    "admit_key",
    "audit_secret_of",
    "begin_trial",
    "check_audit_secret",
    "check_secret",
    "erase_users",
    "find_key",
    "given_at",
    "given_rows",
    "head_of",
    "lasting_secret_of",
    "list_users",
    "load_registry",
    "look_alikes",
    "make_audit_secret",
    "make_canaries",
    "messages_held",
    "new_key",
    "numbers_of_heads",
    "open_key",
    "pages",
    "read_audit_secret",
    "read_lasting_secret",
    "read_secret",
    "registry_sha256",
    "remove_users",
    "restore_users",
    "retire_key",
    "set_audit_secret",
    "set_canaries",
    "suggested_parameters",
    "tokenizer_path",
    "unknown_users",
    "users_of",
    "verified_rows",
    "verified_users",
    "verify_since",
    "verify_users",
]

_MODULES = (
    "keys_file",
    "secrets",
    "keys",
    "naming",
    "holders",
    "users",
    "verification",
)
"""Modules of the names above; the first ones import no Arrow, deltalake or polars, which take a second."""


def __getattr__(name: str) -> object:
    """Import the first module that has a name above, and return its value: commands for keys need no later module."""
    if name in __all__:
        for module in _MODULES:
            names = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in names:
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

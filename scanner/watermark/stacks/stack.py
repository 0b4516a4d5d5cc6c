"""Define the entry of a stack of marks: its formats, the reader of its configuration, and its makers' cases."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scanner.errors import did_you_mean
from scanner.watermark.format import Case, Format
from scanner.watermark.hidden_value import HiddenValue

Fields = Mapping[str, Any]
"""A configuration of a stack, as its JSON states it."""


class StackKey(NamedTuple):
    """A configuration after reading.

    format: name of the format.
    parameters: parameters of the format.
    secret: the key's bytes. No repr shows them.
    """

    format: str
    parameters: dict[str, Any]
    secret: HiddenValue[bytes]


class Configuration(NamedTuple):
    """The form in which a stack writes down a key.

    key: the field that holds it, in words for people.
    fits: whether a configuration is this stack's, by that field.
    read: returns the format, its parameters and the key. It raises ValueError with the field, and repeats no value of a
        key.
    """

    key: str
    fits: Callable[[Fields], bool]
    read: Callable[[Fields], StackKey]


class CaseGroup(NamedTuple):
    """The cases of a maker's list that belong to a group of known answers.

    holds: whether a case does, by its fields.
    ignored: fields that have another meaning there.
    """

    holds: Callable[[Case], bool]
    ignored: tuple[str, ...] = ()


class Stack(NamedTuple):
    """A whole stack of marks: an entry of STACKS (scanner.watermark.formats).

    formats: its formats.
    case_groups: groups of known answers, by name.
    configuration: None: it has none, and a key is made by its format's name.
    """

    formats: tuple[type[Format], ...]
    case_groups: Mapping[str, CaseGroup]
    configuration: Configuration | None = None


def whole_number(number: object, field: str) -> bytes:
    """Return the 8 bytes of a number in a configuration.

    Raises:
        ValueError: it is no whole number from 0 up to below 2^63.
    """
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
        raise ValueError(f"field {field!r}: a whole number from 0 to below 2^63 is needed")
    return number.to_bytes(8, "big")


def refuse_unknown(fields: Fields, stack: str, names: set[str]) -> None:
    """Raise ValueError if a configuration has a field with an unknown name. The message suggests the nearest name."""
    unknown = sorted(set(fields) - names)
    if unknown:
        suggestion = did_you_mean(unknown[0], names)
        raise ValueError(f"field {unknown[0]!r} is unknown to {stack}{suggestion}; known: {', '.join(sorted(names))}")


def select(fields: Fields, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of these names that a configuration states."""
    return {name: fields[name] for name in names if fields.get(name) is not None}

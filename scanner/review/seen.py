"""A flag as somebody saw it who decides on it now: the same document, with the same text."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from scanner.errors import Refused
from scanner.evidence.case import find_case


class Changed(Refused):
    """What is to be decided on is not what was seen; nothing was recorded."""


class Place(NamedTuple):
    """Which document."""

    path: str
    row: int


def flag_as_seen(results: str, rate: float, place: Place, text_sha256: str) -> Mapping[str, Any]:
    """A row of schemas.tables.VERDICTS with `audit`: the flag of a text, hexadecimal digest, in its place.

    Raises:
        Changed: another text stands there now.
        Refused: there is no such flag.
    """
    flag = find_case(results, rate, f"{place.path}:{place.row}").row
    if flag["text_sha256"].hex() != text_sha256:
        raise Changed("another text stands there now than the one that you saw: look at it, and decide again")
    return flag

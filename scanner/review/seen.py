"""The flag that a decider saw: the same document, with the same text."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from scanner.errors import Refused
from scanner.evidence.case import find_case


class Changed(Refused):
    """The text is not the one that the decider saw; nothing was recorded."""


class Place(NamedTuple):
    """The place of a document."""

    path: str
    row: int


def flag_as_seen(results: str, rate: float, place: Place, text_sha256: str) -> Mapping[str, Any]:
    """The flag at a place whose text has a hexadecimal digest: a row of schemas.tables.VERDICTS with `audit`.

    Raises:
        Changed: another text stands there now.
        Refused: there is no such flag.
    """
    flag = find_case(results, rate, f"{place.path}:{place.row}").row
    if flag["text_sha256"].hex() != text_sha256:
        raise Changed("another text stands there now than the one that you saw: look at it, and decide again")
    return flag

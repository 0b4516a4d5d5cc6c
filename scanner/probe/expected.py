"""Compare an earlier page with tonight's. A class that was marked and is not any more has an exit code of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from scanner.errors import Refused
from scanner.probe.analysis import KeyResult, ProbeResult
from scanner.storage.locations import read_named

MARKED, UNMARKED = "marked", "unmarked"

AS_EXPECTED, NOT_MARKED, NOT_KNOWN = 0, 3, 4
"""Exit codes: all as expected, a marked class is no longer marked, and a marked class cannot be decided."""


class _Expected(BaseModel):
    model_config = ConfigDict(frozen=True)


class _ExpectedClass(_Expected):
    name: str
    state: str


class _ExpectedKey(_Expected):
    key_id: str
    named: str | None
    alike: tuple[str, ...]
    classes: tuple[_ExpectedClass, ...]


class ExpectedPage(_Expected):
    """The fields of an earlier probe.json that are compared."""

    keys: tuple[_ExpectedKey, ...]


class Change(NamedTuple):
    """A difference from the expected page: an exit code, and a sentence."""

    code: int
    sentence: str


def read_expected(path: Path) -> ExpectedPage:
    """Read an earlier page.

    Raises:
        Refused: the file cannot be read, or is no probe.json.
    """
    try:
        return ExpectedPage.model_validate_json(read_named(path))
    except OSError as error:
        raise Refused(
            f"--expect {path}: cannot be read ({error.strerror}); give a copy of an earlier probe.json"
        ) from None
    except ValidationError:
        raise Refused(f"--expect {path}: is no probe.json; give a copy of an earlier one") from None


def changes(expected: ExpectedPage, result: ProbeResult) -> Iterator[Change]:
    """Yield the differences from the expected page. Classes that were not marked may have any state now."""
    results = {key.key_id: key for key in result.keys}
    for key in expected.keys:
        if not any(one.state == MARKED for one in key.classes):
            continue
        now = results.get(key.key_id)
        if now is None:
            yield Change(NOT_KNOWN, f"key {key.key_id}: was not probed")
            continue
        yield from _of_classes(key, now)
        alike = {key.named, *key.alike}
        if now.named is not None and alike.isdisjoint({now.named, *now.alike}):
            yield Change(NOT_MARKED, f"key {key.key_id}: the server marks by {now.named}, where it was {key.named}")


def _of_classes(key: _ExpectedKey, now: KeyResult) -> Iterator[Change]:
    found = {one.name: one for one in now.classes}
    for one in key.classes:
        if one.state != MARKED:
            continue
        state = found[one.name].state if one.name in found else "not asked"
        if state == UNMARKED:
            yield Change(NOT_MARKED, f"key {key.key_id}, {one.name}: was marked, and is not any more")
        elif state != MARKED:
            more = found[one.name].more_answers if one.name in found else 0
            how_many = f"; {more:,} more answers are needed" if more else ""
            yield Change(
                NOT_KNOWN, f"key {key.key_id}, {one.name}: was marked, and cannot be told now ({state}){how_many}"
            )

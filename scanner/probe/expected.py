"""Compare an earlier page with tonight's. A class that was marked and is not any more has an exit code of its own."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from scanner.errors import Refused
from scanner.probe.analysis import KeyResult, ProbeResult
from scanner.probe.hypotheses import STATED
from scanner.storage.locations import read_named

MARKED, UNMARKED = "marked", "unmarked"

_NUMBER = re.compile(r"[0-9][0-9.,]*")

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
    differences: tuple[str, ...]
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
        raise Refused(f"--expect {path}: is not a probe.json; give a copy of an earlier one") from None


def changes(expected: ExpectedPage, result: ProbeResult) -> Iterator[Change]:
    """Yield the differences from the expected page. Classes that were not marked may have any state now.

    What a server does otherwise than its key says is told too, unless the expected page said it already.
    """
    results = {key.key_id: key for key in result.keys}
    for key in expected.keys:
        were = sum(one.state == MARKED for one in key.classes)
        if not were:
            continue
        now = results.get(key.key_id)
        if now is None:
            yield Change(NOT_KNOWN, f"key {key.key_id}: was not probed")
            continue
        # the answers of one class may be too few to tell, where those of all are not
        if now.together == UNMARKED and not any(one.state == MARKED for one in now.classes):
            words = f"all answers together carry no mark, where {were:,} of its classes did"
            yield Change(NOT_MARKED, f"key {key.key_id}: {words}")
            continue
        yield from _of_classes(key, now)
        alike = {key.named, *key.alike}
        if now.named is not None and alike.isdisjoint({now.named, *now.alike}):
            yield Change(NOT_MARKED, f"key {key.key_id}: the server marks by {now.named}; before, it was {key.named}")
            continue
        # the first difference is the named configuration, unless it is the stated one
        others = now.differences[int(now.named not in (key.named, STATED)) :]
        before = {_without_numbers(sentence) for sentence in key.differences}
        for sentence in others:
            if _without_numbers(sentence) not in before:
                yield Change(NOT_MARKED, f"key {key.key_id}: differs, as it did not before: {sentence}")


def _without_numbers(sentence: str) -> str:
    """Return a difference without its shares and limits, which change from night to night."""
    return _NUMBER.sub("", sentence)


def _of_classes(key: _ExpectedKey, now: KeyResult) -> Iterator[Change]:
    found = {one.name: one for one in now.classes}
    for one in key.classes:
        if one.state != MARKED:
            continue
        if one.name not in found:
            yield Change(NOT_KNOWN, f"key {key.key_id}, {one.name}: was marked, and was not asked now")
            continue
        state, more = found[one.name].state, found[one.name].more_answers
        if state == UNMARKED:
            yield Change(NOT_MARKED, f"key {key.key_id}, {one.name}: was marked, and no longer is")
        elif state != MARKED:
            how_many = f"; {more:,} more answers are needed" if more else ""
            yield Change(NOT_KNOWN, f"key {key.key_id}, {one.name}: was marked, and cannot be told now{how_many}")

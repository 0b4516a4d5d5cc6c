"""List every watermark format that is read, in FORMATS, and compare known answers with this installation (SPEC §5).

A case is one entry of a group. It passes if every integer agrees exactly and every real to 1e-9 relative. The cost of a
token under a key is timed on a sample, next to its cost under our own green list.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import numpy as np

from scanner.errors import did_you_mean
from scanner.watermark.by_levels import lacks_for_levels
from scanner.watermark.format import Case, Format, Pairs, Watermark
from scanner.watermark.native.format import (
    GreenListFormat,
    GreenListFormat3,
    GumbelFormat,
    GumbelFormat3,
)
from scanner.watermark.positions import Tokens
from scanner.watermark.rule import candidates
from scanner.watermark.stacks import (
    huggingface,
    sbw,
    sglang,
    synthid,
    three_bricks,
    vllm,
)
from schemas.registry import MasterKey

STACKS = (
    vllm.STACK,
    sglang.STACK,
    huggingface.STACK,
    synthid.STACK,
    three_bricks.STACK,
    sbw.STACK,
)
"""Every other stack whose marks are read. Each is a folder of scanner.watermark.stacks."""

_OURS: tuple[type[Format], ...] = (
    GreenListFormat,
    GumbelFormat,
    GreenListFormat3,
    GumbelFormat3,
)

FORMATS: dict[str, type[Format]] = {
    entry.name: entry for formats in (_OURS, *(stack.formats for stack in STACKS)) for entry in formats
}
"""Every format by its name."""


def format_of(key: MasterKey) -> Format:
    """Return the format of a key on record, with its parameters.

    Raises:
        ValueError: as `make_format`.
    """
    return make_format(key.format, key.parameters)


def generator_of(name: str) -> str | None:
    """Return the generator of the stack whose random numbers a format reads. None if the device makes no difference."""
    return FORMATS[name].generator if name in FORMATS else None


def make_format(name: str, parameters: Mapping[str, Any]) -> Format:
    """Make a format from its name and parameters.

    Raises:
        ValueError: no format has that name, or a parameter is not allowed (pydantic.ValidationError, a ValueError).
    """
    if name in ("greenlist-v2", "gumbel-v2"):
        raise ValueError(
            f"its format is {name}: version 2 of our mark is no longer supported; version 3 replaced it. Make a new "
            "key (`brickscan keys new`); text marked with this one can be read by the brickscan that made it"
        )
    if name not in FORMATS:
        # The name is not repeated, because it may be a secret that was pasted in its place.
        raise ValueError(f"its format is unknown{did_you_mean(name, FORMATS)}; allowed: {', '.join(FORMATS)}")
    return FORMATS[name].model_validate(dict(parameters))


TOLERANCE = 1e-9


NOT_READ = "of no format that brickscan reads"
"""Group of such cases. Each of them counts as neither passed nor failed."""


class GroupResult(NamedTuple):
    """The result of one group of known answers.

    failures: for each failed case, its name, the expected and the computed value.
    not_read: number of cases that are of no format here.
    """

    group: str
    passed: int
    failures: list[str]
    not_read: int = 0


def shipped() -> list[Traversable]:
    """Return every file of known answers that comes with the code, for all formats."""
    return list(dict.fromkeys(entry.answers.shipped for entry in FORMATS.values()))


def check(text: str) -> list[GroupResult]:
    """Run known answers: groups in the form of the shipped files, or a list `cases` as makers of stacks keep them.

    A case of such a list has its inputs and expected values in `inputs` and `expected`, or next to each other. Its
    tokens may be in `sequences` of the file, under the name in `sequence`.

    Raises:
        ValueError: the text has another form, or no case.
    """
    try:
        groups = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    not_read = 0
    if isinstance(groups, dict) and isinstance(groups.get("cases"), list):
        groups, not_read = _grouped_cases(groups["cases"], groups.get("sequences"))
    if not isinstance(groups, dict) or not all(isinstance(cases, list) for cases in groups.values()):
        raise ValueError("is neither an object of groups, each a list of cases, nor an object with a list `cases`")
    comparisons = {name: compare for entry in FORMATS.values() for name, compare in entry.answers.groups.items()}
    unknown = sorted(set(groups) - set(comparisons))
    if unknown:
        raise ValueError(f"has an unknown group {unknown[0]!r}; allowed: {', '.join(comparisons)}")
    if not any(groups.values()):
        raise ValueError(f"holds no cases; at least one of these groups is needed: {', '.join(comparisons)}")
    results = [_check_group(name, comparisons[name], cases) for name, cases in groups.items()]
    return [*results, GroupResult(NOT_READ, 0, [], not_read)] if not_read else results


def _grouped_cases(cases: list[Any], sequences: object) -> tuple[dict[str, list[Case]], int]:
    groups: dict[str, list[Case]] = {}
    not_read = 0
    for number, case in enumerate(cases):
        if not isinstance(case, dict):
            raise ValueError(f"cases[{number}] is not an object with fields")
        expected = case.get("expected")
        expected = expected if isinstance(expected, dict) else {}
        parts = (case, case.get("inputs"), expected.get("combined"), expected)
        fields = {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}
        if "tokens" not in fields and isinstance(sequences, dict) and fields.get("sequence") in sequences:
            fields["tokens"] = sequences[fields["sequence"]]["tokens"]
        belongs = [item for stack in STACKS for item in stack.case_groups.items() if item[1].holds(fields)]
        for name, group in belongs:
            groups.setdefault(name, []).append({key: fields[key] for key in fields if key not in group.ignored})
        not_read += not belongs
    return groups, not_read


def _check_group(name: str, compare: Callable[[Case], Pairs], cases: list[Case]) -> GroupResult:
    failures = []
    for number, case in enumerate(cases):
        try:
            mismatches = [f"{label}: expected {a!r}, got {b!r}" for label, a, b in compare(case) if not _agrees(a, b)]
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            mismatches = [f"cannot be computed: {type(error).__name__}: {error}"]
        if mismatches:
            failures.append(f"{name}[{number}] " + "; ".join(mismatches))
    return GroupResult(name, len(cases) - len(failures), failures)


def _agrees(expected: object, computed: object) -> bool:
    """Return whether integers, text and lists agree exactly, and reals to TOLERANCE. null means −∞."""
    if isinstance(computed, float):
        if expected is None or not math.isfinite(computed):
            return expected is None and computed == -math.inf
        if not isinstance(expected, int | float) or isinstance(expected, bool):
            return False
        return abs(expected - computed) <= TOLERANCE * abs(computed)
    return type(expected) is type(computed) and bool(expected == computed)


def can_have_levels(key: MasterKey) -> bool:
    """Return whether a key's format and messages let tokens count by levels (scanner.watermark.by_levels)."""
    return not lacks_for_levels(format_of(key), key.messages)


def shares_of_levels(keys: Sequence[MasterKey], share: float | None) -> dict[str, float]:
    """Return the share of tokens that count by levels under each key of another stack, as shard ids have it.

    It is empty if `share` is None, which means that no tokens count by levels. Ids do not have it for keys of our own
    formats, because at first tokens counted by levels only under these.
    """
    stack_keys = (key for key in keys if format_of(key).version is None and can_have_levels(key))
    return {} if share is None else {f"levels under {key.key_id}": share for key in stack_keys}


WORTH_TELLING = 100.0
"""Multiple of our green list's cost at which a person who adds or scans a key is warned."""

_WORTH_TIMING = 1e-6  # seconds a token by the format's own generous estimate; a cheaper format needs no sample
_LENGTH, _FEWEST, _MOST = 256, 2, 64  # tokens of a document; smallest and largest number of documents in a sample
_ENOUGH = 0.1  # seconds that a sample must take


class Price(NamedTuple):
    """The cost of a key.

    seconds: core seconds of one token under all messages.
    times: this cost divided by the cost of our green list for as many messages.
    """

    seconds: float
    times: float

    def words(self) -> str:
        """Write the price in words, for people."""
        times, hours = f"{round_to_one(self.times):,}", two_digits(5e8 * self.seconds / 3600)
        return (
            f"{two_digits(1e6 * self.seconds)} µs a token on one core, about {times} times what our green list takes; "
            f"a million posts of 500 tokens take {hours} core-hours under it"
        )


def price(form: Format, mark: Watermark, messages: int, clock: Callable[[], float] = time.thread_time) -> Price | None:
    """Time a key on tokens as frequent as in text. None if it takes less than a hundred times our green list.

    Args:
        form: the key's format.
        mark: the opened key.
        messages: M, the number of messages that a scan searches.
        clock: returns the time in seconds.
    """
    if form.seconds(messages) < _WORTH_TIMING:
        return None
    green_list = make_format("greenlist", {"window": 4, "gamma": "1/4"}).open(bytes(range(16)))
    seconds, green_list_seconds = (seconds_a_token(timed_mark, messages, clock) for timed_mark in (mark, green_list))
    key_price = Price(seconds, seconds / green_list_seconds)
    return key_price if key_price.times >= WORTH_TELLING else None


def sample(documents: int, seed: int) -> Tokens:
    """Draw documents whose tokens have a frequency of one over their rank, as words do: the n-th id of a vocabulary."""
    ranks = np.exp(np.random.default_rng(seed).uniform(0.0, np.log(30_000.0), documents * _LENGTH))
    return Tokens(ranks.astype(np.uint32), np.arange(documents + 1, dtype=np.int64) * _LENGTH)


def seconds_a_token(mark: Watermark, messages: int, clock: Callable[[], float]) -> float:
    """Time leaving out repeats and scoring, in seconds a token.

    The number of documents grows until the sample takes long enough.

    As many documents come before, untimed. Then all code is compiled and all caches of a vocabulary are filled, as in a
    scan.
    """
    documents = _FEWEST
    while True:
        _score(mark, sample(documents, 1), messages)
        tokens = sample(documents, 2)
        began = clock()
        _score(mark, tokens, messages)
        seconds = max(clock() - began, 1e-9)
        if seconds >= _ENOUGH or documents >= _MOST:
            return seconds / len(tokens.ids)
        documents = min(_MOST, documents * int(min(max(_ENOUGH / seconds, 2.0), _MOST)))


def _score(mark: Watermark, tokens: Tokens, messages: int) -> None:
    positions = mark.rule.positions(tokens, "ngram")
    if messages == 1:
        mark.score(tokens, positions, 0)
    else:
        candidates(mark, tokens, positions, messages)


def round_to_one(times: float) -> int:
    """Round the ratio to one digit, because no more of it is known."""
    unit = int("1" + "0" * (len(str(int(times))) - 1))
    return round(times / unit) * unit


def two_digits(number: float) -> str:
    """Write the number with two digits, or with all digits before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"

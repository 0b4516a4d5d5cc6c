"""Define the public record of a key of version 3 (SPEC_3 §2). It is published with the key, and has no secret."""

import math
import re
from fractions import Fraction
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.registry import MAX_MESSAGES, MAX_WINDOW, MOST_NUMBERS, Sha256, parse_gamma

FEWEST_SEEDS, MOST_SEEDS = 4, 28
"""Least and largest n. A key of version 3 has 2^n seeds."""

MOST_EARLIER = 2**16
"""Largest number of earlier records that a record names."""

MOST_LOOKS = 100
"""Largest number of looks of a record."""

_LABEL = re.compile(
    r"(greenlist|gumbel)-v3;h=(0|[1-9][0-9]?)(?:;gamma=([0-9/]{3,7}))?(?:;groups=([1-9][0-9]{0,4}))?;seeds=([1-9][0-9]?)"
)


class Label(NamedTuple):
    """The content of a label of version 3 (SPEC_3 §1).

    method: `greenlist` or `gumbel`.
    window: h.
    gamma: γ of a green list. None: gumbel.
    groups: B. None: no groups.
    seeds: n, of 2^n seeds.
    """

    method: str
    window: int
    gamma: Fraction | None
    groups: int | None
    seeds: int

    @property
    def most_messages(self) -> int:
        """Return the largest number of messages that a key can have. With groups, it has exactly so many."""
        return MOST_NUMBERS if self.groups is None else self.groups**2


def parse_label(text: str) -> Label:
    """Read a label of version 3.

    Raises:
        ValueError: it is no such label. The message says what is allowed.
    """
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ValueError("is not a label of version 3, such as 'greenlist-v3;h=4;gamma=1/4;groups=1026;seeds=24'")
    method, window, gamma, groups, seeds = match[1], int(match[2]), match[3], match[4], int(match[5])
    if (method == "greenlist") != (gamma is not None):
        raise ValueError("a green list has a gamma, and a Gumbel label has none")
    if window > MAX_WINDOW:
        raise ValueError(f"h = {window}: 0 to {MAX_WINDOW} are allowed")
    if groups is not None and not (window and 2 <= int(groups) <= MOST_NUMBERS):
        raise ValueError(f"groups = {groups}: 2 to {MOST_NUMBERS} are allowed, with a window of 1 or more")
    if not FEWEST_SEEDS <= seeds <= MOST_SEEDS:
        raise ValueError(f"seeds = {seeds}: {FEWEST_SEEDS} to {MOST_SEEDS} are allowed")
    share = None if gamma is None else parse_gamma(gamma)
    return Label(method, window, share, None if groups is None else int(groups), seeds)


def _is_label(text: str) -> str:
    parse_label(text)
    return text


Words = Annotated[str, StringConstraints(min_length=1, max_length=500)]
LabelText = Annotated[str, AfterValidator(_is_label)]
Share = Annotated[float, Field(gt=0, le=1)]


class _RecordTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NormalFormDigest(_RecordTable):
    """The normal form of the second look at a text.

    name: name of the normal form.
    sha256: digest of its definition and tables.
    """

    name: Words
    sha256: Sha256


class NamedBeacon(_RecordTable):
    """A future value that nobody at the platform can know or choose when the record is published.

    source: source of the value, such as the address of a public randomness beacon.
    round: the round, or the time, whose value will be used.
    """

    source: Words
    round: Words


class KeyRecord(_RecordTable):
    """The public record of a key of version 3, with exactly the fields of SPEC_3 §2.

    version: version of the watermark.
    label: label of the key. Its streams are drawn under this label.
    root: root of the tree over the key's seeds.
    commitment: commitment to the master key.
    tokenizer_sha256: digest of the tokenizer.json.
    messages: number of messages of the key. With groups, B².
    normal_form: the second form in which texts are looked at. None: texts are only looked at as they are written.
    looks: the share of the rate that each look has, by its name and version. They are at most 1 in all.
    beacon: the beacon whose value will be hashed into R. None: there is none, and no value is ever used.
    earlier: SHA-256 of every record that was published before, including records of keys that were given up.
    """

    version: int = Field(ge=3, le=3)
    label: LabelText
    root: Sha256
    commitment: Sha256
    tokenizer_sha256: Sha256
    messages: int = Field(ge=1, le=MAX_MESSAGES)
    normal_form: NormalFormDigest | None
    looks: Annotated[dict[Words, Share], Field(min_length=1, max_length=MOST_LOOKS)]
    beacon: NamedBeacon | None
    earlier: Annotated[tuple[Sha256, ...], Field(max_length=MOST_EARLIER)]

    @model_validator(mode="after")
    def _messages_fit_the_label(self) -> Self:
        label = parse_label(self.label)
        if self.messages > label.most_messages or (label.groups and self.messages != label.groups**2):
            allowed = "at most" if label.groups is None else "exactly"
            raise ValueError(f"messages = {self.messages}: a key of this label has {allowed} {label.most_messages}")
        return self

    @model_validator(mode="after")
    def _shares_are_at_most_one(self) -> Self:
        if math.fsum(self.looks.values()) > 1:
            raise ValueError("the shares of the looks sum to more than 1")
        return self

    @model_validator(mode="after")
    def _earlier_records_are_different(self) -> Self:
        if len(set(self.earlier)) < len(self.earlier):
            raise ValueError("earlier names a record twice")
        return self

"""Version 2 of the native watermark, as FORMATS has it: every token has a run of entries of its own (SPEC_2).

No change of tokens turns one message's mark into another's, and one message's mark leaves the scores of all others as
they were. It has the laws and the parameters of version 1, and the parameter `groups` besides.
"""

import math
from collections.abc import Sequence
from importlib.resources import files
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from scanner.watermark.abilities import StandIns
from scanner.watermark.format import Answers, Format
from scanner.watermark.native import secret
from scanner.watermark.native.group_reach import found_chance
from scanner.watermark.native.known_answers import GROUPS
from scanner.watermark.native.numbered_greenlist import NumberedGreenList
from scanner.watermark.native.numbered_gumbel import NumberedGumbel
from scanner.watermark.native.run_nulls import Paired
from scanner.watermark.native.version1 import GreenListFormat, GumbelFormat, Native
from schemas.registry import MOST_NUMBERS, RESERVED_EVERY, parse_gamma, reserved_among

CLUSTERS = 32
"""Clusters of the messages of a key without groups, by which stand-ins are dealt out."""


def users_of(groups: int) -> int:
    """Fewest users that B groups have room for: a twentieth of the messages is reserved (SPEC_2 §2)."""
    return groups**2 * (RESERVED_EVERY - 1) // RESERVED_EVERY


def groups_for(users: float) -> int:
    """The least B with room for so many users."""
    groups = max(2, math.isqrt(int(users)))
    while users_of(groups) < users:
        groups += 1
    return groups


class _Native2(Native):
    """What both share."""

    version: ClassVar = 2
    answers = Answers(files(__package__) / "known_answers_2.json", GROUPS)

    groups: int | None = Field(default=None, ge=2, le=MOST_NUMBERS)

    @model_validator(mode="after")
    def _groups_need_a_window(self) -> Self:
        if self.groups is not None and not self.window:
            raise ValueError("groups need a window of 1 or more: the window decides which steps a group shares")
        return self

    @property
    def _groups(self) -> int | None:
        return self.groups

    def can_be_framed(self) -> bool:
        """Never: no two messages read the same entry, except in the steps of a group, which name nobody."""
        return False

    def check_messages(self, count: int) -> None:
        """At most as many messages as are searched one by one; with groups B²."""
        if self.groups is not None and count != self.groups**2:
            raise ValueError(f"{count} messages: a key with groups = {self.groups} has {self.groups**2}")
        if self.groups is None and count > MOST_NUMBERS:
            raise ValueError(
                f"{count} messages: a key of format {self.name!r} without groups has {MOST_NUMBERS} at most; "
                "give --users for a key with groups, which has room for a thousand million"
            )

    def found_chance(self, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
        """With groups, what the search of groups finds."""
        law = self.law()
        if self.groups is None or law is None:
            return super().found_chance(scored, p)
        return found_chance(law, self.groups, scored, p)

    def seconds(self, messages: int) -> float:
        """Proportional to the groups in a third of the steps, and to the users of eight groups in the others."""
        return super().seconds(messages if self.groups is None else 6 * self.groups)

    def counted(self, messages: int) -> int:
        """All messages; with groups, pairs of groups and users."""
        return messages if self.groups is None else Paired.of(self.groups).pairs

    def stand_ins(self, message: int, messages: int) -> StandIns:
        """With groups, the reserved messages of its group, which share its group steps.

        Else reserved ones, or numbers beyond all.
        """
        if self.groups is not None:
            group = message // self.groups
            return StandIns(group, reserved_among(group * self.groups, (group + 1) * self.groups))
        reserved, beyond = reserved_among(0, messages), range(messages, MOST_NUMBERS)
        cluster = message % CLUSTERS
        return StandIns(cluster, max(reserved, beyond, key=len)[cluster::CLUSTERS])

    def decides(self) -> dict[str, object]:
        """See Format."""
        return Format.decides(self)


class GreenListFormat2(_Native2, GreenListFormat):
    """The green list of Kirchenbauer et al.: h and γ."""

    name = "greenlist-v2"
    title = "Kirchenbauer et al. (green list, version 2)"

    def label(self) -> str:
        """The label of SPEC_2 §1."""
        return secret.label(self.name, self.window, parse_gamma(self.gamma), self.groups)

    def open(self, secret_bytes: bytes) -> NumberedGreenList:
        """See Format."""
        return NumberedGreenList(secret_bytes, self.window, parse_gamma(self.gamma), self.groups)


class GumbelFormat2(_Native2, GumbelFormat):
    """The Gumbel mark of Aaronson et al.: h."""

    name = "gumbel-v2"
    title = "Aaronson et al. (Gumbel, version 2)"

    def label(self) -> str:
        """The label of SPEC_2 §1."""
        return secret.label(self.name, self.window, groups=self.groups)

    def open(self, secret_bytes: bytes) -> NumberedGumbel:
        """See Format."""
        return NumberedGumbel(secret_bytes, self.window, self.groups)


def of_the_paper(
    gammas: Sequence[str], windows: Sequence[int], version: int = 1, groups: int | None = None
) -> list[Format]:
    """Both marks of the paper for every window: green lists of every γ, then Gumbel.

    Args:
        gammas: shares of green tokens, as text.
        windows: h.
        version: 1, the paper's own, or 2.
        groups: B, of version 2; None: no groups.
    """
    green: list[Format]
    if version == 1:
        green = [GreenListFormat(window=window, gamma=gamma) for gamma in gammas for window in windows]
        return green + [GumbelFormat(window=window) for window in windows]
    green = [GreenListFormat2(window=window, gamma=gamma, groups=groups) for gamma in gammas for window in windows]
    return green + [GumbelFormat2(window=window, groups=groups) for window in windows]

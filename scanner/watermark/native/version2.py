"""Version 2 of the native watermark, as FORMATS has it: every token has a run of entries of its own (SPEC_2).

No change of tokens turns one message's mark into another's, and one message's mark leaves the scores of all others as
they were. Parameters and laws are those of version 1.
"""

from importlib.resources import files
from typing import ClassVar

from scanner.watermark.format import Answers, Format
from scanner.watermark.native.known_answers import GROUPS
from scanner.watermark.native.numbered import MOST_NUMBERS, NumberedGreenList, NumberedGumbel
from scanner.watermark.native.version1 import GreenListFormat, GumbelFormat, Native
from schemas.registry import parse_gamma


class _Native2(Native):
    """What both share."""

    version: ClassVar = 2
    answers = Answers(files(__package__) / "known_answers_2.json", GROUPS)

    def can_be_framed(self) -> bool:
        """No two messages ever read the same entry."""
        return False

    def check_messages(self, count: int) -> None:
        """As many as are searched one by one."""
        if count > MOST_NUMBERS:
            raise ValueError(
                f"{count} messages: a key of format {self.name!r} has {MOST_NUMBERS} at most; make several keys"
            )

    def decides(self) -> dict[str, object]:
        """See Format."""
        return Format.decides(self)


class GreenListFormat2(_Native2, GreenListFormat):
    """The green list of Kirchenbauer et al.: h and γ."""

    name = "greenlist-v2"
    title = "Kirchenbauer et al. (green list, version 2)"

    def open(self, secret_bytes: bytes) -> NumberedGreenList:
        """See Format."""
        return NumberedGreenList(secret_bytes, self.window, parse_gamma(self.gamma))


class GumbelFormat2(_Native2, GumbelFormat):
    """The Gumbel mark of Aaronson et al.: h."""

    name = "gumbel-v2"
    title = "Aaronson et al. (Gumbel, version 2)"

    def open(self, secret_bytes: bytes) -> NumberedGumbel:
        """See Format."""
        return NumberedGumbel(secret_bytes, self.window)

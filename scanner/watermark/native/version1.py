"""Version 1 of the native watermark, as FORMATS has it: the paper's green list and its Gumbel mark (SPEC)."""

from abc import abstractmethod
from collections.abc import Sequence
from importlib.resources import files
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scanner.watermark.format import Format, Hits, KnownAnswers, ProofPath, UnlabelledColumns
from scanner.watermark.laws import Binomial, Gamma, Law
from scanner.watermark.native import nulls, secret
from scanner.watermark.native.greenlist import GreenList
from scanner.watermark.native.gumbel import Gumbel
from scanner.watermark.native.known_answers import GROUPS
from scanner.watermark.native.version2_marks import Version2GreenList, Version2Gumbel
from scanner.watermark.positions import Dedup, Positions, Tokens, WholeWindows
from schemas.registry import MAX_WINDOW, parse_gamma
from schemas.registry import Gamma as GammaText

SECONDS_A_MESSAGE = 2e-9
"""Seconds that one message of a position may take: three times the slowest kernel's need on a core of its own, doubled
for decoy keys.
"""

SEEN_TOKENS = {0: "1,000", 1: "3,000 to 10,000"}
"""Marked tokens of one user that trials needed to imitate the mark, by window."""

SAFE_WINDOW = 3
"""Smallest window at which no trial imitated the mark from published text."""

MOST_MESSAGES = 2**31
"""Most messages of a key."""


class Native(Format):
    """What the native formats share."""

    version: ClassVar = 1
    suggested: ClassVar = {"window": 4}
    answers = KnownAnswers(files(__package__) / "known_answers.json", GROUPS)
    window: int = Field(ge=0, le=MAX_WINDOW)

    def rule(self) -> WholeWindows:
        """The rule of SPEC §3."""
        return WholeWindows(self.window)

    def can_be_framed(self) -> bool:
        """Always: all messages read one vector, so that message a of token x is message b of token x + a − b."""
        return True

    def cautions(self, messages: int) -> list[str]:
        """Framing, where messages share a vector, and imitation, where a window is short."""
        said = []
        if messages > 1 and self.can_be_framed():
            said.append(
                "it may accuse the innocent: all users of version 1 read one shifted vector, so whoever holds text of "
                "their own mark, or asks the marked model, can make text that names another user; version 2 ends that"
            )
        if self.window < SAFE_WINDOW:
            enough = f" ({SEEN_TOKENS[self.window]} marked tokens suffice)" if self.window in SEEN_TOKENS else ""
            said.append(
                f"window {self.window}: whoever collects text of a mark can imitate it{enough}, and so make text that "
                "is flagged, or that names its user; choose --window 4"
            )
        return said

    @property
    def _groups(self) -> int | None:
        """B, or None where messages share no steps in groups."""
        return None

    def check_messages(self, count: int) -> None:
        """At most as many messages as entries x + m of 32-bit tokens x are counted for."""
        if count > MOST_MESSAGES:
            raise ValueError(f"{count} messages: a key of format {self.name!r} has {MOST_MESSAGES} at most")

    def seconds(self, messages: int) -> float:
        """In proportion to the messages."""
        return messages * SECONDS_A_MESSAGE

    def counted(self, messages: int) -> int:
        """All messages."""
        return messages

    def count_all(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Every message; with groups, pairs of a group and a user (scanner.watermark.native.run_nulls)."""
        if self._groups is None:
            return self.count_hits(secrets, tokens, positions, messages, critical).hits
        keys, gamma = nulls.keys_of(secrets, self.label(), self.version), self.columns().gamma
        rule = parse_gamma(gamma) if gamma else None
        return nulls.pair_hits(keys, tokens, positions, self.window, rule, self._groups, critical)

    @abstractmethod
    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """See CountsHits."""

    def draw_key(self, entropy: bytes) -> bytes:
        """The 32 bytes themselves."""
        return entropy

    def commitment(self, secret_bytes: bytes) -> bytes:
        """The commitment of SPEC §1."""
        return secret.commitment(secret_bytes, self.label(), self.version)

    def dedups(self, wanted: Sequence[Dedup]) -> list[Dedup]:
        """Without a window all positions of a text have one context."""
        return [dedup for dedup in wanted if self.window or dedup != "context"]

    def decides(self) -> dict[str, object]:
        """Method, window and γ, as shard ids had them before labels existed."""
        return self.columns()._asdict()


class GreenListFormat(Native):
    """The green list of Kirchenbauer et al.: h and γ."""

    name = "greenlist"
    title = "Kirchenbauer et al. (green list)"
    suggested: ClassVar = {"window": 4, "gamma": "1/4"}
    gamma: GammaText

    def label(self) -> str:
        """The label of SPEC §1."""
        return secret.label(self.name, self.window, parse_gamma(self.gamma))

    def law(self) -> Law:
        """The law of S green tokens among T."""
        return Binomial(parse_gamma(self.gamma))

    def open(self, secret_bytes: bytes) -> GreenList | Version2GreenList:
        """See Format."""
        return GreenList(secret_bytes, self.window, parse_gamma(self.gamma))

    def proof(self, secret_bytes: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.native.proof import GreenListProof  # flags alone need mpmath

        gamma = parse_gamma(self.gamma)
        return GreenListProof(secret_bytes, self.label(), self.version, self.window, gamma, self._groups)

    def columns(self) -> UnlabelledColumns:
        """See Format."""
        return UnlabelledColumns(self.name, self.window, self.gamma)

    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """Counted by the counters that a search fills."""
        keys, gamma = nulls.keys_of(secrets, self.label(), self.version), parse_gamma(self.gamma)
        return nulls.greenlist_hits(keys, tokens, positions, self.window, gamma, messages, critical, bool(self._groups))


class GumbelFormat(Native):
    """The Gumbel mark of Aaronson et al.: h."""

    name = "gumbel"
    title = "Aaronson et al. (Gumbel)"

    def label(self) -> str:
        """The label of SPEC §1."""
        return secret.label(self.name, self.window)

    def law(self) -> Law:
        """The law of a sum of T exponential variables."""
        return Gamma()

    def open(self, secret_bytes: bytes) -> Gumbel | Version2Gumbel:
        """See Format."""
        return Gumbel(secret_bytes, self.window)

    def proof(self, secret_bytes: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.native.proof import GumbelProof

        return GumbelProof(secret_bytes, self.label(), self.version, self.window, self._groups)

    def columns(self) -> UnlabelledColumns:
        """See Format."""
        return UnlabelledColumns(self.name, self.window)

    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """Counted by the sums that a search of long documents makes."""
        keys = nulls.keys_of(secrets, self.label(), self.version)
        return nulls.gumbel_hits(keys, tokens, positions, self.window, messages, critical, bool(self._groups))

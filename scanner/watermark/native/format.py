"""Define our own formats for FORMATS: the green list and the Gumbel mark of the paper, in versions 1 and 3.

In version 1 (SPEC) all messages read one shifted vector. In version 3 (SPEC_3) every token has a run of entries of its
own. So no change of tokens turns one message's mark into another's, and one message's mark leaves the scores of all
others unchanged. The entries of a step are drawn with one of 2^n seeds, which can be shown one by one, and with a
public random value R. Laws and parameters are the same. Version 3 has the further parameters `groups`, `seeds` and
`beacon`.

A search with groups looks into the group of largest group score, and into every group whose score is as rare as one in
B or rarer (SPEC_3 §4). A message with a small p is found if its group is one of these. This depends on the share of its
score that comes from group steps, and `found_chance` gives the probability. A Gumbel mark is searched by rough scores,
and finds a little less.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from importlib.resources import files
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from scanner.watermark.format import Format, Hits, KnownAnswers, ProofPath
from scanner.watermark.laws import Binomial, Gamma, Law, least_score
from scanner.watermark.native import nulls, secret, step_nulls
from scanner.watermark.native.greenlist import GreenList
from scanner.watermark.native.gumbel import Gumbel
from scanner.watermark.native.known_answers import GROUPS
from scanner.watermark.native.steps import Steps
from scanner.watermark.native.version3_marks import DEFAULT_SEEDS, Version3GreenList, Version3Gumbel
from scanner.watermark.positions import Dedup, Positions, Tokens, WholeWindows
from schemas.key_record import FEWEST_SEEDS, MOST_SEEDS
from schemas.registry import MAX_WINDOW, MOST_NUMBERS, RESERVED_EVERY, parse_gamma
from schemas.registry import Gamma as GammaText

SECONDS_A_MESSAGE = 2e-9
"""Seconds that one message of a position may take.

It is three times the time of the slowest kernel with a core to itself, doubled for decoy keys.
"""

FULL_SCORES = 6
"""Factor by which a search takes longer if each message is scored in full, in windows too (Gumbel of version 3)."""

SEEN_TOKENS = {0: "1,000", 1: "3,000 to 10,000"}
"""Marked tokens of one user that trials needed to imitate the mark, for each window."""

SAFE_WINDOW = 3
"""Smallest window at which no trial imitated the mark from published text."""

MOST_MESSAGES = 2**31
"""Largest number of messages of a key."""


class NativeFormat(Format):
    """The common part of the native formats."""

    version: ClassVar = 1
    suggested: ClassVar = {"window": 4}
    scores_parts: ClassVar = True
    answers = KnownAnswers(files(__package__) / "known_answers.json", GROUPS)
    window: int = Field(ge=0, le=MAX_WINDOW)

    def label(self) -> str:
        """Return the label of SPEC §1."""
        return secret.label(self.name, self.window, self._share)

    def rule(self) -> WholeWindows:
        """Return the rule of SPEC §3."""
        return WholeWindows(self.window)

    def can_be_framed(self) -> bool:
        """Return True: all messages read one vector, so message a of token x is message b of token x + a − b."""
        return True

    def cautions(self, messages: int) -> list[str]:
        """Warn of framing if messages share a vector, and of imitation if a window is short."""
        sentences = []
        if messages > 1 and self.can_be_framed():
            sentences.append(
                "it can accuse the innocent. All users of version 1 share one shifted vector, so a user who has marked "
                "text of their own can make text that names another user. Keys of version 3 prevent this"
            )
        if self.window < SAFE_WINDOW:
            hint = f" ({SEEN_TOKENS[self.window]} marked tokens suffice)" if self.window in SEEN_TOKENS else ""
            sentences.append(
                f"window {self.window}: a person who collects marked text can imitate its mark{hint}, and so make text "
                "that is flagged or that names its user. Choose --window 4"
            )
        return sentences

    def lacks_for_levels(self, messages: int) -> str:
        """See CountsByLevels."""
        if messages == 1 or self.version == 3:
            return ""
        if self.version == 2:
            return "its messages are not searched by levels"
        return "its messages share draws, and are not searched by levels"

    @property
    def _share(self) -> Fraction | None:
        """Return γ. None without a green list."""
        return None

    def check_messages(self, count: int) -> None:
        """Refuse more messages than the entries x + m of 32-bit tokens x have numbers for."""
        if count > MOST_MESSAGES:
            raise ValueError(f"{count} messages: a key of format {self.name!r} has at most {MOST_MESSAGES}")

    def seconds(self, messages: int) -> float:
        """Return seconds in proportion to the messages."""
        return messages * SECONDS_A_MESSAGE

    def counted(self, messages: int) -> int:
        """Return the number of all messages."""
        return messages

    def count_all(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Count every message."""
        return self.count_hits(secrets, tokens, positions, messages, critical).hits

    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """See CountsHits."""
        keys = nulls.keys_of(secrets, self.label())
        return nulls.count_hits(keys, tokens, positions, self.window, self._share, messages, critical)

    def draw_key(self, entropy: bytes) -> bytes:
        """Return the 32 bytes themselves."""
        return entropy

    def commitment(self, secret_bytes: bytes) -> bytes:
        """Return the commitment of SPEC §1."""
        return secret.commitment(secret_bytes, self.label(), self.version)

    def dedups(self, wanted: Sequence[Dedup]) -> list[Dedup]:
        """Leave out `context` if there is no window, because then all positions of a text have one context."""
        return [dedup for dedup in wanted if self.window or dedup != "context"]

    def digest_fields(self) -> dict[str, object]:
        """Return the fields that shard ids and draws of decoys hash: name, window and γ."""
        return {"method": self.name, "window": self.window, "gamma": self.model_dump(mode="json").get("gamma")}


class GreenListFormat(NativeFormat):
    """The green list of Kirchenbauer et al.: h and γ."""

    name = "greenlist"
    title = "Kirchenbauer et al. (green list)"
    suggested: ClassVar = {"window": 4, "gamma": "1/4"}
    gamma: GammaText

    @property
    def _share(self) -> Fraction:
        return parse_gamma(self.gamma)

    def law(self) -> Law:
        """Return the law of S green tokens among T."""
        return Binomial(self._share)

    def open(self, secret_bytes: bytes) -> GreenList | Version3GreenList:
        """See Format."""
        return GreenList(secret_bytes, self.window, self._share)

    def proof(self, secret_bytes: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.native.proof import GreenListProof  # late: only flags need mpmath

        return GreenListProof(secret_bytes, self.label(), self.window, self._share)


class GumbelFormat(NativeFormat):
    """The Gumbel mark of Aaronson et al.: h."""

    name = "gumbel"
    title = "Aaronson et al. (Gumbel)"

    def law(self) -> Law:
        """Return the law of a sum of T exponential variables."""
        return Gamma()

    def open(self, secret_bytes: bytes) -> Gumbel | Version3Gumbel:
        """See Format."""
        return Gumbel(secret_bytes, self.window)

    def proof(self, secret_bytes: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.native.proof import GumbelProof

        return GumbelProof(secret_bytes, self.label(), self.window)


def users_of(groups: int) -> int:
    """Return the fewest users that fit B groups. A twentieth of the messages is reserved (SPEC_3 §3)."""
    return groups**2 * (RESERVED_EVERY - 1) // RESERVED_EVERY


def groups_for(users: float) -> int:
    """Return the smallest B into which so many users fit."""
    groups = max(2, math.isqrt(int(users)))
    while users_of(groups) < users:
        groups += 1
    return groups


class _NativeFormat3(NativeFormat):
    """The common part of the formats of version 3.

    groups: B. The B² messages share steps in groups. None: no groups.
    seeds: n, of 2^n seeds.
    beacon: R as 64 hex digits. None: the key's record names a beacon that has no value yet.
    """

    version: ClassVar = 3
    answers = KnownAnswers(files(__package__) / "known_answers_3.json", GROUPS)

    groups: int | None = Field(default=None, ge=2, le=MOST_NUMBERS)
    seeds: int = Field(default=DEFAULT_SEEDS, ge=FEWEST_SEEDS, le=MOST_SEEDS)
    beacon: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _groups_need_a_window(self) -> Self:
        if self.groups is not None and not self.window:
            raise ValueError("groups need a window of 1 or more: the window decides which steps a group shares")
        return self

    def can_be_framed(self) -> bool:
        """Return False: two messages share entries only in the steps of a group, which never name a user."""
        return False

    def check_messages(self, count: int) -> None:
        """Refuse more messages than can be searched one by one. With groups, refuse all numbers except B²."""
        if self.groups is not None and count != self.groups**2:
            raise ValueError(f"{count} messages: a key with groups = {self.groups} has {self.groups**2}")
        if self.groups is None and count > MOST_NUMBERS:
            raise ValueError(
                f"{count} messages: a key of format {self.name!r} without groups has at most {MOST_NUMBERS}; give "
                "--users for a key with groups, which has room for a thousand million"
            )

    def found_chance(self, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the chance that a search finds the message. With groups it must look into the message's group.

        For a Gumbel mark it is an upper bound, because its search also misses a few messages with low rough scores.
        """
        law = self.law()
        if self.groups is None or law is None:
            return super().found_chance(scored, p)
        return found_chance(law, self.groups, scored, p)

    def seconds(self, messages: int) -> float:
        """Return seconds in proportion to the messages.

        With groups, in proportion to the part that a search of groups reads.

        Groups are read in a third of the steps, and the users of eight groups in the others.
        """
        return super().seconds(messages if self.groups is None else 6 * self.groups)

    def counted(self, messages: int) -> int:
        """Return the number of all messages. With groups, the number of pairs of a group and a user."""
        return messages if self.groups is None else step_nulls.Paired.of(self.groups).pairs

    def label(self) -> str:
        """Return the label of SPEC_3 §1."""
        return secret.label(self.name, self.window, self._share, self.groups, self.seeds)

    def seed_key(self, secret_bytes: bytes) -> NDArray[np.uint32]:
        """See DrawsFromSeeds."""
        return secret.derive_seed_key(secret_bytes, self.label()).words

    def digest_fields(self) -> dict[str, object]:
        """Return the fields that shard ids hash: the label, and R, which changes all draws."""
        return {**Format.digest_fields(self), "beacon": self.beacon}

    def count_all(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Count every message. With groups, count pairs of a group and a user (scanner.watermark.native.step_nulls)."""
        if self.groups is None:
            return self.count_hits(secrets, tokens, positions, messages, critical).hits
        return step_nulls.pair_hits(self._steps(secrets, tokens, positions), self._share, self.groups, critical)

    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """See CountsHits."""
        steps = self._steps(secrets, tokens, positions)
        return step_nulls.count_hits(steps, self._share, messages, critical, self.groups is not None)

    def _steps(self, secrets: Sequence[bytes], tokens: Tokens, positions: Positions) -> Steps:
        label, beacon = self.label(), self._beacon()
        return step_nulls.steps_under(secrets, label, beacon, self.seeds, tokens, positions, self.window)

    def _beacon(self) -> bytes:
        """Return R.

        Raises:
            ValueError: it has no value yet.
        """
        if self.beacon is None:
            raise ValueError(
                "its record names a beacon whose value is not set yet: a key marks and scans nothing until its "
                "parameter `beacon` holds R, 64 hex digits (SPEC_3 §2)"
            )
        return bytes.fromhex(self.beacon)


class GreenListFormat3(_NativeFormat3, GreenListFormat):
    """The green list of Kirchenbauer et al.: h and γ."""

    name = "greenlist-v3"
    title = "Kirchenbauer et al. (green list, version 3)"

    def open(self, secret_bytes: bytes) -> Version3GreenList:
        """See Format."""
        return Version3GreenList(secret_bytes, self.window, self._share, self.groups, self.seeds, self._beacon())

    def proof(self, secret_bytes: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.native.proof import GreenListProof3  # late: only flags need mpmath

        return GreenListProof3(secret_bytes, self.label(), self.window, self._share, self.groups, self._beacon())


class GumbelFormat3(_NativeFormat3, GumbelFormat):
    """The Gumbel mark of Aaronson et al.: h."""

    name = "gumbel-v3"
    title = "Aaronson et al. (Gumbel, version 3)"

    def seconds(self, messages: int) -> float:
        """Return seconds in proportion to the messages.

        Without groups each message is scored in full, which takes longer.
        """
        return super().seconds(messages) * (1 if self.groups else FULL_SCORES)

    def open(self, secret_bytes: bytes) -> Version3Gumbel:
        """See Format."""
        return Version3Gumbel(secret_bytes, self.window, self.groups, self.seeds, self._beacon())

    def proof(self, secret_bytes: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.native.proof import GumbelProof3

        return GumbelProof3(secret_bytes, self.label(), self.window, self.groups, self._beacon())


def of_the_paper(
    gammas: Sequence[str], windows: Sequence[int], version: int = 1, groups: int | None = None
) -> list[Format]:
    """Return both marks of the paper for every window: green lists of every γ, then Gumbel.

    Args:
        gammas: γ of each green list, such as 1/4.
        windows: h of each mark.
        version: 1, the paper's own, or 3, with all bits of R 0. Experiments and audits draw their keys themselves.
        groups: B, for version 3. None: no groups.
    """
    green_list: Callable[..., Format] = GreenListFormat
    gumbel: Callable[..., Format] = GumbelFormat
    if version == 3:
        drawn: dict[str, Any] = {"groups": groups, "beacon": "00" * 32}
        green_list, gumbel = partial(GreenListFormat3, **drawn), partial(GumbelFormat3, **drawn)
    green = [green_list(window=window, gamma=gamma) for gamma in gammas for window in windows]
    return green + [gumbel(window=window) for window in windows]


_LENGTHS = 24  # numbers of positions between which the found share is interpolated
_SPLITS = 7  # numbers of group steps that represent all of them
_SCORES = 200  # parts of the range of group scores, if scores are real numbers


def found_chance(law: Law, groups: int, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the chance that a message has a p-value of p or less, and its group is looked into: float64[U, J].

    At most eight groups are looked into. This limit lowers the chance by no measurable amount.

    Args:
        law: law of the score.
        groups: B.
        scored: T, int64[U], each above 0.
        p: of the message alone, float64[J], between 0 and 1.
    """
    grid = np.geomspace(float(scored.min()), float(scored.max()), _LENGTHS)
    lengths = np.unique(np.round(grid).astype(np.int64))
    passes = np.stack([least_score(law, lengths, float(np.log10(p_limit))) for p_limit in p], axis=1)
    shares = np.array([_share(law, groups, int(t), least) for t, least in zip(lengths, passes, strict=True)])
    share = np.stack([np.interp(np.log(scored), np.log(lengths), length_shares) for length_shares in shares.T], axis=1)
    return np.asarray(share * _attained(law, scored, p), np.float64)


def _attained(law: Law, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest attainable p at or below each p, or 0 without one: float64[U, J]."""
    if not law.discrete:
        return np.broadcast_to(p, (len(scored), len(p)))
    least = np.stack([least_score(law, scored, float(np.log10(p_limit))) for p_limit in p], axis=1)
    attained_p = 10.0 ** law.log10_p(np.minimum(least, scored[:, None]), scored[:, None])
    return np.where(least <= scored[:, None], attained_p, 0.0)


def _share(law: Law, groups: int, scored: int, passes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, of the messages that reach each score over T positions, the share whose group is looked into: float64[J].

    passes: the scores, float64[J].
    """
    spread = 3 * np.sqrt(scored * 2 / 9)
    splits = np.unique(np.clip(np.round(np.linspace(scored / 3 - spread, scored / 3 + spread, _SPLITS)), 0, scored))
    from scipy import special  # type: ignore[import-untyped] # late: a tenth of a second

    weights = special.bdtr(splits, scored, 1 / 3) - special.bdtr(splits - 1, scored, 1 / 3)
    mass_looked_into, total_mass = np.zeros(len(passes)), np.zeros(len(passes))
    for group_scored, weight in zip(splits.astype(np.int64).tolist(), weights.tolist(), strict=True):
        score, chance, looked_into = _group_scores(law, groups, group_scored, float(passes.max()))
        shortfall = np.maximum(passes[None, :] - score[:, None], 0)
        user_chance = np.where(
            shortfall > law.largest(scored - group_scored), 0, 10.0 ** law.log10_p(shortfall, scored - group_scored)
        )
        mass_looked_into += weight * (chance * looked_into) @ user_chance
        total_mass += weight * chance @ user_chance
    return np.divide(mass_looked_into, total_mass, out=np.ones(len(passes)), where=total_mass > 0)


def _group_scores(
    law: Law, groups: int, scored: int, largest_score: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return scores of a group over its T_G steps, up to a largest one, with two chances of each.

    The first is the chance of the score. The second is the chance that a group with this score is looked into.
    """
    if law.discrete or not scored:
        edges = np.arange(scored + 1.0)
        score = edges
    else:
        mean, deviation = scored * law.mean, np.sqrt(scored * law.variance)
        edges = np.linspace(max(0.0, mean - 8 * deviation), min(largest_score, mean + 14 * deviation + 40), _SCORES + 1)
        score = edges + (edges[1] - edges[0]) / 2
    reaches = np.append(10.0 ** law.log10_p(edges, scored), 0.0)
    chance, below = -np.diff(reaches), 1.0 - reaches
    largest = np.diff(below**groups) / groups
    is_rare = reaches[:-1] <= 10.0**1e-9 / groups
    largest = np.divide(largest, chance, out=np.zeros(len(chance)), where=chance > 0)
    return score, chance, np.where(is_rare, 1.0, largest)

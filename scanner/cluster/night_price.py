"""What a night would cost, from measured documents: linear in their tokens, and a proof for each flag."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from scanner.cluster.quick import Measured
from scanner.errors import Refused


class NightPrice(NamedTuple):
    """Core-seconds of a night under one key, by stage; low, high: its sum by the cheapest and the dearest rounds."""

    key_format: str
    stages: dict[str, float]
    low: float
    high: float
    rounds: int

    @property
    def seconds(self) -> float:
        """Core-seconds of all stages."""
        return sum(self.stages.values())


def price_night(
    measured: Sequence[Measured], documents: float, tokens: float, users: float, flagged: float
) -> list[NightPrice]:
    """Price of a night for each format that was measured with so many users.

    Args:
        measured: of scanner.cluster.quick.
        documents: of the night.
        tokens: of a document.
        users: of a key.
        flagged: share of the documents.

    Raises:
        Refused: it was measured with other numbers of users, or not at two lengths.
    """
    fitting = [one for one in measured if one.users == users]
    if not fitting:
        known = ", ".join(f"{number:g}" for number in sorted({one.users for one in measured}))
        raise Refused(
            f"--users {users:g}: measured for {known or 'none'}; give one of these, or measure with "
            f"`brickscan bench --quick --users {users:g}`"
        )
    by_format: dict[str, list[Measured]] = {}
    for one in fitting:
        by_format.setdefault(one.key_format, []).append(one)
    if any(len({one.tokens for one in lengths}) != 2 or len(lengths) != 2 for lengths in by_format.values()):
        raise Refused("--figures: two lengths of documents are needed for each format; measure again")
    return [_price(lengths, documents, tokens, flagged) for lengths in by_format.values()]


def _price(lengths: Sequence[Measured], documents: float, tokens: float, flagged: float) -> NightPrice:
    short, long = sorted(lengths, key=lambda one: one.tokens)
    share = (tokens - short.tokens) / (long.tokens - short.tokens)

    def at(one: float, other: float) -> float:
        return max(one + share * (other - one), 0.0)

    def middle(of: Measured, stage: str) -> float:
        return median(cost[stage] for cost in of.rounds)

    sums = [[sum(cost.values()) for cost in of.rounds] for of in (short, long)]
    proofs = flagged * (long.proof or 0.0) * tokens / long.tokens
    stages = {stage: documents * at(middle(short, stage), middle(long, stage)) for stage in short.rounds[0]}
    stages["prove"] += documents * proofs
    low, high = (documents * (at(least(sums[0]), least(sums[1])) + proofs) for least in (min, max))
    return NightPrice(short.key_format, stages, low, high, len(short.rounds))

"""Weights of keys: the share of a false-positive rate that each key may use up, fixed when it is made and for ever.

If all keys of a registry were corrected for their number, each new key would let the old keys' texts be scanned again
at a rate that is spent already: P(ever flagged falsely) would grow as α (1 + 1/2 + 1/3 + …). With weights that sum to 1
at most it stays α, however many keys come. The keys that a registry begins with share equally; once others come, these
keep one half, and the j-th that comes has 1/(2 j (j + 1)), which sums to the other half.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction

from scanner.errors import Refused
from schemas.registry import MasterKey


def first_keys(keys: Sequence[MasterKey], counts: Callable[[MasterKey], bool]) -> list[MasterKey]:
    """Keys of a registry that shared equally before any had a weight; none where no key has a weight."""
    counting = [key for key in keys if counts(key)]
    if not counting or counting[0].one_of is None:
        return []
    first = counting[: counting[0].one_of // 2]
    return first if all(key.one_of == 2 * len(first) for key in first) else []


SETTING_UP = timedelta(days=1)
"""Time from the making of a registry's first key in which it is being set up: the keys of this time share equally."""


def with_weights(
    keys: Sequence[MasterKey], new: MasterKey, counts: Callable[[MasterKey], bool]
) -> tuple[MasterKey, ...]:
    """The keys of a registry, the new one last, all with their weights unless the registry is being set up.

    Args:
        keys: the registry's keys, in their order.
        new: the new key.
        counts: whether a key gives p-values; other keys have no weight.

    Raises:
        Refused: weights were edited, and nothing is left for another key.
    """
    counting = [key for key in keys if counts(key)]
    if not counting or not counts(new):
        return (*keys, new)
    if all(key.one_of is None for key in counting):
        if new.created_at - min(key.created_at for key in keys) < SETTING_UP:
            return (*keys, new)
        half = {"one_of": 2 * len(counting)}
        keys = [key.model_copy(update=half) if counts(key) else key for key in keys]
    left = 1 - sum((Fraction(1, key.one_of) for key in keys if key.one_of is not None), Fraction(0))
    if left <= 0:
        raise Refused(
            "keys: the weights of the keys (1/one_of in keys.toml) sum to 1, and none is left for another; they are "
            "fixed when a key is made: restore the values that were there"
        )
    number = -((-1) // (2 * left))  # j, since 1/(2 j) is left before the j-th
    return (*keys, new.model_copy(update={"one_of": 2 * number * (number + 1)}))

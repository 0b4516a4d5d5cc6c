"""What opened keys of other stacks' formats share: they show their format's label and nothing of the key."""

from typing import Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Basis, Format
from scanner.watermark.laws import Law
from scanner.watermark.positions import PositionRule

Secret = TypeVar("Secret")


class Held(Generic[Secret]):
    """A secret value, or what was derived from one: shown in no repr, never pickled."""

    def __init__(self, value: Secret) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Held(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never pickled; open the key again where it is needed")


class Opened(Generic[Secret]):
    """A format under one secret, less its score (scanner.watermark.format.Watermark).

    Args:
        form: the format with its parameters.
        rule: which positions it scores.
        keys: what the secret's bytes stand for.
    """

    def __init__(self, form: Format, rule: PositionRule, keys: Secret) -> None:
        self.label: str = form.label()
        self.law: Law | None = form.law()
        self.basis: Basis = form.basis()
        self.rule = rule
        self._keys = Held(keys)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds a key and is never pickled; open the key again where it is needed"
        )


def check_message(messages: NDArray[np.int64] | int) -> None:
    """Raise ValueError for a message that a mark without messages cannot have: any but 0."""
    if np.any(messages):
        raise ValueError(
            f"message {np.max(np.abs(messages))} is out of range; the mark carries none, which is message 0"
        )

"""What the formats of other stacks share: their opened keys show a label and nothing of the key, and have decoys."""

import hashlib
from typing import Generic, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from scanner.watermark.format import Basis, Format, Watermark
from scanner.watermark.laws import Law
from scanner.watermark.positions import PositionRule

Secret = TypeVar("Secret")


class Held(Generic[Secret]):
    """A secret value, or a value derived from one: shown in no repr, never pickled."""

    def __init__(self, value: Secret) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Held(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never pickled; open the key again where it is needed")


class StackFormat(Format):
    """A format of another stack, which draws its keys."""

    if_guessed = "Whoever guesses it makes the mark: have the stack mark with a key that is drawn at random"

    def decoy_key(self, entropy: bytes) -> bytes:
        """The secret that 32 uniform bytes make: its first bytes, as many as a secret has."""
        return entropy[: self.secret_bytes.stop - 1]


class DrawnFormat(StackFormat):
    """A format whose p-values hold over the draw of its key, under position rules that no key changes."""

    def draw_key(self, entropy: bytes) -> bytes:
        """See DrawsKeys."""
        return self.decoy_key(entropy)


MOST_TOKENS = 2**22
"""Most tokens of a vocabulary, sixteen times the largest known: to shuffle it takes 16 MiB and 10 ms."""


CPU = "CPU generator"


class VocabularyFormat(StackFormat):
    """A format whose draws cover a whole vocabulary: the width of the model's logits, padding included."""

    vocab_size: int = Field(ge=2, le=MOST_TOKENS, description="the width of the model's logits, in its config.json")

    generator = CPU

    def vocabulary(self) -> int | None:
        """See Format."""
        return self.vocab_size

    @property
    def green(self) -> int:
        """How many tokens of the vocabulary are green; 0 in a format without green lists."""
        return 0


class GreenListFormat(VocabularyFormat):
    """A format that shuffles a vocabulary and makes its first tokens green."""

    def share(self) -> float:
        """Share of green tokens, as the stack's parameter has it."""
        raise NotImplementedError

    @property
    def green(self) -> int:
        """How many tokens of the vocabulary are green, as the stacks round it."""
        return int(self.vocab_size * self.share())

    @model_validator(mode="after")
    def _some_are_green(self) -> Self:
        if not 0 < self.green < self.vocab_size:
            raise ValueError(f"of {self.vocab_size:,} tokens {self.green:,} would be green: some must be, and not all")
        return self


class Opened:
    """A format under one secret, less its score (scanner.watermark.format.Watermark).

    Args:
        form: the format with its parameters.
        rule: which positions it scores.
        secret: as `form` takes it.
    """

    def __init__(self, form: StackFormat, rule: PositionRule, secret: bytes) -> None:
        self.label: str = form.label()
        self.law: Law | None = form.law()
        self.basis: Basis = form.basis()
        self.rule = rule
        self._form, self._secret = form, Held(secret)
        self._decoys: Held[dict[int, Watermark]] = Held({})

    def decoy(self, number: int) -> Watermark:
        """See RanksAmongDecoys. Decoys are derived from the secret, so that every scan meets the same ones."""
        known = self._decoys.value
        if number not in known:
            known[number] = self._open_decoy(self._form.decoy_key(self._entropy(number)))
        return known[number]

    def _open_decoy(self, secret: bytes) -> Watermark:
        return self._form.open(secret)

    def _entropy(self, number: int) -> bytes:
        """32 bytes that reveal nothing of the secret."""
        of, secret = f"{self.label} {number}".encode("ascii"), self._secret.value
        key = secret if len(secret) <= 64 else hashlib.blake2b(secret).digest()  # blake2b takes no longer key
        return hashlib.blake2b(of, key=key, digest_size=32, person=b"rank-decoys-v1").digest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds a key and is never pickled; open the key again where it is needed"
        )


def check_message(messages: NDArray[np.int64] | int) -> None:
    """Raise ValueError for a message other than 0, which a mark without messages cannot have."""
    if np.any(messages):
        raise ValueError(
            f"message {np.max(np.abs(messages))} is out of range; the mark carries none, which is message 0"
        )

"""A third format, unknown to scanner/: half of all tokens count, by a hash of key and token.

It carries no message and marks no text; it has no GPU path, power, second score, commitment or counters.
"""

import hashlib
from fractions import Fraction
from importlib.resources import files

import numpy as np
from pydantic import Field

from scanner.cluster import Worker
from scanner.watermark.format import Answers, Columns, Format
from scanner.watermark.formats import FORMATS
from scanner.watermark.laws import Binomial
from scanner.watermark.positions import WholeWindows
from scanner.watermark.stacks.shared import Held


class ToyFormat(Format):
    name = "toy"
    title = "A toy"
    answers = Answers(files(__package__) / "toy.json", {})
    salt: int = Field(default=0, ge=0)

    def label(self):
        return f"toy;salt={self.salt}"

    def law(self):
        return Binomial(Fraction(1, 2))

    def rule(self):
        return WholeWindows(0)

    def open(self, secret):
        return Toy(self, secret)

    def seconds(self, messages):
        return 1e-5

    def columns(self):
        return Columns("toy", 0)

    def draw_key(self, entropy):
        return entropy


class LawlessFormat(ToyFormat):
    """The same format without a known law of its scores."""

    name = "lawless"

    def label(self):
        return f"lawless;salt={self.salt}"

    def law(self):
        return None

    def columns(self):
        return Columns("lawless", 0)


class Toy:
    def __init__(self, form, secret):
        self.label, self.law, self.basis, self.rule = form.label(), form.law(), form.basis(), form.rule()
        self._secret = Held(secret)

    def counts(self, token: int) -> bool:
        return bool(hashlib.blake2b(int(token).to_bytes(4, "big"), key=self._secret.value).digest()[0] & 1)

    def score(self, tokens, positions, messages):
        hits = np.array([self.counts(token) for token in tokens.ids[positions.index]], np.int64)
        return np.array([hits[a:b].sum() for a, b in zip(positions.offsets, positions.offsets[1:], strict=False)])


class ToyWorker(Worker):
    """A worker that registers the toy formats in its process."""

    def __init__(self, *arguments):
        FORMATS.update(toy=ToyFormat, lawless=LawlessFormat)
        super().__init__(*arguments)

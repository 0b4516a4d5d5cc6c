"""Add a watermark format: half of all tokens count, by a keyed hash of the token alone.

    python docs/examples/add_a_format.py TOKENIZER.json REGISTRY

A real format stands in a file of scanner/watermark, and in the table of formats: docs/contributing.md has the list.
This one is entered for the life of this process. It marks for nobody, but finds a text whose tokens all count.
"""

import hashlib
import sys
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scanner.detection.one_text import TextCheck, check_text
from scanner.registry import load_registry, new_key, open_key
from scanner.text import HuggingFaceTokenizer
from scanner.watermark import Positions, Tokens
from scanner.watermark.format import Format, KnownAnswers
from scanner.watermark.formats import FORMATS
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.laws import Binomial
from scanner.watermark.positions import WholeWindows


class HalfOfAll(Format):
    """The format with its parameters chosen: its fields are what `[keys.parameters]` may hold."""

    name = "half-of-all"
    title = "Half of all tokens count"
    answers = KnownAnswers(files("scanner.watermark") / "none.json", {})  # known answers, for the selftest
    salt: int = Field(default=0, ge=0)

    def label(self) -> str:
        """Names format and parameters for ever: commitments and shard ids hash it."""
        return f"half-of-all;salt={self.salt}"

    def law(self) -> Binomial:
        """Return the law of a score without a mark, exact: each distinct token counts with probability 1/2."""
        return Binomial(Fraction(1, 2))

    def rule(self) -> WholeWindows:
        """Which tokens are scored: all, each distinct one once."""
        return WholeWindows(0)

    def open(self, secret: bytes) -> "Opened":
        """Open the format under a secret of 16 to 64 bytes."""
        return Opened(self, secret)

    def seconds(self, messages: int) -> float:
        """About what a position costs, by which a worker's patience is priced."""
        return 1e-5

    def draw_key(self, entropy: bytes) -> bytes:
        """Draw a key that marks nothing, for decoys: with it, every scan checks the law on its own traffic."""
        return entropy


class Opened:
    """The format under one secret, which `HiddenValue` keeps out of every repr, log and pickle."""

    def __init__(self, form: HalfOfAll, secret: bytes) -> None:
        self.label, self.law, self.basis, self.rule = form.label(), form.law(), form.basis(), form.rule()
        self._secret = HiddenValue(secret)

    def __repr__(self) -> str:
        return f"Opened({self.label})"

    def counts(self, token: int) -> bool:
        """Whether a token counts under this secret."""
        digest = hashlib.blake2b(int(token).to_bytes(4, "big"), key=self._secret.value, salt=b"half")
        return bool(digest.digest()[0] & 1)

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """How many scored tokens count in each of D documents: int64[D]."""
        hits = np.array([self.counts(token) for token in tokens.ids[positions.index]], np.int64)
        return np.array([hits[a:b].sum() for a, b in zip(positions.offsets, positions.offsets[1:], strict=False)])


def main(tokenizer_json: Path, registry: Path) -> None:
    """Make a key of the format, a text whose tokens all count, and look at that and at another."""
    FORMATS[HalfOfAll.name] = HalfOfAll
    key = new_key(registry, "half", format=HalfOfAll.name, salt=3, messages=1, tokenizer=tokenizer_json)
    mark = open_key(registry, load_registry(registry).keys[0])
    print(mark, "commitment:", key.commitment)

    tokenizer = HuggingFaceTokenizer(tokenizer_json.read_bytes())
    words = "time year people way day man thing woman life child world school state family student group country"
    words += " problem hand part place case week company system program question work government number night point"
    words += " home water room mother area money story fact month lot right study book eye job word business issue"
    ids = {word: tokenizer.encode([" " + word]).ids for word in words.split()}
    counting = [word for word, tokens in ids.items() if len(tokens) == 1 and mark.counts(tokens[0])]
    for text in (" " + " ".join(counting), " " + words):
        (verdict,) = check_text(TextCheck.of_registry(registry, [], 1e-3), text.encode())
        print(f"{verdict['score']:.0f} of {verdict['scored']} count: flagged {verdict['flagged']}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

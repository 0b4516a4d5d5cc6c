"""What a watermark format provides.

The rest of scanner knows formats by this file and abilities.py alone, and finds them by name in FORMATS. A `Format` is
a format with its parameters chosen, and no secret; opened with one it is a `Watermark`, which scores; its `Law` says
what a score means. What only some formats can do is in abilities.py.

Scoring on a GPU, marking text, power and second scores are lines in tables of scanner.gpu, scanner.generation,
scanner.power and scanner.detection.second_score, so that nothing here imports what they need.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from scanner.watermark.laws import Law
from scanner.watermark.positions import Dedup, PositionRule, Positions, Tokens


class Watermark(Protocol):
    """A format under one secret: D documents in, scores out. Shown in no repr, never pickled, opened where needed.

    Scores are those of which the law is stated, which need not be what the stack that made the mark reports: where its
    draws are rounded, the score is computed from the draw's word, at the lower end of its cell, so that no p-value is
    too small. The stack's own score is for its known answers.
    """

    @property
    def label(self) -> str:
        """The format's label."""

    @property
    def law(self) -> Law | None:
        """The law of `score`: the format's law."""

    @property
    def basis(self) -> "Basis":
        """Basis of the p-values: the format's basis."""

    @property
    def rule(self) -> PositionRule:
        """Which positions are scored. Keys of one tokenizer and of equal rules share them."""

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Score of one message a document, or of one for all: int64[D] or float64[D], summed in order of position.

        Raises:
            ValueError: a message below 0.
        """


class Basis(NamedTuple):
    """What a p-value holds over: the draw of the key, or an assumption.

    bits: bits of the key that the draws depend on. assumed: the format's hash is assumed to behave as random, or its
    key is public; then anybody can make the mark, and nobody is ever named by it.
    """

    bits: int
    assumed: bool = False

    @property
    def proven(self) -> bool:
        """Whether they hold over a key that nobody can search, by what its cipher is believed to be."""
        return not self.assumed and self.bits >= 128

    def __str__(self) -> str:
        """The basis as tables have it: `key`, `key-64-bits`, `assumed`."""
        return "assumed" if self.assumed else "key" if self.proven else f"key-{self.bits}-bits"


class Columns(NamedTuple):
    """What columns of tables older than `label` say of a format; window is its context width."""

    method: str
    window: int
    gamma: str | None = None


def format_name(label: str) -> str:
    """Name of the format that a label belongs to."""
    return label.partition(";")[0]


Case = dict[str, Any]
Pairs = Iterator[tuple[str, Any, Any]]
"""Comparisons of a known answer: a name, the file's value, this machine's value."""


class Answers(NamedTuple):
    """Known answers: the file that ships with the code, and for each of its groups the comparisons of one case."""

    shipped: Traversable
    groups: Mapping[str, Callable[[Case], Pairs]]


class Format(BaseModel, ABC):
    """A format with its parameters chosen. A subclass's fields are the parameters under [keys.parameters] in keys.toml.

    Equal formats have equal parameters. Code outside a format passes the parameters on and reads none of them.
    """

    # inputs are hidden in errors: a pasted secret must not be printed back
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    name: ClassVar[str]
    """Name of the format, as in keys.toml and in FORMATS; its labels begin with it."""

    secret_bytes: ClassVar[range] = range(16, 65)
    """Bytes that a secret may have."""

    if_guessed: ClassVar[str | None] = None
    """Advice for a secret that can be guessed; None: draw another."""

    generator: ClassVar[str | None] = None
    """Generator whose random numbers are read, if the stack draws others on another device; None where it does not
    matter.
    """

    title: ClassVar[str]
    """Title for people, such as `Kirchenbauer et al. (green list)`."""

    version: ClassVar[int | None] = None
    """Version of this project's own formats; None: a stack's format."""

    suggested: ClassVar[Mapping[str, Any]] = {}
    """Parameters of a new key for which the user chose none."""

    answers: ClassVar[Answers]
    """Known answers, of the specification or of the stack that makes the mark."""

    @abstractmethod
    def label(self) -> str:
        """Name and parameters as one line of ASCII, such as `greenlist;h=4;gamma=1/4`: other parameters, another label.

        It stands in commitments, tables and shard ids, and never changes.
        """

    @abstractmethod
    def law(self) -> Law | None:
        """The law of the score; None where none is known: then there are scores, and no p-value."""

    @abstractmethod
    def rule(self) -> PositionRule:
        """The rule of which positions are scored; it is the same for every key."""

    @abstractmethod
    def open(self, secret: bytes) -> Watermark:
        """Open it with a secret.

        Raises:
            ValueError: a secret that cannot be one; its bytes are not repeated.
        """

    @abstractmethod
    def seconds(self, messages: int) -> float:
        """Seconds to score one position under so many messages on a core, generously: the stall limit's price."""

    @abstractmethod
    def columns(self) -> Columns:
        """What the older columns of tables say of the format."""

    def basis(self) -> Basis:
        """What its p-values hold over. With fewer than 128 bits its law is `Floored`, and it commits to nothing."""
        return Basis(128)

    def found_chance(self, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
        """How likely a search finds a message of unmarked text with a p-value at or below p: at most, float64[U, J].

        Args:
            scored: T, int64[U], each above 0.
            p: of the message alone, float64[J].
        """
        return np.broadcast_to(p, (len(scored), len(p)))

    def can_be_framed(self) -> bool:
        """Whether somebody with marked text and no key can make text of a message that is not theirs."""
        return self.basis().bits < 64

    def cautions(self, messages: int) -> list[str]:
        """Sentences for whoever reads the verdicts of a key of so many messages: who else can make its marks."""
        del messages
        if self.generator is None:
            return []
        return [
            f"what torch's {self.generator} draws is read: text that the same code marked on a GPU has another mark, "
            "and is not found"
        ]

    def check_messages(self, count: int) -> None:
        """Refuse a number of messages that no key of the format can have: any but 1, where its marks carry none.

        Raises:
            ValueError: with what is allowed.
        """
        if count != 1:
            raise ValueError(f"marks of format {self.name!r} carry no message; give 1")

    def vocabulary(self) -> int | None:
        """Size of the vocabulary that a draw is over, if it is a parameter; None: any size."""
        return None

    def dedups(self, wanted: Sequence[Dedup]) -> list[Dedup]:
        """The wanted choices of repeats under which more than one position of a text is scored."""
        return list(wanted)

    def decides(self) -> dict[str, object]:
        """What a shard's id contains of the parameters: the label; formats older than labels keep their old fields."""
        return {"label": self.label()}

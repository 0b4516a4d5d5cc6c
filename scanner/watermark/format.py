"""Define the interface of a watermark format: the required part, and the optional abilities.

The rest of scanner uses a format only through this file, through its rule of positions (scanner.watermark.positions)
and, for counts by levels, through scanner.watermark.by_levels. It looks formats up by name in FORMATS.

- A `Format` is a format with its parameters chosen. It holds no secret.
- A `Watermark` is a format opened with a secret. It scores documents.
- A `Law` gives the p-value of a score.

Scoring on a GPU, marking text and power are lines in tables of scanner.gpu, scanner.generation and scanner.power. The
formats therefore import none of the libraries that these need.

An ability is a protocol that only some formats provide. Callers test for it (`isinstance(mark, Searches)`), and when it
is missing they name it in their refusal. A format without an ability does not define its methods at all:

| ability             | provided by          | without it                                                         |
|---------------------|----------------------|--------------------------------------------------------------------|
| a law               | Format.law           | scores are written, p is null, nothing is ever flagged             |
| searching messages  | Watermark: Searches  | a key has one message                                              |
| scores of parts     | Watermark:           | only whole documents are tested                                    |
|                     | ScoresParts          |                                                                    |
| searching windows   | Watermark:           | each window is searched as a document is, which takes far longer   |
|                     | SearchesWindows      |                                                                    |
| user evidence       | Watermark:           | names need no second p-value: messages share no positions          |
|                     | TellsUserEvidence    |                                                                    |
| many keys at once   | Watermark: JoinsKeys | decoys are scored one by one, which takes longer                   |
| a rank among decoys | Watermark:           | nothing is flagged, where the basis is not the whole key           |
|                     | RanksAmongDecoys     |                                                                    |
| decoy keys          | Format: DrawsKeys    | no decoys: the law is not tested on the traffic of a scan          |
| counting null hits  | Format: CountsHits   | decoys count one message and the best of all, but not each of all  |
| a public commitment | Format: Commits      | none is published: of a short key it would be an offline oracle    |
| shown seeds         | Format:              | no public record: only who has the secret can check a flag         |
|                     | DrawsFromSeeds;      |                                                                    |
|                     | Watermark,           |                                                                    |
|                     | ProofPath: LeavesOut |                                                                    |
| proofs of flags     | Format: Proves       | flags stay as the fast path made them, and their rows say so       |
|                     | ProofPath:           | flags with user evidence fail their proof, and name nobody         |
|                     | ProvesUserEvidence   |                                                                    |
|                     | ProofPath:           | spans are left unproved, as `not_offered` says                     |
|                     | ProvesParts          |                                                                    |
| scores by levels    | Format:              | no model weighs its tokens (scanner.watermark.by_levels)           |
|                     | CountsByLevels       |                                                                    |
| other keys          | Format: HasOtherKeys | a probe of a server tries whole keys as they are                   |
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.laws import Law
from scanner.watermark.positions import Dedup, PositionRule, Positions, Ranges, Tokens


class Watermark(Protocol):
    """A format under one secret: D documents in, scores out. Its repr hides the secret, and it is never pickled.

    Each process opens its own. Scores are the ones that the law is about. They may differ from the score that the
    marking stack reports: where the stack rounds its draws, the score here is computed from the draw's word, at the
    lower end of its cell. A p-value is then never too small. The stack's own score serves only its known answers.
    """

    @property
    def label(self) -> str:
        """Return the format's label."""

    @property
    def law(self) -> Law | None:
        """Return the law of `score`, the format's law."""

    @property
    def basis(self) -> "Basis":
        """Return the basis of the p-values, the format's basis."""

    @property
    def rule(self) -> PositionRule:
        """Return the rule that selects the scored positions.

        Keys with the same tokenizer and equal rules share their positions.
        """

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Score one message per document, or one for all: int64[D] or float64[D], summed in order of position.

        Raises:
            ValueError: a message is below 0.
        """


@dataclass(frozen=True)
class Basis:
    """The reason that a p-value holds: the random draw of the key, or an assumption.

    bits: bits of the key that the draws depend on.
    assumed: the p-value rests on an assumption, because the key is public or because the format's hash is only assumed
        to behave as random. Then anybody can make the mark, and it never names a user.
    """

    bits: int
    assumed: bool = False

    @functools.cached_property
    def proven(self) -> bool:
        """Return whether p-values hold over a key that no search finds, as far as its cipher is believed safe."""
        return not self.assumed and self.bits >= 128

    def __str__(self) -> str:
        """Write the basis as tables have it: `key`, `key-64-bits`, `assumed`."""
        return "assumed" if self.assumed else "key" if self.proven else f"key-{self.bits}-bits"


def format_name(label: str) -> str:
    """Return the name of the format that a label belongs to."""
    return label.partition(";")[0]


Case = dict[str, Any]
Pairs = Iterator[tuple[str, Any, Any]]
"""Comparisons of a known answer: a name, the value in the file, the value on this machine."""


class KnownAnswers(NamedTuple):
    """Known answers of a format: the shipped file, and for each of its groups a function that compares one case."""

    shipped: Traversable
    groups: Mapping[str, Callable[[Case], Pairs]]


class Format(BaseModel, ABC):
    """A format with its parameters chosen. A subclass's fields are the parameters under [keys.parameters] in keys.toml.

    Two formats are equal if their parameters are. Code outside a format only passes the parameters on.
    """

    # pydantic would print the input in an error, and a pasted secret must not be printed back
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    name: ClassVar[str]
    """Name of the format in keys.toml and in FORMATS. Its labels begin with it."""

    secret_bytes: ClassVar[range] = range(16, 65)
    """Allowed lengths of a secret, in bytes."""

    if_guessed: ClassVar[str | None] = None
    """Advice for a secret that is easy to guess. None: draw another."""

    generator: ClassVar[str | None] = None
    """Name of the random generator that is read, for a stack that draws other numbers on another device.

    None where the device does not matter.
    """

    title: ClassVar[str]
    """Title for people, such as `Kirchenbauer et al. (green list)`."""

    version: ClassVar[int | None] = None
    """Version, for this project's own formats. None for the format of a stack."""

    scores_parts: ClassVar[bool] = False
    """Whether its marks are ScoresParts. If so, parts of texts are tested too."""

    suggested: ClassVar[Mapping[str, Any]] = {}
    """Default parameters of a new key."""

    answers: ClassVar[KnownAnswers]
    """Known answers, from the specification or from the stack that makes the mark."""

    @abstractmethod
    def label(self) -> str:
        """Return name and parameters as one line of ASCII, such as `greenlist;h=4;gamma=1/4`.

        Different parameters give different labels. Commitments, tables and shard ids contain it, so it never changes.
        """

    @abstractmethod
    def law(self) -> Law | None:
        """Return the law of the score. None where no law is known: then there are scores but no p-values."""

    @abstractmethod
    def rule(self) -> PositionRule:
        """Return the rule that selects the scored positions. It is the same for every key."""

    @abstractmethod
    def open(self, secret: bytes) -> Watermark:
        """Open the format with a secret.

        Raises:
            ValueError: the secret is not valid. The message does not repeat its bytes.
        """

    @abstractmethod
    def seconds(self, messages: int) -> float:
        """Return a generous estimate of the core seconds to score one position for `messages` messages.

        The stall limit of a scan is made of it.
        """

    def basis(self) -> Basis:
        """Return the basis of its p-values. Below 128 bits the law is `Floored`, and the format makes no commitment."""
        return Basis(128)

    def found_chance(self, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bound the chance that a search of unmarked text finds a message with a p-value of p or less: float64[U, J].

        Args:
            scored: T, int64[U], each above 0.
            p: p-value of one message, before any correction, float64[J].
        """
        return np.broadcast_to(p, (len(scored), len(p)))

    def can_be_framed(self) -> bool:
        """Return whether a person with marked text but no key can make text that carries another user's message."""
        return self.basis().bits < 64

    def cautions(self, messages: int) -> list[str]:
        """Return warnings for readers of a verdict: who else can make the marks of a key of so many messages."""
        del messages
        if self.generator is None:
            return []
        return [
            f"only draws of torch's {self.generator} are read: text marked by the same code on a GPU has a different "
            "mark and is not found"
        ]

    def check_messages(self, count: int) -> None:
        """Refuse a number of messages that no key of the format can have. A mark without a message allows only 1.

        Raises:
            ValueError: the number is refused. The message says which numbers are allowed.
        """
        if count != 1:
            raise ValueError(f"marks of format {self.name!r} carry no message; give 1")

    def vocabulary(self) -> int | None:
        """Return the size of the vocabulary that a draw is over, if it is a parameter.

        None where any size is accepted.
        """
        return None

    def dedups(self, wanted: Sequence[Dedup]) -> list[Dedup]:
        """Return those of the `wanted` ways to treat repeats that score more than one position of a text."""
        return list(wanted)

    def digest_fields(self) -> dict[str, object]:
        """Return the parameters' part of a shard's id: the label, or in older formats their old fields."""
        return {"label": self.label()}


class UserEvidence(NamedTuple):
    """The part of a candidate's score that no other message shares. It tells the candidate from similar messages.

    score: int64[D, C] or float64[D, C], over the positions that only this message reads.
    scored: int64[D], number of these positions.
    messages: N, the number of messages among which the candidate is the best by this score.
    """

    score: NDArray[np.generic]
    scored: NDArray[np.int64]
    messages: int


class Candidates(NamedTuple):
    """The messages that a search found for each document, best first: largest score, ties to the smaller message.

    The first candidate has the largest score of all messages. Where `user_evidence` is None, the second has the second
    largest. C ≥ 2.

    message: int64[D, C], −1 where there are fewer.
    score: int64[D, C] or float64[D, C], over all T positions. 0 where there is no message.
    user_evidence: the further evidence that naming a user needs (SPEC_3 §4). None if it needs none.
    independent: whether the mark of one message leaves the scores of all others unchanged. If so, every candidate that
        passes is named, else only one.
    """

    message: NDArray[np.int64]
    score: NDArray[np.generic]
    user_evidence: UserEvidence | None = None
    independent: bool = False

    def of_documents(self, documents: NDArray[np.int64]) -> "Candidates":
        """Return the candidates of some documents, int64[d]."""
        evidence = self.user_evidence
        if evidence is not None:
            evidence = evidence._replace(score=evidence.score[documents], scored=evidence.scored[documents])
        return self._replace(message=self.message[documents], score=self.score[documents], user_evidence=evidence)


_HAVE: dict[tuple[type, type], bool] = {}
"""Earlier answers to whether a class has an ability, by ability and class."""


class MarkAbility(type(Protocol)):  # type: ignore[misc] # the metaclass of protocols has no public name
    """Metaclass of the abilities of marks. It looks at each class once, because the class of a mark decides the answer.

    Python 3.11 looks up every member of a protocol at each `isinstance`. That took a twentieth of a scan.
    """

    def __instancecheck__(cls, value: object) -> bool:
        """Return whether a mark has the ability."""
        pair = cls, type(value)
        if pair not in _HAVE:
            _HAVE[pair] = super().__instancecheck__(value)
        return _HAVE[pair]


@runtime_checkable
class Searches(Protocol, metaclass=MarkAbility):
    """A watermark that can tell its M messages apart in one document."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Search the messages 0 … count−1. Scores equal those of `score` to the last bit."""


@runtime_checkable
class TellsUserEvidence(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark whose messages may share positions.

    It can score the positions that one message shares with no other.
    """

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> UserEvidence | None:
        """Score one message of each document on the positions that no other message reads: C = 1.

        None where naming a user needs no further evidence.
        """


@runtime_checkable
class ScoresParts(TellsUserEvidence, Protocol, metaclass=MarkAbility):
    """A watermark whose score is a sum over positions. Scores of windows then follow the same law as whole documents.

    Under H0 the terms of positions are independent. Whatever the message and the window, they increase in the same
    independent draws. scanner.watermark.text_windows needs no more than that.
    """

    def terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Compute the term that each scored position adds to `score`: float64[P]. Positions may come in any order."""

    def single_message(self, score: NDArray[np.generic]) -> Candidates:
        """Return the result of a search over a single message, from the scores of D documents."""


@runtime_checkable
class SearchesWindows(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark that searches all windows of a document at once, together with other parts."""

    def search_parts(
        self, tokens: Tokens, positions: Positions, parts: Ranges, windows: Ranges, count: int, share: float
    ) -> tuple[Candidates, NDArray[np.int64], NDArray[np.int64]]:
        """Search R parts and all windows of D documents.

        Args:
            tokens: of a batch.
            positions: of D documents.
            parts: ranges of the positions of all documents.
            windows: likewise, of documents of at most LONGEST_AT_ONCE positions.
            count: messages 0 … count−1 are searched.
            share: a window is returned if chance alone gives a message as good in at most this share of windows.

        Returns:
            The candidates of the R parts, as `search` gives them for each.
            The windows with a message that may stand out, int64[Q]. Some such windows may be missed.
            That message of each of these windows, int64[Q].
        """


@runtime_checkable
class JoinsKeys(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark that scores many documents at once, each under a key of its own. Decoys one by one take long."""

    def join_marks(self, marks: "Sequence[Watermark]", begins: NDArray[np.int64]) -> "ScoresParts | None":
        """Return a watermark that reads each document of a batch with one of K keys.

        None if the marks cannot be joined.

        Args:
            marks: K marks that differ only in their secrets. This mark is one of them.
            begins: int64[K], ascending: the place in the batch at which the tokens of each mark's document begin.
        """


@runtime_checkable
class RanksAmongDecoys(Protocol):
    """A watermark that has decoys. Its rank among them can be computed (scanner.watermark.rule)."""

    def decoy(self, number: int) -> Watermark:
        """Return the same format under another key, with which no text was marked.

        The key looks drawn by chance. The same number always gives the same key.
        """


class Hits(NamedTuple):
    """Hits of D documents at J thresholds, over all messages, and the score of message 0.

    hits: int64[D, J].
    first: int64[D] or float64[D].
    """

    hits: NDArray[np.int64]
    first: NDArray[np.generic]


@runtime_checkable
class DrawsKeys(Protocol):
    """A format that can draw keys as its makers draw them."""

    def draw_key(self, entropy: bytes) -> bytes:
        """Return the secret made of 32 uniform bytes. It is uniform over the keys of the format."""


@runtime_checkable
class CountsHits(Protocol):
    """A format that counts the messages with high scores in unmarked text, without keeping the scores."""

    def counted(self, messages: int) -> int:
        """Return how many scores of each document `count_all` counts: one for each message, or more."""

    def count_all(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Count the scores that follow the law of one message, int64[D, J], cheaply enough for a scan.

        The arguments are those of `count_hits`, with all messages of the key. Scores of one document may depend on each
        other, so a document counts as one cluster.
        """

    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """Count the messages 0 … messages−1 that reach `critical`, for each of D documents under a key of its own.

        Args:
            secrets: D secrets, one for each document.
            tokens: of the batch.
            positions: of the D documents.
            messages: M, the number of counted messages.
            critical: float64[D, J]. ∞ where nothing counts.
        """


@runtime_checkable
class Commits(Protocol):
    """A format whose keys are long enough for a public commitment."""

    def commitment(self, secret: bytes) -> bytes:
        """Return 32 bytes to publish when a key is made.

        They prove later that the key was not chosen after the text.
        """


SMALLEST_CLAIMED_WINDOW = 3
"""Least h of a key whose seeds are shown in claims. Shorter windows occur in too many texts (SPEC_3 §5)."""


@runtime_checkable
class DrawsFromSeeds(Protocol):
    """A format whose keys draw from 2^n seeds. A public record commits to the seeds (scanner.watermark.native.tree).

    seeds: n.
    beacon: R, a public random value that all draws read too, as 64 hex digits. None: it is
        not known yet, and no key opens.
    """

    seeds: int
    beacon: str | None

    def seed_key(self, secret: bytes) -> NDArray[np.uint32]:
        """Return the key that draws the seeds of a secret: uint32[8]. It is as secret as the secret itself."""


@runtime_checkable
class LeavesOut(Protocol, metaclass=MarkAbility):
    """A watermark or a `ProofPath` of a key whose seeds can be shown to others."""

    def leave_out(self, buckets: NDArray[np.int64]) -> Self:
        """Return a copy that does not score the positions of shown buckets, int64 in ascending order (SPEC_3 §4)."""


class ProofPath(Protocol):
    """Scores and p-values of one text under one secret, by a slow path that shares no code with `Watermark`.

    Its repr hides the secret, and each process opens its own. See scanner.watermark.proof for common parts.
    """

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """Score each message on a text.

        Args:
            tokens: uint32[N], of the text.
            messages: the M messages to score.
            dedup: the repeats to leave out.
            common_places: places of further tokens that are not scored.

        Returns:
            The number of scored positions.
            The score of each message.
        """

    def log10_p(self, score: float, scored: int) -> float:
        """Compute log10 p of one message's score over `scored` positions by the format's law, uncorrected."""


@runtime_checkable
class ProvesUserEvidence(Protocol):
    """A `ProofPath` for messages that may share positions."""

    def user_evidence(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[int, list[float], int] | None:
        """Score each message on the positions that it shares with no other message, as in `UserEvidence`.

        The arguments are those of `ProofPath.scores`.

        Returns:
            The number of positions that only one message reads.
            The score of each requested message there.
            The number of messages among which a message is the best by that score.

            None where naming a user needs no further evidence.
        """


@runtime_checkable
class ProvesParts(Protocol):
    """A `ProofPath` for a mark that scores parts."""

    def parts(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_] | None, int]:
        """Compute the term that each scored token of a text adds under each of M messages.

        The arguments are those of `ProofPath.scores`.

        Returns:
            The places of the scored tokens, int64[P].
            Their terms, float64[M, P].
            Whether a message shares the position with no other, bool[P]. None where naming needs no further evidence.
            The number of messages among which a message is the best at those positions.
        """


@runtime_checkable
class Proves(Protocol):
    """A format with a slow path that can prove its flags."""

    def proof(self, secret: bytes) -> ProofPath:
        """Open the slow path with a secret."""


class OtherKey(NamedTuple):
    """A key that a server may mark with by mistake. It is a part of a key on record, or has its parts exchanged.

    words: the server's mistake, as words that follow "the server".
    share: the share of tokens that the key on record marks with this part. None: the other key is no such part.
    layers: the first layer that it shares with the key on record, and the one after the last. None: it is no run of
        layers.
    """

    words: str
    format: Format
    secret: HiddenValue[bytes]
    share: float | None = None
    layers: tuple[int, int] | None = None


@runtime_checkable
class HasOtherKeys(Protocol):
    """A format whose keys consist of parts."""

    def other_keys(self, secret: bytes) -> Sequence[OtherKey]:
        """Return the keys that a server may use by mistake instead of this one.

        Raises:
            ValueError: the secret is not valid.
        """

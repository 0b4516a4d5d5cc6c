"""What a watermark format provides: what every format does, and what some can do besides.

The rest of scanner knows formats by this file, by their rule of positions (scanner.watermark.positions) and by what
counts by levels (scanner.watermark.by_levels), and finds them by name in FORMATS. A `Format` is a format with its
parameters chosen, and no secret; opened with one it is a `Watermark`, which scores; its `Law` says what a score means.

Scoring on a GPU, marking text and power are lines in tables of scanner.gpu, scanner.generation and scanner.power, so
that nothing here imports what they need.

What only some formats can do is an ability: a protocol. Callers ask for it (`isinstance(mark, Searches)`) and name it
in their refusal when it is not there. What a format cannot do it does not provide:

| ability             | provided by          | without it                                                         |
|---------------------|----------------------|--------------------------------------------------------------------|
| a law               | Format.law           | scores are written, p is null, nothing is ever flagged             |
| searching messages  | Watermark: Searches  | a key has one message                                              |
| scores of parts     | Watermark:           | documents are tested as a whole alone                              |
|                     | ScoresParts          |                                                                    |
| searching windows   | Watermark:           | each window is searched as a document is, which takes far longer   |
|                     | SearchesWindows      |                                                                    |
| user evidence       | Watermark:           | names need no second p-value: messages share no positions          |
|                     | TellsUserEvidence    |                                                                    |
| many keys at once   | Watermark: JoinsKeys | decoys are scored one by one, which takes longer                   |
| a rank among decoys | Watermark:           | nothing is flagged, where the basis is not the whole key           |
|                     | RanksAmongDecoys     |                                                                    |
| decoy keys          | Format: DrawsKeys    | no decoys: the law is not tested on the traffic of a scan          |
| counting null hits  | Format: CountsHits   | decoys count one message, and the best of all, but not each of all |
| a public commitment | Format: Commits      | none is published: of a short key it would be an offline oracle    |
| shown seeds         | Format:              | no public record: only who has the secret can check a flag         |
|                     | DrawsFromSeeds;      |                                                                    |
|                     | Watermark,           |                                                                    |
|                     | ProofPath: LeavesOut |                                                                    |
| proofs of flags     | Format: Proves       | flags stand as the fast path found them, and their rows say so     |
|                     | ProofPath:           | flags with user evidence fail their proof, and name nobody         |
|                     | ProvesUserEvidence   |                                                                    |
|                     | ProofPath:           | spans stand unproved, as `not_offered` says                        |
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
        """The rule of which positions are scored. Keys of one tokenizer and of equal rules share them."""

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Score one message a document, or one for all: int64[D] or float64[D], summed in order of position.

        Raises:
            ValueError: a message is below 0.
        """


@dataclass(frozen=True)
class Basis:
    """What a p-value holds over: the draw of the key, or an assumption.

    bits: bits of the key that the draws depend on.
    assumed: the format's hash is assumed to behave as random, or its key is public. Then anybody can make the mark, and
        it never names a user.
    """

    bits: int
    assumed: bool = False

    @functools.cached_property
    def proven(self) -> bool:
        """Whether p-values hold over a key that cannot be found by search, by what its cipher is believed to be."""
        return not self.assumed and self.bits >= 128

    def __str__(self) -> str:
        """Write the basis as tables have it: `key`, `key-64-bits`, `assumed`."""
        return "assumed" if self.assumed else "key" if self.proven else f"key-{self.bits}-bits"


def format_name(label: str) -> str:
    """Return the name of the format that a label belongs to."""
    return label.partition(";")[0]


Case = dict[str, Any]
Pairs = Iterator[tuple[str, Any, Any]]
"""Comparisons of a known answer: a name, the file's value, this machine's value."""


class KnownAnswers(NamedTuple):
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
    """Generator that is read, if the stack draws other numbers on another device; None where that does not matter."""

    title: ClassVar[str]
    """Title for people, such as `Kirchenbauer et al. (green list)`."""

    version: ClassVar[int | None] = None
    """Version of this project's own formats; None: a stack's format."""

    scores_parts: ClassVar[bool] = False
    """Whether its marks are ScoresParts, so that parts of texts are tested."""

    suggested: ClassVar[Mapping[str, Any]] = {}
    """Parameters of a new key for which the user chose none."""

    answers: ClassVar[KnownAnswers]
    """Known answers, of the specification or of the stack that makes the mark."""

    @abstractmethod
    def label(self) -> str:
        """Return name and parameters as one line of ASCII, such as `greenlist;h=4;gamma=1/4`.

        Other parameters have another label. It is part of commitments, tables and shard ids, and never changes.
        """

    @abstractmethod
    def law(self) -> Law | None:
        """Return the law of the score; None where none is known: then there are scores, and no p-value."""

    @abstractmethod
    def rule(self) -> PositionRule:
        """Return the rule of which positions are scored; it is the same for every key."""

    @abstractmethod
    def open(self, secret: bytes) -> Watermark:
        """Open the format with a secret.

        Raises:
            ValueError: the secret cannot be one; the message does not repeat its bytes.
        """

    @abstractmethod
    def seconds(self, messages: int) -> float:
        """Return the core seconds to score one position under so many messages, generously: the stall limit's price."""

    def basis(self) -> Basis:
        """Return what its p-values hold over. Below 128 bits its law is `Floored`, and it commits to nothing."""
        return Basis(128)

    def found_chance(self, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bound the chance that a search finds a message of unmarked text with a p-value at or below p: float64[U, J].

        Args:
            scored: T, int64[U], each above 0.
            p: of the message alone, float64[J].
        """
        return np.broadcast_to(p, (len(scored), len(p)))

    def can_be_framed(self) -> bool:
        """Return whether somebody with marked text and no key can make text of a message that is not theirs."""
        return self.basis().bits < 64

    def cautions(self, messages: int) -> list[str]:
        """Return sentences for readers of the verdicts of a key of so many messages: who else can make its marks."""
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
            ValueError: the number is refused; the message says what is allowed.
        """
        if count != 1:
            raise ValueError(f"marks of format {self.name!r} carry no message; give 1")

    def vocabulary(self) -> int | None:
        """Return the size of the vocabulary that a draw is over, if it is a parameter; None where any size will do."""
        return None

    def dedups(self, wanted: Sequence[Dedup]) -> list[Dedup]:
        """Return the wanted choices of repeats under which more than one position of a text is scored."""
        return list(wanted)

    def digest_fields(self) -> dict[str, object]:
        """Return what a shard's id contains of the parameters: the label, or in older formats their old fields."""
        return {"label": self.label()}


class UserEvidence(NamedTuple):
    """What a candidate shares with no other message: the part of its score that tells it from those near it.

    score: int64[D, C] or float64[D, C], over the positions that only this message reads.
    scored: int64[D], number of these positions.
    messages: N, the number of messages among which it is the best by them.
    """

    score: NDArray[np.generic]
    scored: NDArray[np.int64]
    messages: int


class Candidates(NamedTuple):
    """The messages of each document that a search looked into, best first: largest score, ties to the smaller message.

    The first candidate has the largest score of all messages. Where `user_evidence` is None, the second has the second
    largest; C ≥ 2.

    message: int64[D, C], −1 where there are fewer.
    score: int64[D, C] or float64[D, C], over all T positions; 0 where there is no message.
    user_evidence: what names need besides (SPEC_3 §4); None if they need nothing.
    independent: whether one message's mark leaves the scores of the others as they were. If so, every candidate that
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
"""Whether a class has an ability, where it was looked up before."""


class MarkAbility(type(Protocol)):  # type: ignore[misc] # the metaclass of protocols has no public name
    """Metaclass of what marks can do: a mark's class decides it, so each class is looked at once.

    Python 3.11 looks up every member of a protocol at each `isinstance`, which took a twentieth of a scan.
    """

    def __instancecheck__(cls, value: object) -> bool:
        """Return whether a mark has the ability."""
        pair = cls, type(value)
        if pair not in _HAVE:
            _HAVE[pair] = super().__instancecheck__(value)
        return _HAVE[pair]


@runtime_checkable
class Searches(Protocol, metaclass=MarkAbility):
    """A watermark whose M messages can be told apart in one document."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Search the messages 0 … count−1; scores are those of `score`, to the last bit."""


@runtime_checkable
class TellsUserEvidence(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark whose messages may share positions, and which says what one shares with no other."""

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> UserEvidence | None:
        """Score what one message of each document shares with no other: C = 1. None where names need nothing more."""


@runtime_checkable
class ScoresParts(TellsUserEvidence, Protocol, metaclass=MarkAbility):
    """A watermark whose score is a sum over positions, so that windows of a document have scores of the same law.

    Under H0 what positions add is independent, and whatever messages and windows they are in, they increase in the same
    independent draws (scanner.watermark.text_windows needs no more).
    """

    def terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Compute what each scored position adds to `score`: float64[P]. Positions may come in any order."""

    def single_message(self, score: NDArray[np.generic]) -> Candidates:
        """Return the result of a search for one message, from its scores of D documents."""


@runtime_checkable
class SearchesWindows(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark that looks for messages in all windows of a document at once, and in other parts with them."""

    def search_parts(
        self, tokens: Tokens, positions: Positions, parts: Ranges, windows: Ranges, count: int, share: float
    ) -> tuple[Candidates, NDArray[np.int64], NDArray[np.int64]]:
        """Search R parts, and all windows, of D documents.

        Args:
            tokens: of a batch.
            positions: of D documents.
            parts: of the positions of all documents.
            windows: likewise, of documents of LONGEST_AT_ONCE positions at most.
            count: messages 0 … count−1 are searched.
            share: a window is returned if chance alone gives a message as good to at most this share of windows.

        Returns:
            The candidates of the R parts, as `search` gives them for each; windows, int64[Q], and a message of each
            that may stand out, int64[Q]. Some of these may be missed.
        """


@runtime_checkable
class JoinsKeys(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark that scores many documents at once, each under a key of its own: decoys, one by one, take long."""

    def join_marks(self, marks: "Sequence[Watermark]", begins: NDArray[np.int64]) -> "ScoresParts | None":
        """Return a watermark that reads each document of a batch with the key of one of K marks; None if not joined.

        Args:
            marks: K, which differ only in their secrets, this one among them.
            begins: where in the batch the tokens of each one's document begin, int64[K], in ascending order.
        """


@runtime_checkable
class RanksAmongDecoys(Protocol):
    """A watermark that has decoys, so that its rank among them can be computed (scanner.watermark.rule)."""

    def decoy(self, number: int) -> Watermark:
        """Return the same format under another key, which marked nothing.

        The key is drawn as by chance, and is the same for the same number.
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
    """A format whose keys can be drawn in the way its makers draw them."""

    def draw_key(self, entropy: bytes) -> bytes:
        """Return the secret that 32 uniform bytes make: uniform over the keys of the format."""


@runtime_checkable
class CountsHits(Protocol):
    """A format that counts how many messages of unmarked text score high, without keeping the scores."""

    def counted(self, messages: int) -> int:
        """Return how many scores `count_all` counts of each document: one for each message, or more."""

    def count_all(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Count scores that have the law of a message's, int64[D, J], at a price that a scan can pay.

        The arguments are those of `count_hits`, with all messages of the key. Scores of a document may depend on each
        other, so that a document is one cluster.
        """

    def count_hits(
        self,
        secrets: Sequence[bytes],
        tokens: Tokens,
        positions: Positions,
        messages: int,
        critical: NDArray[np.float64],
    ) -> Hits:
        """Count, for each of D documents under a key of its own, the messages 0 … messages−1 that reach `critical`.

        Args:
            secrets: one for each of the D documents.
            tokens: of the batch.
            positions: of the D documents.
            messages: M, how many are counted.
            critical: float64[D, J], ∞ where nothing counts.
        """


@runtime_checkable
class Commits(Protocol):
    """A format whose keys are long enough to be committed to in public."""

    def commitment(self, secret: bytes) -> bytes:
        """Return 32 bytes to publish when a key is made: they show later that it was not chosen after the text."""


SMALLEST_CLAIMED_WINDOW = 3
"""Least h of a key whose seeds are shown in claims: shorter windows stand in too many texts (SPEC_3 §5)."""


@runtime_checkable
class DrawsFromSeeds(Protocol):
    """A format whose keys draw from 2^n seeds, to which a public record commits (scanner.watermark.native.tree).

    seeds: n.
    beacon: R, which all draws read besides, as 64 hex digits; None: it is not known yet, and no key opens.
    """

    seeds: int
    beacon: str | None

    def seed_key(self, secret: bytes) -> NDArray[np.uint32]:
        """Return the key that draws the seeds of a secret: uint32[8]. As secret as it."""


@runtime_checkable
class LeavesOut(Protocol, metaclass=MarkAbility):
    """A watermark, or a `ProofPath`, of a key whose seeds can be shown."""

    def leave_out(self, buckets: NDArray[np.int64]) -> Self:
        """Return the same without the positions of shown buckets, int64 in ascending order (SPEC_3 §4)."""


class ProofPath(Protocol):
    """Scores and p-values of one text under one secret, by a slow path that shares no code with those of `Watermark`.

    Shown in no repr, opened where needed (scanner.watermark.proof has what proofs share).
    """

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """Score each message on a text.

        Args:
            tokens: uint32[N], of the text.
            messages: the M messages to score.
            dedup: which repeats are left out.
            common_places: places of further tokens that are not scored.

        Returns:
            The number of scored positions, and the score of each message.
        """

    def log10_p(self, score: float, scored: int) -> float:
        """Compute log10 p of a score over so many positions, of that message alone, by the law of the format."""


@runtime_checkable
class ProvesUserEvidence(Protocol):
    """A `ProofPath` of messages that may share positions."""

    def user_evidence(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[int, list[float], int] | None:
        """Score each message on what it shares with no other message, as in `UserEvidence`.

        The arguments are those of `ProofPath.scores`.

        Returns:
            The number of positions that only one message reads, the score there of each message asked for, and the
            number of messages among which it is the best by that score. None where names need no more.
        """


@runtime_checkable
class ProvesParts(Protocol):
    """A `ProofPath` of a mark that scores parts."""

    def parts(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_] | None, int]:
        """Compute what each scored token of a text adds under each of M messages.

        The arguments are those of `ProofPath.scores`.

        Returns:
            The places of the scored tokens, int64[P]; what each adds, float64[M, P]; at which positions a message
            shares nothing with others, bool[P], or None where names need nothing besides; and the number of messages
            among which it is the best there.
        """


@runtime_checkable
class Proves(Protocol):
    """A format whose flags can be proved."""

    def proof(self, secret: bytes) -> ProofPath:
        """Open the slow path with a secret."""


class OtherKey(NamedTuple):
    """A key that a server may mark with by mistake, made of a key on record: a part of it, or its parts exchanged.

    words: what the server does, to follow "the server".
    share: of the tokens, how many the key on record marks with this part of it; None: it is no such part.
    layers: the first of the layers that the key on record shares with it, and the one after the last; None: it is no
        run of layers.
    """

    words: str
    format: Format
    secret: HiddenValue[bytes]
    share: float | None = None
    layers: tuple[int, int] | None = None


@runtime_checkable
class HasOtherKeys(Protocol):
    """A format whose keys have parts."""

    def other_keys(self, secret: bytes) -> Sequence[OtherKey]:
        """Return the keys that may be taken for one by mistake. Raises ValueError: the secret cannot be one."""

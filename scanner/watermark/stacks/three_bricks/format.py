"""Define the marks of the paper's research code: `openai` (Gumbel) and `maryland` (green list), with payloads by shift.

A seed of 64 bits, of which 32 count, is made of the window and the key. It seeds torch's CPU generator, whose words are
the draws of the vocabulary. A text of payload m reads at token x the draw of x + m mod |V|. So payloads from |V| on
equal smaller ones. This is described from outside, by its behaviour. The code itself was never looked at.
"""

import functools
import math
from fractions import Fraction
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy import int64, uint32, uint64
from numpy.typing import NDArray
from pydantic import Field

from scanner.watermark.format import Basis, Candidates, Case, KnownAnswers, Pairs, ProofPath
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Binomial, Floored, Gamma, Law
from scanner.watermark.positions import WIDEST_WINDOW, Positions, Tokens, batch_tokens
from scanner.watermark.stacks.mersenne_twister import (
    first_of_permutation,
    first_words,
    is_among_first,
    permutation,
    product_mod,
    word_at,
)
from scanner.watermark.stacks.shared import (
    BySeed,
    Seeds,
    ShuffledGreenFormat,
    StackMark,
    VocabularyFormat,
    key_fingerprint,
    term,
)

SEED_BITS = 32
"""Number of bits in a generator's seed."""

MODULUS = 2**64 - 1
"""Modulus of the seeding `hash`."""

TABLE_ENTRIES = 1_000_003
"""Number of entries in the table of all seedings except `hash`."""

_OF_FLOATS = 2e-7  # relative error of a sum of logarithms in single precision
Seeding = Literal["hash", "additive", "skip", "min"]


@functools.lru_cache(maxsize=2)
def _table(seed: int) -> NDArray[np.int32]:
    return permutation(seed, TABLE_ENTRIES)


@kernel
def hash_seeds(ids: NDArray[np.uint32], window: int, seed: uint64, salt: uint64) -> NDArray[np.uint32]:
    """Return the low 32 bits of s·salt + x mod 2^64−1 over the tokens before each place: uint32[N].

    s begins as the seed, and x is each of the `window` tokens in turn.
    """
    out = np.zeros(len(ids), np.uint32)
    for i in range(window, len(ids)):
        state = seed
        for k in range(i - window, i):
            state = product_mod(state, salt, uint64(ids[k]))
        out[i] = uint32(state)
    return out


@kernel
def table_seeds(
    ids: NDArray[np.uint32], window: int, salt: int64, table: NDArray[np.int32], of: int
) -> NDArray[np.uint32]:
    """Return the table's entry for the window before each place: uint32[N].

    Products wrap around as signed 64-bit numbers, and their remainders are never negative.

    Args:
        ids: uint32[N].
        window: number of tokens.
        salt: factor of the tokens.
        table: int32[TABLE_ENTRIES].
        of: 0: the entry of the window's sum. 1: of its first token. 2: the least entry of its tokens.
    """
    out = np.zeros(len(ids), np.uint32)
    for i in range(window, len(ids)):
        total, least = int64(0), int64(0)
        for k in range(i - window, i):
            total += int64(ids[k])
            if of == 2:
                entry = int64(table[(salt * int64(ids[k])) % TABLE_ENTRIES])
                if k == i - window or entry < least:
                    least = entry
        if of == 2:
            out[i] = uint32(least)
        elif of == 1:
            out[i] = uint32(table[(salt * int64(ids[i - window])) % TABLE_ENTRIES])
        else:
            out[i] = uint32(table[(salt * total) % TABLE_ENTRIES])
    return out


@kernel
def _word24(word: uint32) -> uint32:
    """Return the low 24 bits, from which the stack makes a uniform number, at the place where `term` looks for them."""
    return uint32(word << uint32(8))


@kernel
def _sums(
    seeds: NDArray[np.uint32],
    tokens: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    size: int,
) -> NDArray[np.float64]:
    """Return Σ −ln(1−k/2^24) of one message for each document: float64[D]."""
    out = np.zeros(len(offsets) - 1)
    for d in range(len(out)):
        for p in range(offsets[d], offsets[d + 1]):
            out[d] += term(_word24(word_at(seeds[p], (int64(tokens[p]) + messages[d]) % size)))
    return out


@kernel
def _all_sums(seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], out: NDArray[np.float64], size: int) -> None:
    """Add Σ of one document for the messages 0 … M−1 to float64[M], in order of position."""
    words = np.empty(size, np.uint32)
    for p in range(len(seeds)):
        if p == 0 or seeds[p] != seeds[p - 1]:
            first_words(seeds[p], words)
        place = int64(tokens[p]) % size
        for m in range(len(out)):
            out[m] += term(_word24(words[place]))
            place = int64(0) if place == size - 1 else place + int64(1)


@kernel
def _greens(
    seeds: NDArray[np.uint32],
    tokens: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    size: int,
    first: int,
) -> NDArray[np.int64]:
    """Count the green tokens of one message for each document: int64[D]."""
    out = np.zeros(len(offsets) - 1, np.int64)
    for d in range(len(out)):
        for p in range(offsets[d], offsets[d + 1]):
            out[d] += is_among_first(seeds[p], (int64(tokens[p]) + messages[d]) % size, size, first)
    return out


@kernel
def _all_greens(
    seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], out: NDArray[np.int64], size: int, first: int
) -> None:
    """Add green counts of one document for the messages 0 … M−1 to int64[M]."""
    identity = np.arange(size).astype(np.int32)
    green = np.empty(first, np.int32)
    for p in range(len(seeds)):
        if p == 0 or seeds[p] != seeds[p - 1]:
            first_of_permutation(seeds[p], first, identity, green)
        token = int64(tokens[p]) % size
        for value in green:
            m = int64(value) - token
            if m < 0:
                m += size
            if m < len(out):
                out[m] += 1


class ThreeBricks(StackMark):
    """A seed and a salt. Its messages are payloads."""

    def __init__(self, form: "_ThreeBricksFormat", rule: BySeed, secret: bytes) -> None:
        super().__init__(form, rule, secret)
        self._size, self._first, self._seeds = form.vocab_size, form.green, rule.seeds

    def seeds(self, tokens: Tokens) -> NDArray[np.uint32]:
        """Return the seed of each place in a batch: uint32[N]."""
        return self._seeds.value(tokens)

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """See Watermark.

        Raises:
            ValueError: a message is below 0, or |V| or larger.
        """
        document_messages = np.broadcast_to(np.asarray(messages, np.int64), (len(positions.offsets) - 1,))
        if np.any((document_messages < 0) | (document_messages >= self._size)):
            raise ValueError(f"a message is out of range; allowed: 0 to {self._size - 1}")
        seeds, ids = self.seeds(tokens)[positions.index], tokens.ids[positions.index]
        if self._first:
            return _greens(seeds, ids, positions.offsets, document_messages, self._size, self._first)
        return _sums(seeds, ids, positions.offsets, document_messages, self._size)

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches: every message is scored, with one shuffle or one row of words for each position."""
        seeds, ids, offsets = self.seeds(tokens)[positions.index], tokens.ids[positions.index], positions.offsets
        documents, kind = len(offsets) - 1, np.int64 if self._first else np.float64
        message, score = np.full((documents, 2), -1, np.int64), np.zeros((documents, 2), kind)
        for d in range(documents):
            document_slice = slice(offsets[d], offsets[d + 1])
            sums: NDArray[Any] = np.zeros(count, kind)
            if self._first:
                _all_greens(seeds[document_slice], ids[document_slice], sums, self._size, self._first)
            else:
                _all_sums(seeds[document_slice], ids[document_slice], sums, self._size)
            for place in range(min(2, count)):
                best = int(sums.argmax())  # the first of equal ones
                message[d, place], score[d, place] = best, sums[best]
                sums[best] = -1
        return Candidates(message, score)


class _ThreeBricksFormat(VocabularyFormat):
    secret_bytes = range(16, 17)
    window: int = Field(default=4, ge=0, le=WIDEST_WINDOW)
    seeding: Seeding = "hash"
    table_seed: int = Field(default=0, ge=0, lt=2**32)

    def label(self) -> str:
        table = "" if self.seeding == "hash" else f";table_seed={self.table_seed}"
        return f"{self.name};h={self.window};vocab_size={self.vocab_size};seeding={self.seeding}{table}"

    def basis(self) -> Basis:
        """Return the basis: a seed of 32 bits, and a generator that is no cipher."""
        return Basis(SEED_BITS, assumed=True)

    def check_messages(self, count: int) -> None:
        """See Format. Payloads from |V| on equal smaller ones."""
        if not 1 <= count <= self.vocab_size:
            raise ValueError(
                f"payloads from the vocabulary's size on repeat smaller ones; give 1 to {self.vocab_size:,}"
            )

    def seconds(self, messages: int) -> float:
        """Return ten times the time of a row of words or a shuffle, and of a sum for each message."""
        return 1e-5 + 5e-9 * self.vocab_size + 1e-8 * messages

    def rule(self) -> BySeed:
        return self._rule((1).to_bytes(8, "big") + (35317).to_bytes(8, "big"))

    def open(self, secret: bytes) -> ThreeBricks:
        """Open it with the seed's 8 bytes and the salt's, big-endian."""
        return ThreeBricks(self, self._rule(secret), secret)

    def decoy_key(self, entropy: bytes) -> bytes:
        return entropy[:8] + (int.from_bytes(entropy[8:16], "big") >> 1 | 1).to_bytes(8, "big")

    def _rule(self, secret: bytes) -> BySeed:
        seed, salt = key_of(secret, self.window, self.seeding)
        # A product of 0, such as that of token 0, has the same table entry under every salt. If the seed vanishes, a
        # window of zeros passes on its last token, and one in many thousands of other windows meets the same entry.
        first = 0 if self.seeding == "hash" else int(_table(self.table_seed)[0])
        keyless_count = self.vocab_size if vanishes(seed, salt, self.window) else 0
        keyless = range(first, first + 1 if self.seeding != "hash" else keyless_count)
        fingerprint = key_fingerprint(self.label(), secret)
        seeds = HiddenValue(self._seeds(seed, salt))
        return BySeed(self.window, self.window + 1, fingerprint, seeds, keyless, self.vocab_size)

    def _seeds(self, seed: int, salt: int) -> Seeds:
        window = self.window
        if self.seeding == "hash":
            return lambda tokens: hash_seeds(tokens.ids, window, uint64(seed), uint64(salt))
        seeding, table = ("additive", "skip", "min").index(self.seeding), _table(self.table_seed)
        return lambda tokens: table_seeds(tokens.ids, window, int64(salt), table, seeding)

    def _proof(self, secret: bytes, green: int) -> ProofPath:
        from scanner.watermark.stacks.three_bricks.proof import ThreeBricksProof  # late: only flags need mpmath

        return ThreeBricksProof(secret, self.window, self.seeding, self.table_seed, self.vocab_size, green)


def vanishes(seed: int, salt: int, window: int) -> bool:
    """Return whether the seed has no part in the hash of a window.

    Seed 0 is such a seed: a window of zeros has hash 0.
    """
    return seed * pow(salt, window, MODULUS) % MODULUS == 0


def key_of(secret: bytes, window: int, seeding: str) -> tuple[int, int]:
    """Return seed and salt of 8 bytes each, big-endian.

    Raises:
        ValueError: the secret has another length, or no draw depends on its key.
    """
    if len(secret) != 16:
        raise ValueError(f"a seed and a salt have 16 bytes; this secret has {len(secret)}")
    seed, salt = (int.from_bytes(secret[i : i + 8], "big") for i in (0, 8))
    if seeding == "hash" and (vanishes(seed, salt, window) if window <= 1 else salt % MODULUS == 0):
        raise ValueError("no key enters a draw under this seed and salt: everybody's text has this mark")
    if seeding != "hash" and (window == 0 or not 0 < salt < 2**63 or salt % TABLE_ENTRIES == 0):
        raise ValueError(f"seeding {seeding!r} needs a window of 1 or more and a salt from 1 on, below 2^63")
    return seed, salt


class ThreeBricksOpenaiFormat(_ThreeBricksFormat):
    """`openai`: a sum of exponential draws."""

    name = "three-bricks-openai"
    title = "three_bricks, openai (Gumbel)"

    def law(self) -> Law:
        """Return the law of 24-bit draws at the lower end of their cells."""
        return Floored(Gamma(), SEED_BITS)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        return self._proof(secret, 0)


class ThreeBricksMarylandFormat(_ThreeBricksFormat, ShuffledGreenFormat):
    """`maryland`: a count of green tokens."""

    name = "three-bricks-maryland"
    title = "three_bricks, maryland (green list)"
    gamma: float = Field(default=0.25, gt=0, lt=1)

    def share(self) -> float:
        """Return the share of green tokens."""
        return self.gamma

    def label(self) -> str:
        """See Format."""
        return f"{super().label()};gamma={self.gamma!r}"

    def law(self) -> Law:
        """Return the law of draws without replacement within a seed.

        Its tail is below the binomial's where it matters.
        """
        return Floored(Binomial(Fraction(self.green, self.vocab_size)), SEED_BITS)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        return self._proof(secret, self.green)


def _detection(case: Case) -> Pairs:
    """Yield the values that the research code's detectors report.

    Their logarithms have single precision, and so have their p-values.
    """
    shape = {
        "window": case["ngram"],
        "vocab_size": case["vocab_size"],
        "seeding": case["seeding"],
        "table_seed": case["hashtable_torch_manual_seed"] or 0,
    }
    form: ThreeBricksOpenaiFormat | ThreeBricksMarylandFormat = ThreeBricksOpenaiFormat(**shape)
    if case["method"].startswith("maryland"):
        form = ThreeBricksMarylandFormat(**shape, gamma=case["gamma"])
    tokens = batch_tokens([case["tokens"]])
    seeds = form._seeds(case["seed"], case["salt_key"])
    rule = BySeed(form.window, form.window + 1, "", HiddenValue(seeds))
    tuples = {"none": 2, "v1": 0, "v2": 1}[case["scoring_method"]]  # tokens after the window
    index: list[int] = []
    units: set[object] = set()
    for t in range(form.window + 1, len(case["tokens"])):
        unit: object = t if tuples > 1 else tuple(case["tokens"][t - form.window : t + tuples])
        index += [t] * (unit not in units)
        units.add(unit)
    positions = Positions(np.array(index, np.int64), np.array([0, len(index)]))
    mark, out = ThreeBricks(form, rule, bytes(16)), case["out"]
    yield "num_token", out["num_token"], len(index)
    yield "scored_positions", out["scored_positions"], index[: len(out["scored_positions"])]
    low = [int(seed) & 0xFFFFFFFF for seed in out["first_seeds"]]
    yield "first_seeds", low, mark.seeds(tokens)[index[: len(low)]].tolist()
    count = out["n_payloads_scored"]
    best = mark.search(tokens, positions, count)
    yield "best_payload", out["best_payload"], int(best.message[0, 0])
    for name, message in (("sum_float64_payload0", 0), ("sum_float64_best", out["best_payload"])):
        score = float(mark.score(tokens, positions, message)[0])
        yield name, True, math.isclose(score, out[name], rel_tol=_OF_FLOATS)


ThreeBricksOpenaiFormat.answers = KnownAnswers(
    files(__package__) / "three_bricks_openai.json", {"three_bricks_openai": _detection}
)
ThreeBricksMarylandFormat.answers = KnownAnswers(
    files(__package__) / "three_bricks_maryland.json", {"three_bricks_maryland": _detection}
)

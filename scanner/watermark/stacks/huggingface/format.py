"""Define the green lists of Hugging Face transformers 5.23 and 5.24: `WatermarkingConfig` with lefthash or selfhash.

A seed selects a permutation of the vocabulary. Its first int(γ·|V|) tokens are green (Kirchenbauer et al.). In lefthash
only the previous token decides the seed, whatever the context width. In selfhash all tokens of the window decide it,
including the scored token. A position counts once for each seed and token. The library can leave out repeated windows
instead. This leaves the same draw in many places, and made p-values of human text 78 times too small at 1e-4.
"""

from abc import abstractmethod
from fractions import Fraction
from importlib.resources import files
from typing import ClassVar, Literal

import numpy as np
from numpy import int64, uint32, uint64
from numpy.typing import NDArray
from pydantic import Field

from scanner.watermark.format import Basis, Case, KnownAnswers, Pairs, ProofPath
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Binomial, Floored, Law
from scanner.watermark.positions import (
    WIDEST_WINDOW,
    PositionRule,
    Positions,
    Tokens,
    batch_tokens,
    offsets_of,
)
from scanner.watermark.stacks.mersenne_twister import first_of_permutation, is_among_first, permutation, product_mod
from scanner.watermark.stacks.shared import (
    BySeed,
    Seeds,
    ShuffledGreenFormat,
    StackMark,
    check_message,
    hashing_key,
    key_fingerprint,
)

SEED_BITS = 32
"""Number of bits in a generator's seed."""

TABLE_ENTRIES = 1_000_003
"""Number of entries in the library's selfhash table."""

CACHE_BYTES = 2**26
"""Bytes of green lists that an opened key caches by seed: 10,900 lists of 49,152 tokens."""

_WORTH_A_CACHE = 2048  # scored positions; decoys and single texts are done sooner without a cache


@kernel
def left_seeds(ids: NDArray[np.uint32], key: uint64) -> NDArray[np.uint32]:
    """Return the low 32 bits of key·(the token before) mod 2^64−1 at each place, uint32[N]. 0 at the first."""
    out = np.zeros(len(ids), np.uint32)
    for i in range(1, len(ids)):
        out[i] = uint32(product_mod(key, uint64(ids[i - 1]), uint64(0)))
    return out


@kernel
def self_seeds(ids: NDArray[np.uint32], key: int64, table: NDArray[np.int32], width: int) -> NDArray[np.uint32]:
    """Return the low 32 bits of the least key·(T[x]+1)·(T[last]+1) over each window: uint32[N].

    A window has the `width` tokens that end at a place.

    Products wrap around as signed 64-bit numbers, and the least is taken mod 2^64−1 as Python does. Where a window
    begins before the batch, the seed is 0.
    """
    out = np.zeros(len(ids), np.uint32)
    for i in range(width - 1, len(ids)):
        last = int64(table[ids[i] % uint32(TABLE_ENTRIES)]) + int64(1)
        least = int64(9223372036854775807)
        for k in range(i - width + 1, i + 1):
            least = min(least, key * (int64(table[ids[k] % uint32(TABLE_ENTRIES)]) + int64(1)) * last)
        out[i] = uint32(uint64(least) - uint64(1) if least < 0 else uint64(least))
    return out


@kernel
def _green_one_by_one(
    seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], size: int, first: int
) -> NDArray[np.bool_]:
    out = np.zeros(len(seeds), np.bool_)
    for i in range(len(seeds)):
        out[i] = tokens[i] < size and is_among_first(seeds[i], tokens[i], size, first)
    return out


@kernel
def _green_by_lists(
    seeds: NDArray[np.uint32],
    tokens: NDArray[np.uint32],
    first: int,
    identity: NDArray[np.int32],
    cached_seeds: NDArray[np.int64],
    lists: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Return which tokens are green, as `_green_one_by_one` does, by cached lists.

    cached_seeds: int64[S], the seeds whose lists are in `lists`, or −1.
    lists: uint64[S, |V|/64].
    """
    out = np.zeros(len(seeds), np.bool_)
    green = np.empty(first, np.int32)
    for i in range(len(seeds)):
        if tokens[i] >= len(identity):
            continue
        slot = int64(uint64(uint64(seeds[i]) * uint64(0x9E3779B97F4A7C15) >> uint64(32)) % uint64(len(cached_seeds)))
        if cached_seeds[slot] != int64(seeds[i]):
            cached_seeds[slot] = int64(seeds[i])
            first_of_permutation(seeds[i], first, identity, green)
            lists[slot] = uint64(0)
            for token in green:
                lists[slot, token >> 6] |= uint64(1) << uint64(token & 63)
        out[i] = (lists[slot, tokens[i] >> uint32(6)] >> uint64(tokens[i] & uint32(63))) & uint64(1) != uint64(0)
    return out


class GreenLists:
    """The green lists of a vocabulary, with a cache of at most CACHE_BYTES for lists that were used.

    Args:
        size: |V|, the width of the logits.
        first: number of green tokens.
    """

    def __init__(self, size: int, first: int) -> None:
        self._size, self._first, self.kept = size, first, True
        self._lists: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]] | None = None

    def green(self, seeds: NDArray[np.uint32], tokens: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return whether tokens, uint32[P], are green under seeds, uint32[P]: bool[P].

        A token beyond |V| is not green.
        """
        if self._lists is None and self.kept and len(seeds) >= _WORTH_A_CACHE:
            words = -(-self._size // 64)
            slots = max(1, CACHE_BYTES // (8 * words))
            identity = np.arange(self._size, dtype=np.int32)
            self._lists = identity, np.full(slots, -1, np.int64), np.empty((slots, words), np.uint64)
        if self._lists is None:
            return _green_one_by_one(seeds, tokens, self._size, self._first)
        return _green_by_lists(seeds, tokens, self._first, *self._lists)


class _KgwFormat(ShuffledGreenFormat):
    secret_bytes = range(8, 9)
    seeding: ClassVar[Literal["lefthash", "selfhash"]]
    greenlist_ratio: float = Field(default=0.25, gt=0, lt=1)
    context_width: int = Field(default=1, ge=1, le=WIDEST_WINDOW)

    def share(self) -> float:
        return self.greenlist_ratio

    def label(self) -> str:
        share = f"greenlist_ratio={self.greenlist_ratio!r}"
        return f"{self.name};vocab_size={self.vocab_size};{share};context_width={self.context_width}"

    def law(self) -> Law:
        """Return the law of draws without replacement within a seed.

        Its tail is below the binomial's where it matters.
        """
        return Floored(Binomial(Fraction(self.green, self.vocab_size)), SEED_BITS)

    def basis(self) -> Basis:
        """Return the basis: a seed of 32 bits, and a generator that is no cipher."""
        return Basis(SEED_BITS, assumed=True)

    def decoy_key(self, entropy: bytes) -> bytes:
        return (int.from_bytes(entropy[:8], "big") >> 1 | 1).to_bytes(8, "big")

    def seconds(self, messages: int) -> float:
        """Return ten times the time of a shuffle."""
        return 1e-5 + 1e-8 * self.green

    @abstractmethod
    def under(self, secret: bytes, table: NDArray[np.int32]) -> "Kgw":
        """Open the format with a secret and a selfhash table: the key's own table, or for a decoy another key's."""

    def _proof(self, secret: bytes) -> ProofPath:
        from scanner.watermark.stacks.huggingface.proof import KgwProof  # late: only flags need mpmath

        return KgwProof(secret, self.seeding, self.context_width, self.vocab_size, self.green)


class Kgw(StackMark):
    """A key with either seeding.

    seeds: the function that returns the seed of each place in a batch.
    table: the selfhash table. Decoys share one, because 999 tables of a million entries are too many.
    """

    def __init__(
        self, form: "_KgwFormat", rule: PositionRule, secret: bytes, seeds: Seeds, table: NDArray[np.int32]
    ) -> None:
        super().__init__(form, rule, secret)
        self._of_format, self._table = form, HiddenValue(table)
        self._seeds, self._lists = HiddenValue(seeds), GreenLists(form.vocab_size, form.green)

    def _open_decoy(self, secret: bytes) -> "Kgw":
        decoy = self._of_format.under(secret, self._table.value)
        decoy._lists.kept = False  # there are many decoys and few texts, so a cache does not pay
        return decoy

    def seeds(self, tokens: Tokens) -> NDArray[np.uint32]:
        """Return the seed of each place in a batch: uint32[N]."""
        return self._seeds.value(tokens)

    def green(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Return whether the scored tokens are green: bool[P]."""
        return self._lists.green(self.seeds(tokens)[positions.index], tokens.ids[positions.index])

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """See Watermark. The mark has only message 0."""
        check_message(messages)
        return np.diff(offsets_of(self.green(tokens, positions))[positions.offsets])


def _detection(case: Case) -> Pairs:
    """Yield the values that the library's detector reports. Its p-value is a normal tail and is not compared."""
    width, is_lefthash = case["context_width"], case["seeding_scheme"] == "lefthash"
    form = (KgwLefthashFormat if is_lefthash else KgwSelfhashFormat)(
        vocab_size=case["vocab_size"], greenlist_ratio=case["greenlist_ratio"], context_width=width
    )
    mark, tokens = form.open(int(case["hashing_key"]).to_bytes(8, "big")), batch_tokens([case["tokens"]])
    skip = width if is_lefthash else width - 1
    index = np.arange(skip, len(tokens.ids))
    if case["ignore_repeated_ngrams"]:
        windows = [tuple(case["tokens"][i - skip : i + 1]) for i in index]
        index = np.array([i for n, i in enumerate(index) if windows[n] not in windows[:n]])
    positions = Positions(index, np.array([0, len(index)]))
    green = mark.green(tokens, positions)
    out = case["out"]
    yield "num_tokens_scored", out["num_tokens_scored"], float(len(index))
    yield "num_green_tokens", out["num_green_tokens"], float(mark.score(tokens, positions, 0)[0])
    if not case["ignore_repeated_ngrams"]:
        yield "green_mask", out["green_mask"], green.astype(int).tolist()[: len(out["green_mask"])]
    low = [int(seed) & 0xFFFFFFFF for seed in out["first_seeds"]]
    yield "first_seeds", low, mark.seeds(tokens)[skip : skip + len(low)].tolist()
    yield "fixed_table", out["fixed_table_first8"], permutation(int(case["hashing_key"]), TABLE_ENTRIES)[:8].tolist()


class KgwLefthashFormat(_KgwFormat):
    """Green lists seeded by the token before."""

    name = "hf-lefthash"
    title = "Hugging Face transformers, green list, lefthash"
    seeding = "lefthash"
    answers = KnownAnswers(files(__package__) / "hf_lefthash.json", {"hf_lefthash": _detection})

    def rule(self) -> BySeed:
        """Return the rule under hashing key 1. Each opened key has its own."""
        return self._rule((1).to_bytes(8, "big"))

    def open(self, secret: bytes) -> Kgw:
        """Open it with the hashing key's 8 bytes, big-endian."""
        return self.under(secret, np.empty(0, np.int32))

    def under(self, secret: bytes, table: NDArray[np.int32]) -> Kgw:
        """Open it as `open` does. There is no table."""
        rule = self._rule(secret)
        return Kgw(self, rule, secret, rule.seeds.value, table)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        return self._proof(secret)

    def _rule(self, secret: bytes) -> BySeed:
        key = uint64(hashing_key(secret))
        seeds = HiddenValue[Seeds](lambda tokens: left_seeds(tokens.ids, key))
        # after token 0 the seed is 0 under every key
        return BySeed(1, self.context_width, key_fingerprint(self.name, secret), seeds, range(1))


class KgwSelfhashFormat(_KgwFormat):
    """Green lists seeded by the window that ends with the scored token."""

    name = "hf-selfhash"
    title = "Hugging Face transformers, green list, selfhash"
    seeding = "selfhash"
    answers = KnownAnswers(files(__package__) / "hf_selfhash.json", {"hf_selfhash": _detection})

    def rule(self) -> BySeed:
        """Return the rule under hashing key 1. Each opened key has its own."""
        secret = (1).to_bytes(8, "big")
        return self._rule(secret, permutation(1, TABLE_ENTRIES))

    def open(self, secret: bytes) -> Kgw:
        """Open it with the hashing key's 8 bytes, big-endian."""
        return self.under(secret, permutation(hashing_key(secret), TABLE_ENTRIES))

    def under(self, secret: bytes, table: NDArray[np.int32]) -> Kgw:
        """Open it as `open` does, with the given table."""
        rule = self._rule(secret, table)
        return Kgw(self, rule, secret, rule.seeds.value, table)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        return self._proof(secret)

    def _rule(self, secret: bytes, table: NDArray[np.int32]) -> BySeed:
        key, window = hashing_key(secret), self.context_width - 1
        seeds = HiddenValue[Seeds](lambda tokens: self_seeds(tokens.ids, int64(key), table, window + 1))
        return BySeed(window, window, key_fingerprint(self.name, secret), seeds)

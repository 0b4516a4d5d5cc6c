"""A device's answers against plain torch on fresh random documents.

The plain side computes a whole block for every entry, in 64-bit integers; it shares no code with the kernels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from scanner.gpu import runs
from scanner.gpu.runs import Batch, Runs
from scanner.gpu.vectors import GreenRule, PlainSeededVectors, SeededVectors, SeedSource, Vectors

_LOW = 0xFFFFFFFF

QUARTER = GreenRule(1, 2, 2)


class Documents(NamedTuple):
    """Scored tokens, each with its step's own key: uint32[P], uint64[P], uint32[8, P], int64[D+1]."""

    ids: np.ndarray
    nonces: np.ndarray
    keys: np.ndarray
    offsets: np.ndarray

    def put(self, device: torch.device) -> Batch:
        return Batch.put(self.ids, self.nonces, self.keys, device)

    def runs(self, count: int) -> Runs:
        """The numbers 0 … count−1 of each document."""
        return Runs(self.offsets[:-1], self.offsets[1:], np.zeros(len(self.offsets) - 1, np.int64), count)


class Check(NamedTuple):
    """Numbers of documents that were compared, and of those with a different verdict."""

    name: str
    documents: int
    wrong: int


def draw(generator: np.random.Generator, lengths: list[int]) -> Documents:
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    total = int(offsets[-1])
    return Documents(
        generator.integers(0, 2**32, total, dtype=np.uint32),
        generator.integers(0, 2**64, total, dtype=np.uint64),
        generator.integers(0, 2**32, (8, total), dtype=np.uint32),
        offsets,
    )


def blocks(
    key: Sequence[int | torch.Tensor], counter: torch.Tensor, high: torch.Tensor | int, nonce: torch.Tensor
) -> list[torch.Tensor]:
    """ChaCha8 blocks as 16 int64 tensors shaped as counter, the low words; keys and nonces are broadcast to it."""
    constants = [int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in (0, 4, 8, 12)]
    start = [torch.zeros_like(counter) + word for word in (*constants, *key)]
    start += [torch.zeros_like(counter) + word for word in (counter, high, nonce & _LOW, (nonce >> 32) & _LOW)]
    s = list(start)
    for turn in range(8):
        for column in range(4):
            a, b, c, d = (4 * row + (column + (turn % 2) * row) % 4 for row in range(4))
            for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) & _LOW
                mixed = s[z] ^ s[x]
                s[z] = ((mixed << by) | (mixed >> (32 - by))) & _LOW
    return [(x + y) & _LOW for x, y in zip(s, start, strict=True)]


def blocks_of_steps(found: Documents, document: int, numbers: torch.Tensor, per_block: int, added: int) -> torch.Tensor:
    """The blocks in which each step of a document reads numbers int64[N]: int64[16, T, N].

    per_block: numbers of a block.
    added: to the higher words of counters.
    """
    part, device = slice(found.offsets[document], found.offsets[document + 1]), numbers.device
    ids, nonces, *key = (
        torch.from_numpy(values[part].astype(np.int64)).to(device)[:, None]
        for values in (found.ids, found.nonces, *found.keys)
    )
    counter = ids * (2**32 // per_block) + numbers // per_block
    return torch.stack(blocks(key, counter & _LOW, (counter >> 32) | added, nonces))


def digits_of_steps(found: Documents, document: int, numbers: torch.Tensor) -> torch.Tensor:
    """The eight digits that each step of a document has for numbers int64[N], as integers: int64[T, N]."""
    block = blocks_of_steps(found, document, numbers, 64, 2**31)
    value = torch.zeros_like(block[0])
    for plane in range(8):
        word = 2 * plane + (numbers // 32) % 2
        value = 2 * value + ((block.gather(0, word.expand_as(value)[None])[0] >> (numbers % 32)) & 1)
    return value


def plain_scores(found: Documents, document: int, count: int, device: torch.device) -> np.ndarray:
    """Rough scores of the numbers 0 … count−1: int64[N]."""
    digits = digits_of_steps(found, document, torch.arange(count, device=device))
    ones = sum((digits >= 256 - (128 >> (k - 1))).long() for k in range(1, 9))
    return torch.as_tensor(ones).sum(dim=0).cpu().numpy()


def on_fresh_documents(device: torch.device, seed: int, lengths: list[int], count: int) -> Check:
    """Checks the best eight numbers of each document, ties to the smaller."""
    found = draw(np.random.default_rng(seed), lengths)
    numbers, scores = runs.best_rough(found.put(device), found.runs(count), 8)
    wrong = 0
    for document in range(len(lengths)):
        plain = plain_scores(found, document, count, device)
        best = np.lexsort((np.arange(count), -plain))[:8]
        wrong += numbers[document].tolist() != best.tolist() or scores[document].tolist() != plain[best].tolist()
    return Check(f"fresh documents, {count} numbers", len(lengths), wrong)


def of_draws(device: torch.device, seed: int, lengths: list[int]) -> Check:
    """Checks draws in full of a few numbers of each document."""
    found, numbers = draw(np.random.default_rng(seed), lengths), np.array([0, 77, 2**16 + 15, 2**32 - 1])
    places = np.arange(len(found.ids)).repeat(len(numbers))
    mine = runs.draws_of(found.put(device), places, np.tile(numbers, len(found.ids))).reshape(-1, len(numbers))
    wrong, read = 0, torch.from_numpy(numbers).to(device)
    for document in range(len(lengths)):
        first = digits_of_steps(found, document, read)
        whole = (first << 24) | (words_of_steps(found, document, read) >> 8)
        part = mine[found.offsets[document] : found.offsets[document + 1]]
        wrong += part.astype(np.int64).tolist() != whole.cpu().tolist()
    return Check("draws in full", len(lengths), wrong)


def words_of_steps(found: Documents, document: int, numbers: torch.Tensor) -> torch.Tensor:
    """Words of one plane that each step of a document has for numbers int64[N]: int64[T, N]."""
    block = blocks_of_steps(found, document, numbers, 16, 0)
    return block.gather(0, (numbers % 16).expand_as(block[0])[None])[0]


def words(key: np.ndarray, nonces: torch.Tensor, word: torch.Tensor, planes: int, plane: int) -> torch.Tensor:
    """Words [T, N] (int64) of one plane for nonces int64[T] and word numbers int64[T, N] of version 1 (SPEC §1)."""
    height = 16 // planes
    group, r = word // (16 * height), word % (16 * height)
    counter = 16 * group + r % 16
    block = torch.stack(blocks(key.tolist(), counter & _LOW, counter >> 32, nonces[:, None]))
    return block.gather(0, (plane * height + r // 16)[None])[0]


def entries(key: np.ndarray, nonces: torch.Tensor, entry: torch.Tensor, rule: GreenRule | None) -> torch.Tensor:
    """Draws, or green bits, of entries int64[T, N] of version 1: int64[T, N]."""
    if rule is None:
        return words(key, nonces, entry, 1, 0)
    number = torch.zeros_like(entry)
    for plane in range(rule.bits):
        word = words(key, nonces, entry // 32, rule.planes, plane)
        number = 2 * number + ((word >> (entry % 32)) & 1)
    return (number < rule.n).long()


def of_vectors(device: torch.device, seed: int, vocabulary: int) -> Iterator[Check]:
    """Checks secret vectors of marking with h = 0, where all rows have the nonce of the empty string."""
    generator = np.random.default_rng(seed)
    for rule in (QUARTER, None):
        key = generator.integers(0, 2**32, 8, dtype=np.uint32)
        sip = generator.integers(0, 2**64, 2, dtype=np.uint64)
        starts = torch.from_numpy(generator.integers(0, 2**31, 3)).to(device)
        windows = torch.empty((3, 0), dtype=torch.int64, device=device)
        vectors = Vectors(key, sip, device)
        wanted = torch.ones((3, vocabulary), dtype=torch.bool, device=device)
        mine = vectors.green(windows, starts, wanted, rule) if rule else vectors.draws(windows, starts, vocabulary)
        nonce = torch.tensor([siphash_of_nothing(sip.tolist())] * 3, dtype=torch.uint64).view(torch.int64).to(device)
        expected = entries(key, nonce, starts[:, None] + torch.arange(vocabulary, device=device), rule)
        wrong = ((mine.long() & _LOW) != expected).any(dim=1).sum()
        yield Check(f"secret vectors, {'1/4' if rule else 'gumbel'}, {vocabulary} tokens", 3, int(wrong))


def of_seeded_vectors(device: torch.device, seed: int, vocabulary: int) -> Iterator[Check]:
    """Checks marking under version 3 by Triton against torch alone: green tokens, draws and the chosen token."""
    generator = np.random.default_rng(seed)
    windows = torch.from_numpy(generator.integers(0, vocabulary, (3, 4))).to(device)
    for groups in (None, 325):
        source = seed_source(generator, groups)
        messages = torch.from_numpy(generator.integers(0, 325**2, 3)).to(device)
        weights = torch.from_numpy(generator.exponential(1.0, (3, vocabulary)) ** 3).to(device)
        wanted = weights > 0.1
        weights = weights.where(wanted, 0.0)
        ours, plain = SeededVectors(source, device), PlainSeededVectors(source, device)
        wrong = (ours.green(windows, messages, wanted, QUARTER) != plain.green(windows, messages, wanted, QUARTER)).any(
            dim=1
        )
        wrong |= (ours.draws(windows, messages, wanted) != plain.draws(windows, messages, wanted)).any(dim=1)
        wrong |= ours.choose(windows, messages, weights) != plain.choose(windows, messages, weights)
        yield Check(f"seeded vectors, groups {groups}, {vocabulary} tokens", 3, int(wrong.sum()))


def seed_source(generator: np.random.Generator, groups: int | None) -> SeedSource:
    """What draws steps' keys, at random."""
    words = generator.integers(0, 2**32, 8, dtype=np.uint32)
    return SeedSource(words, generator.bytes(32), generator.integers(0, 2**64, 4, dtype=np.uint64), 24, groups)


def siphash_of_nothing(key: list[int]) -> int:
    """SipHash-2-4 of the empty string."""
    whole = 2**64 - 1
    v = [key[i % 2] ^ word for i, word in enumerate((0x736F6D6570736575, 0x646F72616E646F6D))]
    v += [key[i % 2] ^ word for i, word in enumerate((0x6C7967656E657261, 0x7465646279746573))]

    def turn(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & whole

    for number in range(6):
        if number == 2:
            v[2] ^= 0xFF
        v[0], v[2] = (v[0] + v[1]) & whole, (v[2] + v[3]) & whole
        v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
        v[0] = turn(v[0], 32)
        v[2], v[0] = (v[2] + v[1]) & whole, (v[0] + v[3]) & whole
        v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
        v[2] = turn(v[2], 32)
    return v[0] ^ v[1] ^ v[2] ^ v[3]

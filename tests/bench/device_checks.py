"""A device's answers against plain torch on fresh random documents.

The plain side computes a whole block for every entry, in 64-bit integers; it shares no code with the kernels.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from scanner.gpu import runs
from scanner.gpu.runs import Batch
from scanner.gpu.vectors import GreenRule, Vectors

_LOW = 0xFFFFFFFF


class Documents(NamedTuple):
    """A key and scored tokens: uint32[8], uint32[P], uint64[P], int64[D+1]; rule None: Gumbel."""

    key: np.ndarray
    ids: np.ndarray
    nonces: np.ndarray
    offsets: np.ndarray
    rule: GreenRule | None

    def runs(self, device: torch.device, count: int) -> runs.Runs:
        """The numbers 0 … count−1 of each document, of which the best two are asked for."""
        batch = Batch.put(self.key, self.ids, self.nonces, self.offsets, device)
        scored = np.diff(self.offsets)
        nothing = np.zeros(len(scored), np.int64)
        return runs.Runs(batch, scored, nothing, count, 2, 2, np.full(len(scored), np.inf))


class Check(NamedTuple):
    """Numbers of documents that were compared, and of those with a different verdict."""

    name: str
    documents: int
    wrong: int


def draw(generator: np.random.Generator, lengths: list[int], rule: GreenRule | None) -> Documents:
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    total = int(offsets[-1])
    key = generator.integers(0, 2**32, 8, dtype=np.uint32)
    ids = generator.integers(0, 2**32, total, dtype=np.uint32)
    return Documents(key, ids, generator.integers(0, 2**64, total, dtype=np.uint64), offsets, rule)


def blocks(key: list[int], counter: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> list[torch.Tensor]:
    """ChaCha8 blocks as 16 int64 tensors shaped as counter (int64), for low and high words of nonces."""
    constants = [int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in (0, 4, 8, 12)]
    start = [torch.full_like(counter, word) for word in (*constants, *key)]
    start += [counter & _LOW, counter >> 32, low.expand_as(counter), high.expand_as(counter)]
    s = list(start)
    for turn in range(8):
        for column in range(4):
            a, b, c, d = (4 * row + (column + (turn % 2) * row) % 4 for row in range(4))
            for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) & _LOW
                mixed = s[z] ^ s[x]
                s[z] = ((mixed << by) | (mixed >> (32 - by))) & _LOW
    return [(x + y) & _LOW for x, y in zip(s, start, strict=True)]


def words(found: Documents, nonces: torch.Tensor, word: torch.Tensor, planes: int, plane: int) -> torch.Tensor:
    """Words [T, N] (int64) of one plane for nonces int64[T] and word numbers int64[T, N] (SPEC §1)."""
    height = 16 // planes
    group, r = word // (16 * height), word % (16 * height)
    low, high = (nonces & _LOW)[:, None], ((nonces >> 32) & _LOW)[:, None]
    block = torch.stack(blocks(found.key.tolist(), 16 * group + r % 16, low, high))
    return block.gather(0, (plane * height + r // 16)[None])[0]


def entries(found: Documents, nonces: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """Draws, or green bits, of entries int64[T, N]: int64[T, N]."""
    if found.rule is None:
        return words(found, nonces, entry, 1, 0)
    number = torch.zeros_like(entry)
    for plane in range(found.rule.bits):
        word = words(found, nonces, entry // 32, found.rule.planes, plane)
        number = 2 * number + ((word >> (entry % 32)) & 1)
    return (number < found.rule.n).long()


def of_numbers(found: Documents, nonces: torch.Tensor, tokens: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Draws that tokens int64[T] read under numbers int64[N] in streams of version 2: int64[T, N]."""
    counter = tokens[:, None] * (2**32 // 16) + number // 16
    low, high = (nonces & _LOW)[:, None], ((nonces >> 32) & _LOW)[:, None]
    block = torch.stack(blocks(found.key.tolist(), counter, low, high))
    return block.gather(0, (number % 16).expand_as(counter)[None])[0]


def plain_best_two(found: Documents, count: int, device: torch.device) -> np.ndarray:
    """Best two numbers and scores of each document, every number scored: float64[D, 4]."""
    rows = []
    ids, nonces = found.ids.astype(np.int64), found.nonces.view(np.int64)
    number = torch.arange(count, device=device)
    for begin, end in zip(found.offsets, found.offsets[1:], strict=False):
        x, nonce = (torch.from_numpy(part[begin:end].copy()).to(device) for part in (ids, nonces))
        values = of_numbers(found, nonce, x, number)
        scores = -torch.log((2.0**32 - values.double()) * 2.0**-32).sum(dim=0).cpu().numpy()
        a, b = np.lexsort((np.arange(count), -scores))[:2]
        rows.append((a, scores[a], b, scores[b]))
    return np.array(rows)


def exact(found: Documents) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Gumbel scores of pairs of document and number, in double precision and the order of positions, by numpy."""

    def scores(documents: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        out = []
        for d, m in zip(documents.tolist(), numbers.tolist(), strict=True):
            part = slice(found.offsets[d], found.offsets[d + 1])
            nonces = torch.from_numpy(found.nonces[part].view(np.int64).copy())
            tokens = torch.from_numpy(found.ids[part].astype(np.int64))
            draws = of_numbers(found, nonces, tokens, torch.tensor([m])).numpy()
            terms = [-math.log((2.0**32 - w) * 2.0**-32) for w in draws[:, 0].tolist()]
            total = 0.0
            for term in terms:
                total += term
            out.append(total)
        return np.array(out)

    return scores


def on_device(found: Documents, count: int, device: torch.device) -> np.ndarray:
    """Best two numbers and scores of each document by the kernels: float64[D, 4]."""
    numbers, scores = runs.best_sums(found.runs(device, count), exact(found))
    return np.stack([numbers[:, 0], scores[:, 0], numbers[:, 1], scores[:, 1]], axis=1).astype(np.float64)


def compare(name: str, a: np.ndarray, b: np.ndarray) -> Check:
    """Compares row by row: messages must agree, and scores to 1e-12, since logarithms differ."""
    same = (a[:, [0, 2]] == b[:, [0, 2]]).all(axis=1)
    same &= (np.abs(a[:, [1, 3]] - b[:, [1, 3]]) <= 1e-12 * np.abs(b[:, [1, 3]])).all(axis=1)
    return Check(name, len(a), int((~same).sum()))


def on_fresh_documents(device: torch.device, seed: int, lengths: list[int], count: int) -> Check:
    found = draw(np.random.default_rng(seed), lengths, None)
    wanted = plain_best_two(found, count, device)
    return compare(f"fresh documents, gumbel, M = {count}", on_device(found, count, device), wanted)


def of_vectors(device: torch.device, seed: int, vocabulary: int) -> Iterator[Check]:
    """Checks secret vectors of marking with h = 0, where all rows have the nonce of the empty string."""
    generator = np.random.default_rng(seed)
    for rule in (GreenRule(1, 2, 2), None):
        found = draw(generator, [0], rule)
        sip = generator.integers(0, 2**64, 2, dtype=np.uint64)
        starts = torch.from_numpy(generator.integers(0, 2**31, 3)).to(device)
        windows = torch.empty((3, 0), dtype=torch.int64, device=device)
        vectors = Vectors(found.key, sip, device)
        wanted = torch.ones((3, vocabulary), dtype=torch.bool, device=device)
        mine = vectors.green(windows, starts, wanted, rule) if rule else vectors.draws(windows, starts, vocabulary)
        nonce = torch.tensor([siphash_of_nothing(sip.tolist())] * 3, dtype=torch.uint64).view(torch.int64).to(device)
        expected = entries(found, nonce, starts[:, None] + torch.arange(vocabulary, device=device))
        wrong = ((mine.long() & _LOW) != expected).any(dim=1).sum()
        yield Check(f"secret vectors, {'1/4' if rule else 'gumbel'}, {vocabulary} tokens", 3, int(wrong))


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

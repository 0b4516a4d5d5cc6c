"""Compute the tree over a key's seeds, to whose root the key commits, and R, which all its steps hash (SPEC_3 §2).

It is the Merkle tree of RFC 9162 over 2^n leaves. A level of 4,096 nodes is kept. So the path of a seed costs only the
leaves below one of these: 4,096 of 2^24. Nodes reveal nothing about a seed. The seed key reveals all seeds.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy import uint32
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.secret import beacon_of_digest
from scanner.watermark.native.sha256 import hash_leaves, hash_nodes
from schemas.key_record import FEWEST_SEEDS, MOST_SEEDS

_KEPT_LEVEL = 12
"""log2 of the number of kept nodes."""

HASH_BYTES = 32


class ShownSeed(NamedTuple):
    """A seed that a claim shows. Anybody can check it against the root. Its repr does not show it.

    bucket: of the seed.
    seed: 32 bytes.
    path: n hashes of 32 bytes, the leaf's neighbour first.
    """

    bucket: int
    seed: bytes
    path: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"ShownSeed(bucket={self.bucket}, …)"


def beacon_of(record: bytes, value: bytes) -> bytes:
    """Return R, 32 bytes, of a public record as it was published, and the value of the beacon that it names.

    The value is empty if the record names no beacon (SPEC_3 §2).
    """
    return beacon_of_digest(hashlib.sha256(record).digest(), value)


def seed_of(seed_key: NDArray[np.uint32], bucket: int) -> bytes:
    """Return the seed of a bucket, 32 bytes: words 0 … 7 of its block (SPEC_3 §1). seed_key: uint32[8]."""
    inputs, block = np.zeros(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    inputs[2 * CHUNK] = bucket
    chacha8_lanes(seed_key, inputs, 1, block)
    return block[: 8 * CHUNK : CHUNK].astype("<u4").tobytes()


def leaf_of(seed: bytes) -> bytes:
    """Return the leaf of a seed of 32 bytes."""
    return hashlib.sha256(b"\x00" + seed).digest()


def node_of(left: bytes, right: bytes) -> bytes:
    """Return the node above two others, of 32 bytes each."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_by(shown: ShownSeed) -> bytes:
    """Return the root to which a seed's path leads. The bits of the bucket tell the sides, the lowest first."""
    node = leaf_of(shown.seed)
    for height, neighbour in enumerate(shown.path):
        node = node_of(neighbour, node) if shown.bucket >> height & 1 else node_of(node, neighbour)
    return node


def root_of(nodes: Sequence[bytes]) -> bytes:
    """Return the root above the nodes of one level: a power of two of them, 32 bytes each."""
    return _levels_above(nodes)[-1][0]


def _levels_above(nodes: Sequence[bytes]) -> list[list[bytes]]:
    """Return the nodes and all levels above them, the root last."""
    levels = [list(nodes)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([node_of(below[i], below[i + 1]) for i in range(0, len(below), 2)])
    return levels


def kept_count(seeds: int) -> int:
    """Return the number of kept nodes of the tree over 2^n seeds. n is `seeds`."""
    return 1 << min(seeds, _KEPT_LEVEL)


def grow_tree(
    seed_key: NDArray[np.uint32], seeds: int, watch: Callable[[int, int], object] = lambda done, of: None
) -> list[bytes]:
    """Return the nodes to keep of a key's tree, 32 bytes each. 2^24 seeds take some four seconds on a core.

    Args:
        seed_key: uint32[8], which draws the seeds.
        seeds: n, 4 to 28.
        watch: called with the number of nodes done and of all nodes. An exception from it ends the work.

    Raises:
        ValueError: n is out of its range.
    """
    height = _kept_height(seeds)
    nodes, count = _room(height), kept_count(seeds)
    kept = []
    for number in range(count):
        _grow(seed_key, number << height, height, nodes)
        kept.append(_node(nodes, 1))
        watch(number + 1, count)
    return kept


def show_seeds(
    seed_key: NDArray[np.uint32], seeds: int, kept: Sequence[bytes], buckets: Iterable[int]
) -> list[ShownSeed]:
    """Return the seeds of buckets with their paths, in ascending order of the buckets, each once.

    Args:
        seed_key: uint32[8].
        seeds: n.
        kept: nodes from `grow_tree`.
        buckets: 0 … 2^n − 1.

    Raises:
        ValueError: a bucket is out of its range, or the kept nodes are not this key's.
    """
    height = _kept_height(seeds)
    if len(kept) != kept_count(seeds):
        raise ValueError(f"{len(kept)} nodes are kept, and a tree over 2^{seeds} seeds has {kept_count(seeds)}")
    wanted = sorted(set(buckets))
    beyond = [bucket for bucket in wanted if not 0 <= bucket < 1 << seeds]
    if beyond:
        raise ValueError(f"bucket {beyond[0]} is not one of 2^{seeds}")
    above, nodes, grown, shown = _levels_above(kept), _room(height), -1, []
    for bucket in wanted:
        number, place = bucket >> height, bucket & ((1 << height) - 1)
        if number != grown:
            _grow(seed_key, number << height, height, nodes)
            grown = number
            if _node(nodes, 1) != kept[number]:
                raise ValueError("the kept nodes of the tree are not this key's; compute them again from its secret")
        column = (1 << height) + place
        path = [_node(nodes, (column >> level) ^ 1) for level in range(height)]
        path += [level[(number >> i) ^ 1] for i, level in enumerate(above[:-1])]
        shown.append(ShownSeed(bucket, seed_of(seed_key, bucket), tuple(path)))
    return shown


def _kept_height(seeds: int) -> int:
    """Return the number of levels below the kept nodes."""
    if not FEWEST_SEEDS <= seeds <= MOST_SEEDS:
        raise ValueError(f"seeds = {seeds}: 2^{FEWEST_SEEDS} to 2^{MOST_SEEDS} are allowed; 24 is the default")
    return max(0, seeds - _KEPT_LEVEL)


def _room(height: int) -> NDArray[np.uint32]:
    return np.empty((8, 2 << height), np.uint32)


def _node(nodes: NDArray[np.uint32], column: int) -> bytes:
    return nodes[:, column].astype(">u4").tobytes()


@kernel
def _swapped(word: uint32) -> uint32:
    """Return a word with its bytes in the other order."""
    outer = uint32(uint32(word << uint32(24)) | uint32(word >> uint32(24)))
    inner = uint32(uint32(word & uint32(0xFF00)) << uint32(8))
    return uint32(uint32(outer | inner) | uint32(uint32(word >> uint32(8)) & uint32(0xFF00)))


@kernel
def _grow(key: NDArray[np.uint32], first: int, height: int, nodes: NDArray[np.uint32]) -> None:
    """Write the nodes above 2^height leaves, for the buckets from `first` on.

    Args:
        key: uint32[8], the seed key.
        first: a bucket, a multiple of 2^height.
        height: number of levels below the topmost of these nodes.
        nodes: uint32[8, 2 · 2^height], written: column 1 is the topmost, and 2c and 2c + 1 are below c.
    """
    inputs, block = np.zeros(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    work, hashes = np.empty(24 * CHUNK, np.uint32), np.empty(8 * CHUNK, np.uint32)
    leaves = 1 << height
    for begin in range(0, leaves, CHUNK):
        lanes = min(CHUNK, leaves - begin)
        for i in range(lanes):
            inputs[2 * CHUNK + i] = uint32(first + begin + i)  # the nonce; n is at most 28
        chacha8_lanes(key, inputs, lanes, block)
        for i in range(8 * CHUNK):
            block[i] = _swapped(block[i])
        hash_leaves(block, lanes, work, hashes)
        for k in range(8):
            nodes[k, leaves + begin : leaves + begin + lanes] = hashes[CHUNK * k : CHUNK * k + lanes]
    left, right = np.empty(8 * CHUNK, np.uint32), np.empty(8 * CHUNK, np.uint32)
    for level in range(height - 1, -1, -1):
        count = 1 << level
        for begin in range(0, count, CHUNK):
            lanes = min(CHUNK, count - begin)
            column = 2 * (count + begin)
            for k in range(8):
                left[CHUNK * k : CHUNK * k + lanes] = nodes[k, column : column + 2 * lanes : 2]
                right[CHUNK * k : CHUNK * k + lanes] = nodes[k, column + 1 : column + 2 * lanes : 2]
            hash_nodes(left, right, lanes, work, hashes)
            for k in range(8):
                nodes[k, count + begin : count + begin + lanes] = hashes[CHUNK * k : CHUNK * k + lanes]

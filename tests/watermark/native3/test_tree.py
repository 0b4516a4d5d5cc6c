"""The tree of seeds against a plain one of hashlib: leaves, nodes, roots, paths, and R."""

import hashlib
import json
from importlib import resources

import numpy as np
import pytest

from scanner.watermark.native import sha256, tree
from scanner.watermark.native.ciphers import CHUNK
from tests import reference3

KNOWN = json.loads((resources.files("scanner.watermark.native") / "known_answers_3.json").read_text(encoding="utf-8"))
SECRET = bytes(range(1, 33))
LABEL = "gumbel-v3;h=4;seeds=24"
PLAIN_KEY = reference3.seed_key(SECRET, LABEL)
SEED_KEY = np.array(PLAIN_KEY, np.uint32)


def plain_leaf(bucket: int) -> bytes:
    return hashlib.sha256(b"\0" + reference3.seed_of(PLAIN_KEY, bucket)).digest()


def plain_level(below: list[bytes]) -> list[bytes]:
    return [hashlib.sha256(b"\1" + below[i] + below[i + 1]).digest() for i in range(0, len(below), 2)]


def plain_root(leaves: list[bytes]) -> bytes:
    while len(leaves) > 1:
        leaves = plain_level(leaves)
    return leaves[0]


def plain_way_up(bucket: int, leaf: bytes, path: tuple[bytes, ...]) -> bytes:
    for neighbour in path:
        pair = neighbour + leaf if bucket % 2 else leaf + neighbour
        leaf, bucket = hashlib.sha256(b"\1" + pair).digest(), bucket // 2
    return leaf


@pytest.mark.seconds
@pytest.mark.parametrize("lanes", [1, 2, 15, 16, 17, 33, 200, CHUNK])
def test_hashes_side_by_side_are_those_of_hashlib(lanes):
    generator = np.random.default_rng(lanes)
    left, right = generator.integers(0, 2**32, (2, 8, CHUNK), np.uint32)
    work, hashes = np.full(24 * CHUNK, 7, np.uint32), np.full(8 * CHUNK, 7, np.uint32)

    def written(words: np.ndarray) -> list[bytes]:
        return [column.astype(">u4").tobytes() for column in words.reshape(8, CHUNK).T[:lanes]]

    for _ in range(2):  # what a run left behind is of no account
        sha256.hash_leaves(left.ravel(), lanes, work, hashes)
        assert written(hashes) == [hashlib.sha256(b"\0" + seed).digest() for seed in written(left)]
        sha256.hash_nodes(left.ravel(), right.ravel(), lanes, work, hashes)
        pairs = zip(written(left), written(right), strict=True)
        assert written(hashes) == [hashlib.sha256(b"\1" + a + b).digest() for a, b in pairs]


def test_hashes_of_extreme_words_are_those_of_hashlib():
    work, hashes = np.empty(24 * CHUNK, np.uint32), np.empty(8 * CHUNK, np.uint32)
    for byte in (0, 0x7F, 0x80, 0xFF):
        words = np.full(8 * CHUNK, int.from_bytes(bytes([byte] * 4), "big"), np.uint32)
        sha256.hash_leaves(words, 1, work, hashes)
        assert hashes[::CHUNK].astype(">u4").tobytes() == hashlib.sha256(b"\0" + bytes([byte] * 32)).digest()
        sha256.hash_nodes(words, words, 1, work, hashes)
        assert hashes[::CHUNK].astype(">u4").tobytes() == hashlib.sha256(b"\1" + bytes([byte] * 64)).digest()


@pytest.mark.parametrize("case", KNOWN["trees"], ids=lambda case: case["label"])
def test_known_answers(case):
    key = np.array(reference3.seed_key(bytes.fromhex(case["secret"]), case["label"]), np.uint32)
    kept = tree.grow_tree(key, case["seeds"])
    assert tree.root_of(kept).hex() == case["root"]
    assert tree.beacon_of(case["record"].encode(), bytes.fromhex(case["beacon_value"])).hex() == case["beacon"]
    shown = tree.show_seeds(key, case["seeds"], kept, [one["bucket"] for one in case["shown"]])
    found = {one.bucket: (one.seed.hex(), [node.hex() for node in one.path]) for one in shown}
    assert found == {one["bucket"]: (one["seed"], one["path"]) for one in case["shown"]}
    assert {tree.root_by(one).hex() for one in shown} == {case["root"]}


@pytest.mark.parametrize("seeds", [4, 5, 8])
def test_every_path_of_a_small_tree_leads_to_its_root(seeds):
    leaves = [plain_leaf(bucket) for bucket in range(2**seeds)]
    kept = tree.grow_tree(SEED_KEY, seeds)
    assert kept == leaves  # of a small tree the leaves themselves are kept
    shown = tree.show_seeds(SEED_KEY, seeds, kept, range(2**seeds))
    assert [one.bucket for one in shown] == list(range(2**seeds))
    for one, leaf in zip(shown, leaves, strict=True):
        assert one.seed == reference3.seed_of(PLAIN_KEY, one.bucket)
        assert len(one.path) == seeds
        assert plain_way_up(one.bucket, leaf, one.path) == plain_root(leaves) == tree.root_of(kept)


def test_nodes_above_many_leaves_are_those_of_a_plain_tree(monkeypatch):
    """One level kept of 2^2 nodes over 2^11 leaves: several whole vectors a level, and levels of less than one."""
    monkeypatch.setattr(tree, "_KEPT_LEVEL", 2)
    leaves = [plain_leaf(bucket) for bucket in range(2**11)]
    level = leaves
    while len(level) > 4:
        level = plain_level(level)
    kept = tree.grow_tree(SEED_KEY, 11)
    assert kept == level
    buckets = [0, 1, 511, 512, 1000, 2047]
    for one in tree.show_seeds(SEED_KEY, 11, kept, [*buckets, 1000, 0][::-1]):
        assert plain_way_up(one.bucket, leaves[one.bucket], one.path) == plain_root(leaves)
        assert one.path[0] == leaves[one.bucket ^ 1]


@pytest.mark.costly
def test_a_tree_of_the_usual_size():
    """2^24 seeds: some two seconds. One kept node is held against a plain tree, and paths against the root."""
    kept = tree.grow_tree(SEED_KEY, 24)
    assert len(kept) == 4096
    number = 4095
    assert kept[number] == plain_root([plain_leaf(bucket) for bucket in range(number << 12, (number + 1) << 12)])
    root = plain_root(kept)
    for one in tree.show_seeds(SEED_KEY, 24, kept, [0, 2**24 - 1, 2**23, 12_345_678]):
        assert len(one.path) == 24
        assert plain_way_up(one.bucket, plain_leaf(one.bucket), one.path) == root
        assert tree.root_by(one) == root


def test_a_changed_seed_path_or_bucket_leads_elsewhere():
    kept = tree.grow_tree(SEED_KEY, 6)
    root, (shown,) = tree.root_of(kept), tree.show_seeds(SEED_KEY, 6, kept, [37])
    assert tree.root_by(shown) == root
    assert tree.root_by(shown._replace(bucket=36)) != root
    assert tree.root_by(shown._replace(seed=bytes([shown.seed[0] ^ 1]) + shown.seed[1:])) != root
    for i in range(6):
        path = [*shown.path]
        path[i] = path[i][:-1] + bytes([path[i][-1] ^ 0x80])
        assert tree.root_by(shown._replace(path=tuple(path))) != root


def test_progress_is_told_and_can_end_the_work():
    told = []
    tree.grow_tree(SEED_KEY, 5, lambda done, of: told.append((done, of)))
    assert told == [(done, 32) for done in range(1, 33)]

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tree.grow_tree(SEED_KEY, 5, stop)


@pytest.mark.parametrize("seeds", [-1, 0, 3, 29, 64])
def test_other_numbers_of_seeds_are_refused(seeds):
    with pytest.raises(ValueError, match=r"2\^4 to 2\^28 are allowed"):
        tree.grow_tree(SEED_KEY, seeds)


def test_buckets_and_nodes_of_another_tree_are_refused(monkeypatch):
    monkeypatch.setattr(tree, "_KEPT_LEVEL", 3)
    kept = tree.grow_tree(SEED_KEY, 6)
    assert tree.show_seeds(SEED_KEY, 6, kept, []) == []
    for bucket in (-1, 64):
        with pytest.raises(ValueError, match=rf"^bucket {bucket} is not one of 2\^6"):
            tree.show_seeds(SEED_KEY, 6, kept, [3, bucket])
    with pytest.raises(ValueError, match="7 nodes are kept, and a tree over 2\\^6 seeds has 8"):
        tree.show_seeds(SEED_KEY, 6, kept[:-1], [3])
    changed = [*kept[:-1], bytes(32)]
    with pytest.raises(ValueError, match="are not this key's"):
        tree.show_seeds(SEED_KEY, 6, changed, [63])
    other = np.array(reference3.seed_key(SECRET, LABEL.replace("h=4", "h=3")), np.uint32)
    with pytest.raises(ValueError, match="are not this key's"):
        tree.show_seeds(other, 6, kept, [3])


def test_a_shown_seed_is_in_no_repr():
    (shown,) = tree.show_seeds(SEED_KEY, 4, tree.grow_tree(SEED_KEY, 4), [9])
    assert repr(shown) == "ShownSeed(bucket=9, …)"


def test_r_depends_on_record_and_value():
    record = b'{"version":3}'
    expected = hashlib.sha256(b"brickscan-beacon-v3" + hashlib.sha256(record).digest() + b"\1\2").digest()
    assert tree.beacon_of(record, b"\1\2") == expected
    assert len({expected, tree.beacon_of(record, b""), tree.beacon_of(record + b" ", b"\1\2")}) == 3

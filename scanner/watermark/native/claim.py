"""Compute the score of a claim from the seeds that it shows (SPEC_3 §5).

It needs no secret, and shares no code with scans.

A claim is about one unit: a text, its normal form, or a part of it. It counts at most 1,000 positions, chosen by a
public hash of window and token. If an earlier claim showed the seed of a position, the position still counts in T, but
adds at most its mean. A person who read that claim could choose tokens by the seed.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.native.proof import chacha8_of_each, siphash24
from scanner.watermark.native.secret import planes_of, window_key
from scanner.watermark.native.tree import HASH_BYTES, leaf_of
from scanner.watermark.proof import log10_binomial, log10_gamma
from schemas.key_record import Label, parse_label

MOST_POSITIONS = 1000
"""Largest number of positions that a claim counts."""

_MEAN = 1.0
"""Mean of a draw's score, −ln(1 − r)."""


class ClaimedPositions(NamedTuple):
    """The positions that a claim about a unit counts, in their order (SPEC_3 §5).

    tokens: uint32[P].
    nonces: N, uint64[P].
    seconds: N', uint64[P].
    buckets: of their seeds, int64[P].
    """

    tokens: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    seconds: NDArray[np.uint64]
    buckets: NDArray[np.int64]


class ClaimScore(NamedTuple):
    """The score of a claim for its one message.

    scored: T.
    score: S, a whole number for green lists.
    scored_user: T_U. Without groups all steps are user steps.
    score_user: S_U.
    shows: leaves of the buckets that the claim is the first to show, sorted.
    log10_p: of S over T, for one message.
    log10_p_user: of S_U over T_U, for one message.
    """

    scored: int
    score: int | float
    scored_user: int
    score_user: int | float
    shows: tuple[bytes, ...]
    log10_p: float
    log10_p_user: float


def claimed_positions(tokens: Sequence[int], label: str, most: int = MOST_POSITIONS) -> ClaimedPositions:
    """Return the positions that a claim about a unit counts.

    Args:
        tokens: tokens of the unit only.
        label: label of the key, version 3.
        most: largest number of counted positions. If there are more, those of smallest SHA-256(N ‖ N' ‖ token) count.

    Raises:
        ValueError: the label is none of version 3, or a token is no number of 32 bits.
    """
    key = parse_label(label)
    if any(not 0 <= token < 2**32 for token in tokens):
        raise ValueError("a token is an unsigned 32-bit number")
    ids = np.array(tokens, np.uint32)
    places, nonces, seconds = _steps(ids, key)
    counted = choose_steps(_rank(nonces, seconds, ids[places]), most)
    buckets = (nonces[counted] >> np.uint64(64 - key.seeds)).astype(np.int64)
    return ClaimedPositions(ids[places[counted]], nonces[counted], seconds[counted], buckets)


def rank_steps(ids: NDArray[np.uint32], label: str) -> NDArray[np.int64]:
    """Return the rank of each position of a text among all, by SHA-256(N ‖ N' ‖ token): int64[P]. Repeats rank alike.

    Args:
        ids: tokens of the text, uint32[T]. P = T − h.
        label: label of the key, version 3.
    """
    places, nonces, seconds = _steps(ids, parse_label(label))
    return _rank(nonces, seconds, ids[places])


def choose_steps(ranks: NDArray[np.int64], most: int = MOST_POSITIONS) -> NDArray[np.int64]:
    """Return the numbers of the positions that a claim about a unit counts, ascending: int64[C], C ≤ most.

    Of repeats the first counts.

    Args:
        ranks: of the positions of the unit alone, as `rank_steps` returns them.
        most: if there are more positions, those of lowest rank count.
    """
    _, first = np.unique(ranks, return_index=True)
    return np.sort(first[:most])


def _steps(ids: NDArray[np.uint32], key: Label) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the place, N and N' of each position of a text."""
    places = np.arange(key.window, max(key.window, len(ids)))
    windows = ids[places[:, None] + np.arange(-key.window, 0)]
    halves = window_key(key.window, key.seeds).astype("<u8")
    return places, siphash24(halves[:2].tobytes(), windows), siphash24(halves[2:].tobytes(), windows)


def _rank(nonces: NDArray[np.uint64], seconds: NDArray[np.uint64], tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the rank of each step by its hash, compared as a byte string: int64[P]."""
    hashes = b"".join(
        hashlib.sha256(
            nonce.to_bytes(8, "little") + second.to_bytes(8, "little") + token.to_bytes(4, "little")
        ).digest()
        for nonce, second, token in zip(nonces.tolist(), seconds.tolist(), tokens.tolist(), strict=True)
    )
    words = np.frombuffer(hashes, ">u8").reshape(-1, 4)
    order = np.lexsort(words.T[::-1])  # the last key is the first to be compared
    is_new = np.any(np.diff(words[order].astype(np.uint64), axis=0, prepend=words[order][:1]) != 0, axis=1)
    ranks = np.empty(len(words), np.int64)
    ranks[order] = np.cumsum(is_new)
    return ranks


def score_claim(
    tokens: Sequence[int],
    message: int,
    label: str,
    beacon: bytes,
    seeds: Mapping[int, bytes],
    shown_before: Collection[bytes] = (),
    most: int = MOST_POSITIONS,
) -> ClaimScore:
    """Return the score of a claim that a unit has a message's mark.

    Neither the paths of the seeds (`tree.root_by`) nor the choice of the unit is checked here.

    Args:
        tokens: tokens of the unit only.
        message: m.
        label: label of the key, version 3.
        beacon: R, 32 bytes.
        seeds: seed of each bucket, 32 bytes each. All buckets of the positions must be there, others may be.
        shown_before: leaves that earlier claims showed.
        most: as for `claimed_positions`.

    Raises:
        ValueError: a seed is missing, not valid, or in two buckets. Or a message, R, leaf, token or label is not valid.
    """
    key = parse_label(label)
    if not 0 <= message < key.most_messages:
        raise ValueError(f"message {message} does not exist under a key of {key.most_messages} messages")
    if len(beacon) != HASH_BYTES:
        raise ValueError(f"R has {HASH_BYTES} bytes; here it has {len(beacon)}")
    positions = claimed_positions(tokens, label, most)
    buckets = positions.buckets.tolist()
    _check_seeds(seeds, buckets)
    earlier = frozenset(shown_before)
    if any(
        len(leaf) != HASH_BYTES for leaf in earlier
    ):  # hexadecimal text would equal no leaf, and p would be too small
        raise ValueError(f"a leaf that was shown before has {HASH_BYTES} bytes")
    leaves = {bucket: leaf_of(seeds[bucket]) for bucket in set(buckets)}
    was_shown = np.array([leaves[bucket] in earlier for bucket in buckets], bool)
    keys = _step_keys(positions, seeds, beacon)
    of_group = (keys[7].astype(np.uint64) * np.uint64(3)) >> np.uint64(32) == 0
    if key.groups is None:
        of_group[:] = False
        numbers = np.full(len(buckets), message, np.uint64)
    else:
        group, user = divmod(message, key.groups)
        numbers = np.where(of_group, np.uint64(group), np.uint64(group * 2**16 + user))
    entries = (positions.tokens.astype(np.uint64) << np.uint64(32)) + numbers
    terms = _terms(key, keys, positions.nonces, entries)
    scored, scored_user = len(buckets), int((~of_group).sum())
    if key.gamma is None:
        capped = np.where(was_shown, np.minimum(terms, _MEAN), terms)
        score_user: float = sum(capped[~of_group].tolist(), 0.0)
        score: float = sum(capped[of_group].tolist(), 0.0) + score_user
        log10_p, log10_p_user = log10_gamma(score, scored), log10_gamma(score_user, scored_user)
    else:
        score = _greens(key.gamma, terms, was_shown)
        score_user = _greens(key.gamma, terms[~of_group], was_shown[~of_group])
        log10_p = log10_binomial(score, scored, key.gamma)
        log10_p_user = log10_binomial(score_user, scored_user, key.gamma)
    shows = tuple(sorted(set(leaves.values()) - earlier))
    return ClaimScore(scored, score, scored_user, score_user, shows, log10_p, log10_p_user)


def _check_seeds(seeds: Mapping[int, bytes], buckets: Sequence[int]) -> None:
    missing = sorted(set(buckets) - seeds.keys())
    if missing:
        raise ValueError(f"the claim shows no seed of bucket {missing[0]}, which a position of it meets")
    if any(len(seed) != HASH_BYTES for seed in seeds.values()):
        raise ValueError(f"a seed has {HASH_BYTES} bytes")
    if len(set(seeds.values())) < len(seeds):
        raise ValueError("two buckets have one seed")


def _step_keys(positions: ClaimedPositions, seeds: Mapping[int, bytes], beacon: bytes) -> NDArray[np.uint32]:
    """Return the key of each step, its words as rows: uint32[8, P]."""
    shown = b"".join(seeds[bucket] for bucket in positions.buckets.tolist())
    words = np.frombuffer(shown, "<u4").reshape(-1, 8) ^ np.frombuffer(beacon, "<u4")
    keys = np.ascontiguousarray(words.T, np.uint32)
    keys[0] ^= positions.seconds.astype(np.uint32)
    keys[1] ^= (positions.seconds >> np.uint64(32)).astype(np.uint32)
    return keys


def _terms(
    key: Label, keys: NDArray[np.uint32], nonces: NDArray[np.uint64], entries: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return the term of each position: float64[P], 0 or 1 for green lists."""
    if key.gamma is not None:
        bits = key.gamma.denominator.bit_length() - 1
        value = _digits(keys, nonces, entries, planes_of(key.gamma), bits, 0)
        return np.asarray(value < key.gamma.numerator, np.float64)
    draws = _words(keys, nonces, entries, 1, 0, 0).astype(np.uint64)
    if key.groups is not None:
        digits = _digits(keys, nonces, entries, 8, 8, 2**63)
        draws = (digits << np.uint64(24)) + (draws >> np.uint64(8))
    return np.array([-math.log1p(-draw / 2**32) for draw in draws.tolist()], np.float64)


def _digits(
    keys: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    entries: NDArray[np.uint64],
    planes: int,
    count: int,
    first_block: int,
) -> NDArray[np.uint64]:
    """Return the first `count` binary digits at each entry, plane 0 first, as a number: uint64[P]."""
    value = np.zeros(len(entries), np.uint64)
    for plane in range(count):
        words = _words(keys, nonces, entries >> np.uint64(5), planes, plane, first_block).astype(np.uint64)
        value = (value << np.uint64(1)) | ((words >> (entries & np.uint64(31))) & np.uint64(1))
    return value


def _words(
    keys: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    numbers: NDArray[np.uint64],
    planes: int,
    plane: int,
    first_block: int,
) -> NDArray[np.uint32]:
    """Return a word of a plane at each position: uint32[P]. numbers: uint64[P], the words' numbers."""
    height = 16 // planes
    counters = numbers // np.uint64(height) + np.uint64(first_block)
    block = np.array(chacha8_of_each(keys, counters, nonces)).reshape(16, -1)
    rows = plane * height + (numbers % np.uint64(height)).astype(np.int64)
    return np.asarray(block[rows, np.arange(len(numbers))], np.uint32)


def _greens(gamma: Fraction, terms: NDArray[np.float64], was_shown: NDArray[np.bool_]) -> int:
    """Return the number of greens that were not shown, plus γ times the number of shown ones, rounded down."""
    return int(terms[~was_shown].sum()) + int(terms[was_shown].sum()) * gamma.numerator // gamma.denominator

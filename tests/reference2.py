"""The slow, plain reference of version 2 of the native watermark: what the fast path of version 2 must agree with.

Written from the specification alone, one function a sentence of it, in Python integers and mpmath. It takes from the
reference of version 1 what both versions share (ciphers, window nonces, which positions are scored, laws, corrections),
imports nothing of ours, and shares no code with the fast path.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests import reference

MOST_GROUPS_SEARCHED = 8


def label(method: str, window: int, gamma: Fraction | None = None, groups: int | None = None) -> str:
    parts = [f"{method}-v2", f"h={window}"]
    if gamma is not None:
        parts.append(f"gamma={gamma.numerator}/{gamma.denominator}")
    if groups is not None:
        parts.append(f"groups={groups}")
    return ";".join(parts)


def sub_keys(secret: bytes, label: str) -> reference.SubKeys:
    digest = reference.blake2b(secret, 48, "watermark-v2", label)
    return reference.SubKeys(tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)), digest[32:])


def commitment(secret: bytes, label: str) -> bytes:
    return reference.blake2b(secret, 32, "commitment-v2", label)


def is_group_step(nonce: int) -> bool:
    return ((nonce >> 32) * 3) >> 32 == 0


def entry(token: int, number: int) -> int:
    return token * 2**32 + number


def stream_word(keys: reference.SubKeys, nonce: int, planes: int, plane: int, i: int) -> int:
    """Word `i` of plane `plane`: blocks in order, each with `planes` planes side by side."""
    per_block = 16 // planes
    return reference.chacha8_block(keys.chacha, i // per_block, nonce)[plane * per_block + i % per_block]


def is_green(keys: reference.SubKeys, nonce: int, j: int, gamma: Fraction) -> bool:
    digits = reference.binary_digits(gamma)
    planes = next(power for power in (1, 2, 4, 8) if power >= digits)
    value = 0
    for plane in range(digits):  # most significant first
        value = 2 * value + (stream_word(keys, nonce, planes, plane, j // 32) >> (j % 32) & 1)
    return value < gamma.numerator


@dataclass(frozen=True)
class Step:
    """One scored position."""

    nonce: int
    token: int
    of_group: bool


@dataclass(frozen=True)
class Candidate:
    """A message of one document, its score, and what its group steps add to it."""

    message: int
    score: int | float
    score_group: int | float
    log10_p: float
    log10_p_all: float
    log10_p_user: float


class Method:
    """One of `greenlist`, `gumbel`, `gumbel-log`, with or without groups, under one secret."""

    def __init__(
        self,
        method: str,
        secret: bytes,
        window: int,
        gamma: Fraction | None = None,
        groups: int | None = None,
    ) -> None:
        self.method, self.window, self.gamma, self.groups = method, window, gamma, groups
        self.label = label("greenlist" if method == "greenlist" else "gumbel", window, gamma, groups)
        self.keys, self.commitment = sub_keys(secret, self.label), commitment(secret, self.label)

    def steps(self, tokens: Sequence[int], dedup: str = "ngram") -> list[Step]:
        """The scored positions, in order."""
        tokens = [int(token) for token in tokens]
        nonces = [
            (reference.window_nonce(self.keys, tokens[t - self.window : t]), tokens[t])
            for t in reference.scored_positions(tokens, self.window, dedup)
        ]
        return [Step(nonce, token, self.groups is not None and is_group_step(nonce)) for nonce, token in nonces]

    def number(self, message: int, of_group: bool) -> int:
        """The number that a message reads in a step."""
        if self.groups is None:
            return message
        group, user = divmod(message, self.groups)
        return group if of_group else group * 2**16 + user

    def term(self, step: Step, number: int) -> int | float:
        """Part of the score that one scored position gives to every message that reads `number` in it."""
        j = entry(step.token, number)
        if self.method == "greenlist":
            return int(is_green(self.keys, step.nonce, j, self.gamma))
        draw = stream_word(self.keys, step.nonce, 1, 0, j)
        return (reference.gumbel_term if self.method == "gumbel" else reference.log_gumbel_term)(draw)

    def sum_of(self, steps: Iterable[Step], number: int) -> int | float:
        total = 0 if self.method == "greenlist" else 0.0
        for step in steps:
            total += self.term(step, number)
        return total

    def scores(self, tokens: Sequence[int], message: int, dedup: str = "ngram") -> tuple[int | float, int | float]:
        """S and S_G of one message."""
        steps = self.steps(tokens, dedup)
        of_group = self.sum_of([s for s in steps if s.of_group], self.number(message, True))
        return of_group + self.sum_of([s for s in steps if not s.of_group], self.number(message, False)), of_group

    def log10_p(self, score: float, scored: int) -> float:
        if scored == 0:
            return 0.0
        if self.method == "greenlist":
            return float(reference.log10_greenlist(int(score), scored, self.gamma))
        return float((reference.log10_gumbel if self.method == "gumbel" else reference.log10_gumbel_log)(score, scored))

    def search(self, tokens: Sequence[int], dedup: str = "ngram") -> list[Candidate]:
        """The candidates of a document under a key with groups, best first."""
        steps = self.steps(tokens, dedup)
        of_group, of_user = [s for s in steps if s.of_group], [s for s in steps if not s.of_group]
        sums = {g: self.sum_of(of_group, g) for g in range(self.groups)}
        found = []
        for place, g in enumerate(sorted(sums, key=lambda g: (-sums[g], g))[:MOST_GROUPS_SEARCHED]):
            bound = -float(reference.mpmath.log10(self.groups)) + 1e-9
            if place > 0 and self.log10_p(sums[g], len(of_group)) > bound:
                break
            users = [self.sum_of(of_user, self.number(g * self.groups + v, False)) for v in range(self.groups)]
            own = max(users)
            total, p_user = sums[g] + own, self.log10_p(own, len(of_user))
            p = self.log10_p(total, len(steps))
            found.append(
                Candidate(
                    g * self.groups + users.index(own),
                    total,
                    sums[g],
                    p,
                    float(reference.log10_any_of(p, self.groups**2)),
                    float(reference.log10_any_of(p_user, self.groups)),
                )
            )
        return sorted(found, key=lambda one: (-one.score, one.message))


def names(
    candidates: Sequence[Candidate], groups: int, keys_tested: int, log10_rate: float, log10_misnaming: float
) -> list[int]:
    """The messages of a document under a key with groups that both rules of naming let through."""
    passed = []
    for one in candidates:
        for_all_keys = reference.log10_any_of(one.log10_p, groups**2 * keys_tested)
        for_its_group = reference.log10_any_of(one.log10_p_user, keys_tested)
        if for_all_keys <= log10_rate and for_its_group <= log10_misnaming:
            passed.append(one.message)
    return passed

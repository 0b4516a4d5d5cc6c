"""The law: over keys drawn afresh for every document, is a p-value at or below α as often as it says? (SPEC §4)

One case is a method with its window, share of green tokens and choice of repeats. All messages of a document are
tests, each of them valid; two of them share draws where one window is followed by different tokens, so the document is
the cluster. Message 0 of every document alone gives independent p-values, whose uniformity is tested.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.expectation import Law, exact_law, levels_up_to, randomised_p
from scanner.audit.intervals import Moments, moments
from scanner.watermark import Dedup, Tokens, label, scored_positions
from scanner.watermark.format import Hits
from scanner.watermark.native.nulls import greenlist_hits, gumbel_hits, keys_of

_STEP = 64  # so that nearly equal longest texts share a table of levels


@dataclass(frozen=True)
class Case:
    """What is tested: gamma None is Gumbel; messages: null p-values a document."""

    gamma: Fraction | None
    window: int
    dedup: Dedup
    messages: int

    @property
    def method(self) -> str:
        """Name of the method, as keys have it."""
        return "gumbel" if self.gamma is None else "greenlist"

    @property
    def label(self) -> str:
        """Label of its streams (SPEC §1)."""
        return label(self.method, self.window, self.gamma)

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return f"{self.label};{self.dedup}"


class LawCounts(NamedTuple):
    """What one part of the documents says; parts can be added.

    sums: over documents, of the hits of all messages one by one, each [J]; best: of the best message's p-value,
    corrected for all, which gives one test a document; uniform: float64[D], randomised p-values of message 0.
    """

    sums: Moments
    best: Moments
    uniform: NDArray[np.float64]

    def plus(self, other: "LawCounts") -> "LawCounts":
        """Both parts together."""
        return LawCounts(
            self.sums.plus(other.sums), self.best.plus(other.best), np.concatenate([self.uniform, other.uniform])
        )


def cases(
    gammas: Sequence[Fraction | None], windows: Sequence[int], dedups: Sequence[Dedup], messages: int
) -> list[Case]:
    """All combinations, but window 0 with `context`, where a document has a single scored position."""
    return [
        Case(gamma, window, dedup, messages)
        for gamma in gammas
        for window in windows
        for dedup in dedups
        if (window, dedup) != (0, "context")
    ]


def fresh_secrets(seed: bytes, label: str, documents: NDArray[np.int64]) -> list[bytes]:
    """Secrets for documents of given numbers: the same seed, label and number give the same secret.

    Args:
        seed: up to 64 bytes. These keys mark nothing, so a published seed lets anyone repeat an audit.
        label: of the watermark.
        documents: int64[D].
    """
    return [
        hashlib.blake2b(
            label.encode("ascii") + b"\0" + number.to_bytes(8, "little"), key=seed, digest_size=32, person=b"audit-v1"
        ).digest()
        for number in documents.tolist()
    ]


def law_counts(
    case: Case,
    tokens: Tokens,
    documents: NDArray[np.int64],
    seed: bytes,
    thresholds: Sequence[float],
    law: Law | None = None,
) -> LawCounts:
    """Score documents under all messages of keys of their own.

    Args:
        case: what is tested.
        tokens: of D documents.
        documents: int64[D], numbers that no two documents of an audit share; they decide the keys.
        seed: of all keys.
        thresholds: α[J], from large to small.
        law: gives the p-values; None: the exact law.
    """
    law = law or exact_law(case.gamma)
    positions = scored_positions(tokens, case.window, case.dedup)
    longest = -(-int(positions.scored.max(initial=0)) // _STEP) * _STEP
    single = levels_up_to(law, longest, tuple(thresholds))
    best = levels_up_to(law, longest, tuple(thresholds), case.messages)
    keys = keys_of(fresh_secrets(seed, case.label, documents), case.label)
    critical = np.concatenate([single.critical, best.critical], axis=1)[positions.scored]
    found: Hits
    if case.gamma is None:
        found = gumbel_hits(keys, tokens, positions, case.window, case.messages, critical)
    else:
        found = greenlist_hits(keys, tokens, positions, case.window, case.gamma, case.messages, critical)
    # numpy's generator only splits ties of a discrete score; its seed is that of the keys
    generator = np.random.default_rng([*seed, *case.name.encode(), *documents[:1].tolist()])
    hits, best_hits = found.hits[:, : len(thresholds)], found.hits[:, len(thresholds) :] > 0
    return LawCounts(
        moments(hits, np.full(len(documents), case.messages), single.chance[positions.scored]),
        moments(best_hits, np.ones(len(documents)), best.chance[positions.scored]),
        randomised_p(found.first, positions.scored, case.gamma, generator),
    )

"""Compare a law with counts over fresh keys.

The question: over keys drawn afresh for every document, is a p-value at or below α as often as it says (SPEC §4)? One
case is a method with its window, share of green tokens and choice of repeats. All messages of a document are tests, and
each is valid. Two messages share draws if one window is followed by different tokens, so the document is the cluster.
Message 0 of every document gives independent p-values, whose uniformity is tested.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.hits import ClusterSums, cluster_sums, critical_scores_up_to, randomised_p
from scanner.errors import Refused
from scanner.watermark import Dedup, Format, Tokens
from scanner.watermark.format import CountsHits, DrawsKeys
from scanner.watermark.laws import Law

_STEP = 64  # so that nearly equal longest texts share a table of levels


@dataclass(frozen=True)
class LawCase:
    """A case that is tested.

    messages: number of null p-values of a document.
    """

    format: Format
    dedup: Dedup
    messages: int

    @property
    def name(self) -> str:
        """Return the name that identifies the case."""
        return f"{self.format.label()};{self.dedup}"


class LawCounts(NamedTuple):
    """Counts of one part of the documents. Parts can be added.

    sums: sums over documents of the hits of each message on its own, each [J].
    best: sums over documents of the hits of the best message's p-value, corrected for all messages, one test a
        document.
    uniform: float64[D], randomised p-values of message 0.
    """

    sums: ClusterSums
    best: ClusterSums
    uniform: NDArray[np.float64]

    def plus(self, other: "LawCounts") -> "LawCounts":
        """Return both parts together."""
        return LawCounts(
            self.sums.plus(other.sums), self.best.plus(other.best), np.concatenate([self.uniform, other.uniform])
        )


def cases(formats: Sequence[Format], dedups: Sequence[Dedup], messages: int) -> list[LawCase]:
    """Return all combinations that score more than one position of a text."""
    return [LawCase(format_, dedup, messages) for format_ in formats for dedup in format_.dedups(dedups)]


def fresh_entropy(seed: bytes, label: str, documents: NDArray[np.int64]) -> list[bytes]:
    """Return the entropy of the keys for documents of given numbers. Equal seed, label and number give an equal key.

    These keys mark no text, so a published seed lets anyone repeat an audit.

    Args:
        seed: up to 64 bytes.
        label: of the format, ASCII.
        documents: int64[D].
    """
    return [
        hashlib.blake2b(
            label.encode("ascii") + b"\0" + number.to_bytes(8, "little"), key=seed, digest_size=32, person=b"audit-v1"
        ).digest()
        for number in documents.tolist()
    ]


def law_counts(
    case: LawCase,
    tokens: Tokens,
    documents: NDArray[np.int64],
    seed: bytes,
    thresholds: Sequence[float],
    law: Law | None = None,
) -> LawCounts:
    """Score each document under all messages of a key of its own.

    Args:
        case: the tested case.
        tokens: tokens of D documents.
        documents: int64[D], numbers that no two documents of an audit share. They decide the keys.
        seed: the seed of all keys.
        thresholds: α[J], from large to small.
        law: law that gives the p-values. None: the exact law.
    """
    form, exact = case.format, case.format.law()
    if exact is None or not isinstance(form, DrawsKeys) or not isinstance(form, CountsHits):
        raise Refused(f"law: format {form.name!r} has no law, does not draw keys or does not count hits; leave it out")
    law = law or exact
    secrets = [form.draw_key(entropy) for entropy in fresh_entropy(seed, form.label(), documents)]
    positions = form.rule().positions(tokens, case.dedup)
    longest = -(-int(positions.scored.max(initial=0)) // _STEP) * _STEP
    message_scores = critical_scores_up_to(law, longest, tuple(thresholds))
    best_scores = critical_scores_up_to(law, longest, tuple(thresholds), case.messages)
    critical = np.concatenate([message_scores.critical, best_scores.critical], axis=1)[positions.scored]
    case_hits = form.count_hits(secrets, tokens, positions, case.messages, critical)
    # numpy's generator only splits ties of a discrete score; its seed is the keys' seed
    generator = np.random.default_rng([*seed, *case.name.encode(), *documents[:1].tolist()])
    hits, best_hits = case_hits.hits[:, : len(thresholds)], case_hits.hits[:, len(thresholds) :] > 0
    return LawCounts(
        cluster_sums(hits, np.full(len(documents), case.messages), message_scores.chance[positions.scored]),
        cluster_sums(best_hits, np.ones(len(documents)), best_scores.chance[positions.scored]),
        randomised_p(case_hits.first, positions.scored, exact, generator),
    )

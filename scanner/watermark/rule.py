"""Decide by one rule: positions, best messages, their p, any of M messages, any of K keys, who passes and is named.

Scans, experiments, audits and plans all decide by this rule (SPEC §3, §4; SPEC_3 §4). A missing p-value is NaN
everywhere. This is so where no law is known, where there is no further message, and where a document is not scored. NaN
never passes.

The rank of a key among decoys needs no law, so it holds however the format's hash behaves. If a text is independent of
a key, then the key and 999 decoy keys of its format are exchangeable, and the key has the largest score of all with
probability 1/1000. Decoys are drawn one after another until one scores as high (J. Besag and P. Clifford, Sequential
Monte Carlo p-values, 1991). If this is the l-th decoy, p_rank = 1/l is exact. Unmarked text is done after a few decoys.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.format import Basis, Candidates, RanksAmongDecoys, Searches, Watermark
from scanner.watermark.laws import Law
from scanner.watermark.positions import Positions, Tokens, select_positions, spread_out
from scanner.watermark.pvalues import log10_any_of
from schemas.words import Naming

RANK_DECOYS = 999
"""Number of decoys that a key must beat if its p-values are not proven over the whole key (scanner.watermark.rule)."""

LEAST_RANK = 1.0 / (RANK_DECOYS + 1)
"""Rank of a key that beat all decoys."""


class KeyFindings(NamedTuple):
    """Findings of one key in D documents, with C candidates in each, best first.

    scored: number of scored positions, int64[D].
    correction: K of each document, float64[D].
    message: int64[D, C]. −1 where there is none, or where the document is not scored.
    score: float64[D, C].
    log10_p: p of this message alone, float64[D, C]. Like the other log10 p, NaN without a message.
    log10_p_global: the same, corrected for M messages and K, float64[D, C].
    log10_p_own: p on positions that only this message reads, corrected alike, float64[D, C]. −∞ where the format needs
        no second p, so that it always passes.
    independent: as in Candidates.
    basis: basis of the key.
    p_rank: rank among decoy keys, float64[D, C]. NaN where none was computed.
    """

    scored: NDArray[np.int64]
    correction: NDArray[np.float64]
    message: NDArray[np.int64]
    score: NDArray[np.float64]
    log10_p: NDArray[np.float64]
    log10_p_global: NDArray[np.float64]
    log10_p_own: NDArray[np.float64]
    independent: bool
    basis: Basis
    p_rank: NDArray[np.float64]

    @property
    def passes_rank(self) -> NDArray[np.bool_]:
        """Return where no rank is needed, or no decoy key scored as high: bool[D, C]."""
        return np.full(self.message.shape, True) if self.basis.proven else np.asarray(self.p_rank <= LEAST_RANK)

    def of_nothing(self) -> "KeyFindings":
        """Return the same findings without a message and without a p-value corrected for all keys."""
        void = np.full_like(self.log10_p_global, np.nan)
        return self._replace(message=np.full_like(self.message, -1), log10_p_global=void)

    def of_batch(self, documents: NDArray[np.int64], scored: NDArray[np.int64], correction: ArrayLike) -> "KeyFindings":
        """Spread the findings over all documents of a batch. Documents other than `documents`, int64[d], have none.

        Args:
            documents: the places of these documents among the D documents.
            scored: int64[D], number of scored positions of every document.
            correction: K, one for all or one for each.
        """

        def spread(values: NDArray[Any], fill: float) -> NDArray[Any]:
            out = np.full((len(scored), values.shape[1]), fill, values.dtype)
            out[documents] = values
            return out

        return self._each(spread)._replace(scored=scored, correction=np.full(len(scored), correction, np.float64))

    def of_width(self, candidates: int) -> "KeyFindings":
        """Return the same findings with space for `candidates` candidates of each document, C or more."""
        if candidates == self.message.shape[1]:
            return self
        padding = ((0, 0), (0, candidates - self.message.shape[1]))
        return self._each(lambda values, fill: np.pad(values, padding, constant_values=fill))

    def _each(self, change: Callable[[NDArray[Any], float], NDArray[Any]]) -> "KeyFindings":
        """Change each field that has a value for every candidate.

        `change` also gets the value that means there is none.
        """
        values = self._asdict().items()
        return KeyFindings._make(change(value, _NONE[name]) if name in _NONE else value for name, value in values)


_NONE = {"message": -1, "score": 0.0} | dict.fromkeys(("log10_p", "log10_p_global", "log10_p_own", "p_rank"), np.nan)
"""Fields of KeyFindings that have a value for every candidate, with the value that means there is none."""


class Decision(NamedTuple):
    """The decision of all keys together on D documents.

    key: int64[D], the key that gives the verdict.
    candidate: int64[D], the candidate of that key. It is the named one of smallest corrected p, without a named one the
        best that passes, without such a one the best of all.
    flagged: bool[D].
    passing: for each key bool[D, C], the candidates that pass.
    named: for each key bool[D, C], the candidates to be named.
    naming: object[D], `none` where a document is not flagged. A flagged one has `named`, or the reason why no name is
        given: `ambiguous` (several messages pass, and one mark raises the scores of others), `undecided` (none passes
        by its user evidence), `assumed`.
    """

    key: NDArray[np.int64]
    candidate: NDArray[np.int64]
    flagged: NDArray[np.bool_]
    passing: list[NDArray[np.bool_]]
    named: list[NDArray[np.bool_]]
    naming: NDArray[np.object_]


def long_enough(positions: Positions, least: int) -> tuple[NDArray[np.int64], Positions]:
    """Return the documents with at least so many scored positions, int64[d], and these positions.

    Other documents then cost no time.
    """
    is_enough = positions.scored >= least
    documents = np.flatnonzero(is_enough)
    return documents, positions if is_enough.all() else select_positions(positions, documents)


def log10_p_of(law: Law | None, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
    """Compute log10 p of scores under a law, float64 of their common shape. NaN where there is no law."""
    if law is None:
        return np.full(np.broadcast_shapes(np.shape(score), np.shape(scored)), np.nan)
    return law.log10_p(score, scored)


def corrected(log10_p: ArrayLike, messages: int, correction: ArrayLike = 1) -> NDArray[np.float64]:
    """Correct log10 p of the best of M messages for all of them, then for K tests (SPEC §3).

    Example: with M = 1,000 and K = 4, p = 1e-9 becomes about 4e-6.

    Args:
        log10_p: of the best message alone.
        messages: M.
        correction: K, the number of keys, or 1 over the product of the weights of key, look and variant.
    """
    return log10_any_of(log10_p, messages, correction)


def log10_p_best(law: Law | None, score: ArrayLike, scored: ArrayLike, messages: int) -> NDArray[np.float64]:
    """Compute log10 p of the best of M messages of one key: its own p, corrected for all messages."""
    return corrected(log10_p_of(law, score, scored), messages)


def passes(log10_p: ArrayLike, rate: ArrayLike) -> NDArray[np.bool_]:
    """Return whether p-values are at most a rate. NaN does not pass."""
    return np.asarray(np.asarray(log10_p, np.float64) <= np.log10(rate), np.bool_)


def candidates(mark: Watermark, tokens: Tokens, positions: Positions, messages: int) -> Candidates:
    """Find the best of the messages 0 … M−1 of each document.

    Raises:
        ValueError: there is more than one message, and the watermark cannot tell them apart.
    """
    if isinstance(mark, Searches):
        return mark.search(tokens, positions, messages)
    if messages != 1:
        raise ValueError(f"{mark.label}: cannot be searched for {messages} messages; a key of it has 1")
    score = mark.score(tokens, positions, 0)
    only_message = np.broadcast_to(np.array([0, -1]), (len(score), 2))
    return Candidates(only_message, np.stack([score, np.zeros_like(score)], axis=1))


def search(
    mark: Watermark, tokens: Tokens, positions: Positions, messages: int, correction: ArrayLike = 1
) -> KeyFindings:
    """Search documents for the messages of a key.

    Args:
        mark: the opened key.
        tokens: of the batch.
        positions: scored positions of the D documents to search.
        messages: M.
        correction: K, one for all documents or one for each.
    """
    return findings_of(mark, candidates(mark, tokens, positions, messages), positions.scored, messages, correction)


def findings_of(
    mark: Watermark, best: Candidates, scored: NDArray[np.int64], messages: int, correction: ArrayLike = 1
) -> KeyFindings:
    """Compute the p-values of the scores of D documents' candidates.

    Args:
        mark: the opened key.
        best: the candidates.
        scored: int64[D], number of scored positions.
        messages: M, the number of messages among which the candidates are the best.
        correction: K, one for all documents or one for each.
    """
    corrections = np.full(len(scored), correction, np.float64)
    has_message = best.message >= 0
    log10_p = np.where(has_message, log10_p_of(mark.law, best.score, scored[:, None]), np.nan)
    log10_p_own = np.where(has_message, -np.inf, np.nan)
    if best.user_evidence is not None:
        log10_own = log10_p_of(mark.law, best.user_evidence.score, best.user_evidence.scored[:, None])
        log10_p_own = np.where(
            has_message, corrected(log10_own, best.user_evidence.messages, corrections[:, None]), np.nan
        )
    return KeyFindings(
        scored=scored,
        correction=corrections,
        message=best.message,
        score=best.score.astype(np.float64),
        log10_p=log10_p,
        log10_p_global=corrected(log10_p, messages, corrections[:, None]),
        log10_p_own=log10_p_own,
        independent=best.independent,
        basis=mark.basis,
        p_rank=np.full(best.message.shape, np.nan),
    )


def replace_findings(
    found: KeyFindings, other: KeyFindings, documents: NDArray[np.int64], replacing: NDArray[np.bool_]
) -> KeyFindings:
    """Return the findings of a key in D texts, with some replaced by its findings in other texts of the same documents.

    Args:
        found: findings in the D texts.
        other: findings in V other texts.
        documents: int64[V], the place of each other text's document among the D.
        replacing: bool[V], whether the other text counts.
    """
    width = max(found.message.shape[1], other.message.shape[1])
    found, other = found.of_width(width), other.of_width(width)

    def put(values: NDArray[Any], replacements: NDArray[Any]) -> NDArray[Any]:
        values = values.copy()
        values[documents[replacing]] = replacements[replacing]
        return values

    pairs: Iterable[tuple[Any, Any]] = zip(found, other, strict=True)
    return KeyFindings._make(
        put(value, replacement) if isinstance(value, np.ndarray) else value for value, replacement in pairs
    )


def choose(found: Sequence[KeyFindings]) -> NDArray[np.int64]:
    """Choose the key that gives each document its verdict: int64[D].

    It is the key with the smallest corrected p among those that scored the document, ties to the first. A key with any
    p goes before a key without one. If no key scored the document, it is the key with the most scored positions.
    """
    if len(found) == 1:
        return np.zeros(len(found[0].scored), np.int64)
    scoring = np.stack([under_key.message[:, 0] for under_key in found]) >= 0
    p = np.stack([under_key.log10_p_global[:, 0] for under_key in found])
    # a key without a law has no p: 1 is larger than any log10 p, and smaller than the ∞ of a key that scored nothing
    smallest = np.where(scoring, np.where(np.isnan(p), 1.0, p), np.inf).argmin(axis=0)
    fallback: NDArray[np.int64] = np.stack([under_key.scored for under_key in found]).argmax(axis=0)
    return np.where(scoring.any(axis=0), smallest, fallback)


def decide(found: Sequence[KeyFindings], false_positive_rate: float, misnaming_rate: float | None = None) -> Decision:
    """Make one decision for each document from the findings of all keys.

    Args:
        found: findings of all keys, on the same D documents.
        false_positive_rate: a corrected p at or below it passes.
        misnaming_rate: the same for a candidate's user evidence. None: the false-positive rate.
    """
    misnaming_rate = false_positive_rate if misnaming_rate is None else misnaming_rate
    passing_masks = [
        passes(under_key.log10_p_global, false_positive_rate) & under_key.passes_rank for under_key in found
    ]
    count = np.sum([mask.sum(axis=1) for mask in passing_masks], axis=0)
    if not count.any():  # so it is in nearly all batches
        nothing = np.zeros(len(count), np.int64)
        return Decision(
            choose(found), nothing, nothing > 0, passing_masks, passing_masks, np.full(len(count), Naming.NONE, object)
        )
    # unless messages are independent, the mark of one raises the scores of others: then only a single one is named
    is_single = (count == 1)[:, None]
    own_masks = [passes(under_key.log10_p_own, misnaming_rate) for under_key in found]
    named_masks = [
        mask & (own_passes if under_key.independent else is_single) & (not under_key.basis.assumed)
        for under_key, mask, own_passes in zip(found, passing_masks, own_masks, strict=True)
    ]
    shared, proven = (
        np.any([mask.any(axis=1) & fact for mask, fact in zip(passing_masks, facts, strict=True)], axis=0)
        for facts in (
            [not under_key.independent for under_key in found],
            [not under_key.basis.assumed for under_key in found],
        )
    )
    # each line overrides the lines above it
    naming = np.full(len(count), Naming.NONE, object)
    naming[count > 0] = Naming.UNDECIDED
    naming[shared & (count > 1)] = Naming.AMBIGUOUS
    naming[(count > 0) & ~proven] = Naming.ASSUMED
    has_named = np.any([mask.any(axis=1) for mask in named_masks], axis=0)
    naming[has_named] = Naming.NAMED
    deciding_masks = [np.where(has_named[:, None], *mask) for mask in zip(named_masks, passing_masks, strict=True)]
    key, candidate = _best_of(found, deciding_masks)
    # the best message of such a key may pass by its group alone and belong to a stranger, whatever passes elsewhere
    independent = np.array([under_key.independent for under_key in found])
    naming[(naming == Naming.AMBIGUOUS) & independent[key]] = Naming.UNDECIDED
    return Decision(key, candidate, count > 0, passing_masks, named_masks, naming)


def _best_of(
    findings: Sequence[KeyFindings], deciding_masks: Sequence[NDArray[np.bool_]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find key and candidate of each verdict.

    It is the smallest p among the deciding candidates, or among all if none decides.
    """
    first = [mask.argmax(axis=1) for mask in deciding_masks]  # candidates come best first
    documents = np.arange(len(first[0]))
    p = np.stack(
        [
            np.where(mask.any(axis=1), under_key.log10_p_global[documents, place], np.inf)
            for under_key, mask, place in zip(findings, deciding_masks, first, strict=True)
        ]
    )
    is_decided = p.min(axis=0) < np.inf
    key: NDArray[np.int64] = np.where(is_decided, p.argmin(axis=0), choose(findings))
    return key, np.where(is_decided, np.stack(first)[key, documents], 0)


SECONDS_OF_A_RANK = 300.0
"""Largest number of seconds for ranking a text, by its format's generous estimate.

Without a limit, a person who can make a mark could keep a worker busy for hours with one text.
"""

FEWEST_RANKED, MOST_RANKED = 256, 2**16
"""Smallest and largest number of scored positions of a text that are ranked."""


def most_ranked(seconds: float) -> int:
    """Return how many positions of a text are ranked if each takes so many seconds under a key."""
    return int(min(max(SECONDS_OF_A_RANK / (RANK_DECOYS * seconds), FEWEST_RANKED), MOST_RANKED))


def ranked(
    found: KeyFindings,
    mark: Watermark,
    tokens: Tokens,
    positions: Positions,
    messages: int,
    false_positive_rate: float,
    most: int = MOST_RANKED,
) -> KeyFindings:
    """Rank a key's findings where they would be flagged. If the law is proven, no rank is computed.

    In a long text, only `most` evenly spaced positions are ranked, the same ones for the key and the decoys. If a decoy
    equals a candidate, the candidate's p-value for all keys is at least its rank. A format that cannot draw decoys has
    no rank, so it is not flagged. A candidate that beats all decoys costs as much as searching its text RANK_DECOYS
    times.

    Args:
        found: findings of the D documents.
        mark: the opened key.
        tokens: of the batch.
        positions: of the D documents.
        messages: M, the number of a decoy's messages. The best of them is compared.
        false_positive_rate: a corrected p at or below it would pass.
        most: largest number of scored positions of a text that are ranked.
    """
    if mark.basis.proven or not isinstance(mark, RanksAmongDecoys):
        return found
    is_unbeaten = np.array(passes(found.log10_p_global, false_positive_rate))
    p_rank = np.where(is_unbeaten, LEAST_RANK, np.nan)
    score = found.score
    long_documents = np.flatnonzero(is_unbeaten.any(axis=1) & (positions.scored > most))
    if len(long_documents):
        positions, score = spread_out(positions, most), score.copy()
        for c in range(is_unbeaten.shape[1]):  # `score` takes one message for each document
            rows = long_documents[is_unbeaten[long_documents, c]]
            score[rows, c] = mark.score(tokens, select_positions(positions, rows), found.message[rows, c])
    for number in range(1, RANK_DECOYS + 1):
        documents = np.flatnonzero(is_unbeaten.any(axis=1))
        if not len(documents):
            break
        best = candidates(mark.decoy(number), tokens, select_positions(positions, documents), messages).score[:, :1]
        is_beaten = is_unbeaten[documents] & (best.astype(np.float64) >= score[documents])
        p_rank[documents] = np.where(is_beaten, 1.0 / number, p_rank[documents])
        is_unbeaten[documents] &= ~is_beaten
    # NaN, where no rank was computed, is not above LEAST_RANK
    is_beaten = p_rank > LEAST_RANK
    floored_log10_p = np.maximum(found.log10_p_global, np.log10(np.where(is_beaten, p_rank, 1.0)))
    return found._replace(p_rank=p_rank, log10_p_global=np.where(is_beaten, floored_log10_p, found.log10_p_global))

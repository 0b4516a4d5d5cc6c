"""Measure one key on one traffic: how often it flags unmarked text, and by which n-grams.

A single key's rate differs from the average over keys, because the same boilerplate has the same draws in many
documents. So the key is judged against a multiple of the stated rate. Texts of one account count together, and so do
texts of one piece, such as fillings of one template (scanner.detection.sketches). Each message of the key has other
draws, so the spread between messages shows how large such differences are.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.hits import ClusterSums, chances, cluster_sums
from scanner.audit.statistics.judgement import clusters_of_one_size
from scanner.detection.left_out import LeftOut
from scanner.detection.sketches import CORPUS_CONTEXT, EQUAL_IN_CORPUS, pieces_of, sketch
from scanner.errors import Refused
from scanner.watermark import Dedup, Positions, Tokens, Watermark
from scanner.watermark.laws import Law
from scanner.watermark.positions import PositionRule, reach_of
from scanner.watermark.rule import log10_p_of, search

EXCESS_AT = 1e-3
"""Largest p-value under one message of documents whose n-grams are counted."""

KEPT_NGRAMS = 2000
"""Number of n-grams that a part of the documents reports. All parts together leave out few hits."""


class Ngram(NamedTuple):
    """The tokens that decide a draw, in how many hits they were scored, and their score above the mean there."""

    hits: int
    excess: float


class KeyCounts(NamedTuple):
    """Counts of documents about a key. Parts can be joined.

    tables: tables of parts of the documents, float64[D, 2J]: whether the best message's corrected p is a hit at each of
        J thresholds, and the chance of it by the law.
    accounts: name of each document's account, or a name of its own.
    sketches: sketch of the scored part of each document.
    single: int64[A, J], hits of A messages one by one.
    single_expected: float64[J], expected hits of one of these messages.
    tests: number of documents.
    ngrams: n-grams by token ids.
    """

    tables: tuple[NDArray[np.float64], ...]
    accounts: tuple[str, ...]
    sketches: tuple[bytes | None, ...]
    single: NDArray[np.int64]
    single_expected: NDArray[np.float64]
    tests: int
    ngrams: dict[tuple[int, ...], Ngram]

    def plus(self, other: "KeyCounts") -> "KeyCounts":
        """Return both parts together."""
        ngrams = dict(self.ngrams)
        for gram, addend in other.ngrams.items():
            base = ngrams.get(gram, Ngram(0, 0.0))
            ngrams[gram] = Ngram(base.hits + addend.hits, base.excess + addend.excess)
        return KeyCounts(
            self.tables + other.tables,
            self.accounts + other.accounts,
            self.sketches + other.sketches,
            self.single + other.single,
            self.single_expected + other.single_expected,
            self.tests + other.tests,
            ngrams,
        )

    def by_cluster(self) -> ClusterSums:
        """Return sums over accounts and pieces of documents, of the corrected p-values: each [J].

        Documents of one account are alike, and so are those of one piece. Their squares are summed over accounts, and
        over pieces, less over both (Cameron, Gelbach and Miller 2011). `clusters` is the equivalent number of clusters
        of one size, (Σn)² / Σn², of accounts or of pieces, whichever are fewer. For example, one template of 2,000
        texts beside 2,000 other texts is worth 4.
        """
        table, account = np.concatenate(self.tables), np.unique(np.array(self.accounts), return_inverse=True)[1]
        piece = pieces_of(self.sketches, equal_places=EQUAL_IN_CORPUS)
        pair = np.unique(np.stack([account, piece]), axis=1, return_inverse=True)[1].ravel()
        by_account, by_piece, by_pair = (_clustered(table, labels) for labels in (account, piece, pair))
        squares = {
            name: getattr(by_account, name) + getattr(by_piece, name) - getattr(by_pair, name)
            for name in ("hh", "he", "ee")
        }
        worth = min(clusters_of_one_size(account), clusters_of_one_size(piece))
        return by_pair._replace(**squares, clusters=np.full(len(by_pair.hits), worth))

    def by_message(self) -> ClusterSums:
        """Return sums over the sampled messages, of the p-values of one message: each [J]."""
        tests = np.full(len(self.single), self.tests)
        return cluster_sums(self.single, tests, np.broadcast_to(self.single_expected / self.tests, self.single.shape))


def _clustered(table: NDArray[np.float64], labels: NDArray[np.int64]) -> ClusterSums:
    """Return sums over clusters of documents, each with a row of hits and chances."""
    thresholds, place = table.shape[1] // 2, np.unique(labels, return_inverse=True)[1]
    sums = np.zeros((place.max() + 1, table.shape[1]))
    np.add.at(sums, place, table)
    tests = np.bincount(place)[:, None]
    return cluster_sums(sums[:, :thresholds], tests, sums[:, thresholds:] / tests)


def sampled_messages(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the messages 0 … count−1, evenly spread, including message 0: int64[A]."""
    return np.arange(min(count, most), dtype=np.int64) * count // min(count, most)


def key_counts(
    mark: Watermark,
    messages: int,
    tokens: Tokens,
    accounts: Sequence[str],
    dedup: Dedup,
    thresholds: Sequence[float],
    sample: int,
    common: LeftOut | None = None,
) -> KeyCounts:
    """Score documents as a scan does, under all messages, and under a sample of the messages, one by one.

    Args:
        mark: mark of the key.
        messages: M of SPEC §3.
        tokens: of the documents.
        accounts: name of each document's account, or a name of its own.
        dedup: the repeats that are left out.
        thresholds: α[J].
        sample: largest number of messages that are scored one by one.
        common: n-grams that are left out, learnt from other texts. None: none.

    Raises:
        Refused: the key's format has no law.
    """
    law, log10_alpha = mark.law, np.log10(np.asarray(thresholds))[None, :]
    if law is None:
        raise Refused(f"keys: {mark.label} has no law, so it has no false-positive rate to audit; leave it out")
    positions = mark.rule.positions(tokens, dedup)
    positions = positions if common is None else common.without(tokens, positions)
    distinct, inverse = np.unique(positions.scored, return_inverse=True)
    log10_p = search(mark, tokens, positions, messages).log10_p_global[:, 0]
    message_hits = []
    ngrams: dict[tuple[int, ...], list[float]] = {}
    for message in sampled_messages(messages, sample).tolist():
        p = log10_p_of(mark.law, mark.score(tokens, positions, message), positions.scored)
        message_hits.append((p[:, None] <= log10_alpha).sum(axis=0))
        _add_ngrams(ngrams, mark, law, tokens, positions, message, p <= np.log10(EXCESS_AT))
    top = sorted(ngrams.items(), key=lambda item: -item[1][1])[:KEPT_NGRAMS]
    chance = chances(law, distinct, thresholds, messages)[inverse]
    return KeyCounts(
        (np.concatenate([log10_p[:, None] <= log10_alpha, chance], axis=1),),
        tuple(accounts),
        tuple(_sketches(mark.rule, tokens, positions)),
        np.array(message_hits, np.int64),
        np.asarray(chances(law, distinct, thresholds)[inverse].sum(axis=0), np.float64),
        len(log10_p),
        {gram: Ngram(int(hits), excess) for gram, (hits, excess) in top},
    )


def _sketches(rule: PositionRule, tokens: Tokens, positions: Positions) -> Iterator[bytes | None]:
    """Yield sketches of the n-grams of each document that are scored."""
    for begin, end, first, last in zip(
        tokens.offsets, tokens.offsets[1:], positions.offsets, positions.offsets[1:], strict=False
    ):
        yield sketch(tokens.ids[begin:end], max(reach_of(rule), CORPUS_CONTEXT), positions.index[first:last] - begin)


def _add_ngrams(
    ngrams: dict[tuple[int, ...], list[float]],
    mark: Watermark,
    law: Law,
    tokens: Tokens,
    positions: Positions,
    message: int,
    hit: NDArray[np.bool_],
) -> None:
    """Add the score above the mean that each n-gram gave to the documents with a hit."""
    index = positions.index[np.repeat(hit, positions.scored)]
    # each position as a document of its own
    single_positions = Positions(index, np.arange(len(index) + 1, dtype=np.int64))
    terms = np.asarray(mark.score(tokens, single_positions, np.full(len(index), message)), np.float64) - law.mean
    for place, term in zip(index.tolist(), terms.tolist(), strict=True):
        entry = ngrams.setdefault(mark.rule.ngram(tokens, place), [0, 0.0])
        entry[0] += 1
        entry[1] += term

"""Score documents once more under decoys, which are keys that mark no text.

A decoy key is made for one text in one piece of a shard, from the audit secret, the shard's id, the piece's first row
and the text's digest. So its p-values are independent draws of the law on this very traffic, marked or not, whatever is
duplicated in it. A text counts once in its piece. A copy in another piece, another shard or another night's scan has
another key.

The pace of a scan decides where a shard is cut (scanner.cluster.todo), so another run may draw other texts and other
keys. No cut looks at a score, and a shard's counts are committed with its verdicts, once.
"""

import platform
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, LOG10_THRESHOLDS, THRESHOLDS, cluster_sums
from scanner.controls.decoys.draws import Decoys, entropy_of
from scanner.controls.decoys.hit_counts import DecoyHits
from scanner.controls.decoys.text_sample import TextSample, TextSampler
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.looks.text_parts import parts_look
from scanner.watermark import Positions, select_positions
from scanner.watermark.format import CountsHits, JoinsKeys, ScoresParts, TellsUserEvidence, Watermark
from scanner.watermark.parts import Limit
from scanner.watermark.rule import KeyFindings, log10_p_best, log10_p_of, search
from scanner.watermark.text_windows import log10_in_document, running_sums, totals

PARTS = ("length", "host")

STRATA = tuple(f"{kind}_{part}" for kind in ("decoy", "decoy_all") for part in PARTS)
"""Kinds of rows on a part of the traffic: texts of about one length, or scored on one host."""


class DecoyObserver(DecoyHits):
    """Counts the decoys' hits in one piece of a shard.

    piece: its name (scanner.controls.decoys.text_sample).
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, piece: bytes) -> None:
        super().__init__(decoys, origin)
        self._sampler = TextSampler(decoys, piece)

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score the drawn documents of a batch."""
        del text_of
        sample = self._sampler.sample(digests)
        if sample.seeds:
            self.score(scores, sample)

    def score(self, scores: Sequence[KeyPositions], sample: TextSample) -> None:
        """Score drawn texts of a batch, by the positions of each key under test."""
        decoys = self._decoys
        for key_positions in scores:
            key_id = key_positions.opened_key.key.key_id
            if key_id in decoys.one_message_keys:
                places = np.flatnonzero(sample.kinds[key_positions.documents] == decoys.kinds[key_id].number)
                if len(places):
                    self._score_one(key_positions, places, sample.seeds)
            if key_id in decoys.all_messages_keys:
                places = np.flatnonzero(sample.all_messages[key_positions.documents])
                if len(places):
                    self._score_all(key_positions, places, sample.seeds)

    def _score_one(self, scores: KeyPositions, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, kind = scores.opened_key.key, self._decoys.kinds[scores.opened_key.key.key_id]
        score, terms, best = list[NDArray[np.generic]](), list[NDArray[np.float64]](), np.empty(0)
        place_seeds = [seeds[d] for d in scores.documents[places].tolist()]
        messages = np.array([int.from_bytes(seed[:8], "little") % key.messages for seed in place_seeds])
        marks = [kind.open(key.messages, seed) for seed in place_seeds]
        self.compare(kind.format, key.messages, marks)
        for mark, indices in _shared_marks(marks, scores.tokens.offsets[scores.documents[places]]):
            positions = select_positions(scores.positions, places[indices])
            if scores.parts is not None and isinstance(mark, ScoresParts):
                terms.append(mark.terms(scores.tokens, positions, messages[indices]))
            else:
                score.append(mark.score(scores.tokens, positions, messages[indices]))
        law, positions = kind.law, select_positions(scores.positions, places)
        if terms and scores.parts is not None:
            sums = running_sums(np.concatenate(terms), positions.offsets)
            score = [totals(sums, positions)]
            best = parts_look().least_of_parts(law, sums, positions, scores.parts.of_documents(places))
        hits = log10_p_best(law, np.concatenate(score), positions.scored, 1)[:, None] <= LOG10_THRESHOLDS[None, :]
        chance = self._decoys.chances(law, positions.scored, 1)
        self._count_parts("decoy", scores, places, hits, np.ones(len(places)), chance)
        self._count_spans(scores, places, best, 1)

    def _count_parts(
        self,
        kind: str,
        scores: KeyPositions,
        places: NDArray[np.int64],
        hits: NDArray[np.generic],
        tests: NDArray[np.generic],
        chance: NDArray[np.float64],
    ) -> None:
        """Count hits of single messages, and once more by parts of the traffic.

        The arguments are those of `cluster_sums`.
        """
        self.count(kind, scores.opened_key, cluster_sums(hits, tests, chance), 1)
        for part, names in strata(scores.positions.scored[places]):
            for name in np.unique(names).tolist():
                in_stratum = names == name
                sums = cluster_sums(hits[in_stratum], tests[in_stratum], chance[in_stratum])
                self.count(f"{kind}_{part}", scores.opened_key, sums, 1, stratum=name)

    def _score_all(self, scores: KeyPositions, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, scored = scores.opened_key.key, scores.positions.scored[places]
        kind = self._decoys.kinds[key.key_id]
        place_seeds = [seeds[d] for d in scores.documents[places].tolist()]
        # first: of two processes that begin together, one then compiles this and the other the search
        if isinstance(kind.format, CountsHits):
            secrets = [kind.draw_key(entropy_of(kind.name, key.messages, seed)) for seed in place_seeds]
            critical = self._decoys.critical(kind.law, scored)
            positions = select_positions(scores.positions, places)
            hits = kind.format.count_all(secrets, scores.tokens, positions, key.messages, critical)
            chance = self._decoys.chances(kind.law, scored, 1, DEEP_THRESHOLDS)
            counted = np.full(len(scored), kind.format.counted(key.messages))
            self._count_parts("decoy_all", scores, places, hits, counted, chance)
        score, best = np.zeros(len(places)), np.zeros(0 if scores.parts is None else len(places))
        marks = [kind.open(key.messages, seed) for seed in place_seeds]
        if key.key_id not in self._decoys.one_message_keys:  # else it was compared with one message
            self.compare(kind.format, key.messages, marks)
        marks = [scores.opened_key.to_device(mark) for mark in marks]
        for mark, indices in _shared_marks(marks, scores.tokens.offsets[scores.documents[places]]):
            positions = select_positions(scores.positions, places[indices])
            search_arguments = mark, scores.tokens, positions, key.messages
            if scores.parts is None:
                findings = search(*search_arguments)
            else:
                limit, parts = Limit(THRESHOLDS[0], key.messages, 1), scores.parts.of_documents(places[indices])
                findings, spans = parts_look().search_parts(*search_arguments, 1, limit, parts)
                for span in spans:
                    place = indices[span.document]
                    best[place] = min(best[place], span.log10_p)
            score[indices] = findings.score[:, 0]
            self._count_own(scores, mark, positions, findings)
        hit = log10_p_best(kind.law, score, scored, key.messages)[:, None] <= LOG10_THRESHOLDS[None, :]
        chance = self._decoys.chances(kind.law, scored, key.messages)
        self.count("decoy_best", scores.opened_key, cluster_sums(hit, np.ones(len(hit)), chance), key.messages)
        self._count_spans(scores, places, best, key.messages)

    def _count_own(self, scores: KeyPositions, mark: Watermark, positions: Positions, findings: KeyFindings) -> None:
        """Count the p-values of user evidence, by which users of a group are named.

        Only a group's own positions decide whether it is looked into, so the p-value of its best user holds. If several
        groups are looked into, the best of all is the one whose user fits, and no law is stated for it.
        """
        single = np.flatnonzero((findings.message[:, 0] >= 0) & (findings.message[:, 1] < 0))
        if not len(single) or not isinstance(mark, TellsUserEvidence):
            return
        evidence = mark.user_evidence(scores.tokens, select_positions(positions, single), findings.message[single, 0])
        if evidence is not None:
            law = self._decoys.kinds[scores.opened_key.key.key_id].law
            hits = findings.log10_p_own[single, :1] <= LOG10_THRESHOLDS[None, :]
            chance = self._decoys.chances(law, evidence.scored, evidence.messages)
            sums = cluster_sums(hits, np.ones(len(hits)), chance)
            self.count("decoy_own", scores.opened_key, sums, evidence.messages)

    def _count_spans(self, scores: KeyPositions, places: NDArray[np.int64], best: ArrayLike, messages: int) -> None:
        """Count the smallest p of any part of each document, log10, as the p-value that a span would have."""
        # The law bounds the chance of a pass, because parts that share draws pass together. It is 0 if no part can
        # pass.
        if not np.size(best) or scores.parts is None:
            return
        law = self._decoys.kinds[scores.opened_key.key.key_id].law
        scored = scores.positions.scored[places]
        parts = scores.parts.of_documents(places).count_parts(scored)
        least = log10_in_document(log10_p_of(law, law.largest(scored), scored), parts, messages)
        chance = np.where(least[:, None] <= LOG10_THRESHOLDS[None, :], np.array(THRESHOLDS)[None, :], 0.0)
        hit = log10_in_document(best, parts, messages)[:, None] <= LOG10_THRESHOLDS[None, :]
        self.count("decoy_spans", scores.opened_key, cluster_sums(hit, np.ones(len(scored)), chance), messages)


def _shared_marks(
    marks: Sequence[Watermark], begins: NDArray[np.int64]
) -> Iterator[tuple[Watermark, NDArray[np.int64]]]:
    """Yield marks, and the places of the documents among D that each scores: one mark for all, if it can.

    Args:
        marks: marks of the documents, each under its own key.
        begins: int64[D], where the documents begin.
    """
    indices = np.arange(len(marks))
    joined = marks[0].join_marks(marks, begins) if isinstance(marks[0], JoinsKeys) else None
    if joined is not None:
        yield joined, indices
    else:
        yield from ((mark, indices[d : d + 1]) for d, mark in enumerate(marks))


class Rehearsal:
    """Decoys that are scored to compile their kernels, and not counted."""

    def __init__(self, decoys: Decoys) -> None:
        self._decoys = decoys

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score all texts under every kind of key, as some text of the scan will be."""
        del text_of
        observer, count = DecoyObserver(self._decoys, BatchOrigin("", "", ""), b""), len(digests)
        for number in range(len(self._decoys.first_keys)):
            all_messages = np.full(count, self._decoys.draws_all and number == 0)
            observer.score(scores, TextSample(dict(enumerate(digests)), np.full(count, number), all_messages))

    def rows(self) -> list[pa.RecordBatch]:
        """Return no rows, because nothing is counted."""
        return []


def strata(scored: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.str_]]]:
    """Yield parts of the traffic (PARTS), each with the stratum of every one of D documents: str[D].

    Args:
        scored: int64[D], number of scored positions of each document, each above 0.
    """
    length, host = PARTS
    low = 2 ** np.floor(np.log2(scored)).astype(np.int64)
    yield length, np.array([f"{least}-{2 * least - 1}" for least in low.tolist()])
    yield host, np.full(len(scored), platform.node() or "unnamed")

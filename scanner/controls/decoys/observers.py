"""Decoys: documents scored once more under keys that mark nothing.

A decoy key is made for one text in one piece of a shard, from the audit secret, the shard's id, the piece's first row
and the text's digest. So its p-values are independent draws of the law on this very traffic, marked or not, whatever
is duplicated in it: a text counts once in its piece, and a copy in another piece, another shard or another night's scan
meets another key.

Where a shard is cut follows the pace of a scan (scanner.cluster.todo), so another run may draw other texts and other
keys. No cut looks at a score, and a shard's counts are committed with its verdicts, once.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, ClusterSums, cluster_sums
from scanner.controls.decoys.draws import CHARACTERS_A_DRAW, TEXTS_A_DRAW, Decoys, entropy_of
from scanner.detection.attribution import BatchOrigin, KeyPositions, OpenedKey
from scanner.detection.detector import Detector
from scanner.watermark import select_positions
from scanner.watermark.format import CountsHits, JoinsKeys, ScoresParts, Watermark, format_name
from scanner.watermark.rule import log10_p_best, log10_p_of, search
from scanner.watermark.span_search import Limit, least_of_parts, search_parts
from scanner.watermark.text_windows import log10_in_document, running_sums, totals
from schemas.audit import AUDIT_COUNTS, PARTS

LOG10_THRESHOLDS = np.log10(THRESHOLDS)
"""log10 of the thresholds at which hits are counted, float64[T]."""


@dataclass(frozen=True)
class HitSubject:
    """The subject of a set of hits; columns of AUDIT_COUNTS."""

    kind: str
    messages: int
    label: str
    stratum: str | None = None


class HitCounts:
    """Hits of decoys, and how many the law expects, in sums that add up.

    origin: as it stands in every row.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin) -> None:
        self._decoys, self._origin = decoys, origin
        self._sums: dict[HitSubject, ClusterSums] = {}

    def count(
        self, kind: str, opened_key: OpenedKey, sums: ClusterSums, messages: int, stratum: str | None = None
    ) -> None:
        """Add sums over clusters that were counted under decoys of a key."""
        how = self._decoys.kinds[opened_key.key.key_id].format
        self.add(HitSubject(kind, messages, how.label(), stratum), sums)

    def add(self, subject: HitSubject, sums: ClusterSums) -> None:
        """Add sums over clusters to those of their subject."""
        self._sums[subject] = self._sums[subject].plus(sums) if subject in self._sums else sums

    def rows(self) -> list[pa.RecordBatch]:
        """The counts, as rows of AUDIT_COUNTS."""
        shared = self._origin._asdict() | {"dedup": self._decoys.dedup, "scanned_at": datetime.now(UTC)}
        rows: list[dict[str, Any]] = []
        for subject, sums in self._sums.items():
            of_subject = {"kind": subject.kind, "messages": subject.messages}
            of_subject |= {"method": format_name(subject.label), "label": subject.label, "stratum": subject.stratum}
            columns = {"threshold": DEEP_THRESHOLDS[: len(sums.hits)], **sums.columns()}
            same = shared | of_subject
            rows += [same | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [pa.RecordBatch.from_pylist(rows, AUDIT_COUNTS)] if rows else []


class TextSample(NamedTuple):
    """Texts of a batch of D that are scored under decoys.

    seeds: of the decoys of each drawn text, by its place in the batch.
    kinds: number of the kind of key of which each text meets a decoy of one message, int64[D]; -1: of none.
    all_messages: whether a text meets all messages of a decoy of each kind, bool[D].
    """

    seeds: dict[int, bytes]
    kinds: NDArray[np.int64]
    all_messages: NDArray[np.bool_]


class TextSampler:
    """Draws texts of one piece of a shard, each once."""

    def __init__(self, decoys: Decoys, shard_id: str, start: int) -> None:
        self.piece = f"{shard_id};{start};".encode()
        self._decoys, self._drawn = decoys, set[bytes]()

    def sample(self, digests: Sequence[bytes]) -> TextSample:
        """Draw texts of a batch, by their digests."""
        sample = TextSample({}, np.full(len(digests), -1), np.zeros(len(digests), np.bool_))
        for d, kind, all_messages in self._decoys.drawn(self.piece, digests):
            if digests[d] not in self._drawn:
                self._drawn.add(digests[d])
                sample.seeds[d] = self._decoys.seed(self.piece, digests[d])
                sample.kinds[d], sample.all_messages[d] = kind, all_messages
        return sample


class DecoyObserver(HitCounts):
    """Counts the decoys' hits in one piece of a shard; scanner.detection.detector shows it every batch.

    detector: decides texts whole, under decoys; None: no text is.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, start: int, detector: Detector | None = None) -> None:
        super().__init__(decoys, origin)
        self._sampler = TextSampler(decoys, origin.shard_id, start)
        self._detector, self._decided = detector, set[bytes]()
        self._waiting_texts: dict[bytes, str] = {}

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score the drawn documents of a batch."""
        sample = self._sampler.sample(digests)
        if sample.seeds:
            self.score(scores, sample)
        if self._detector is not None and self._decoys.whole_texts is not None:
            for d in self._decoys.whole_texts.drawn(self._sampler.piece, digests).tolist():
                if digests[d] not in self._decided:
                    self._decided.add(digests[d])
                    self._waiting_texts[digests[d]] = text_of(d)
                    if (
                        len(self._waiting_texts) == TEXTS_A_DRAW
                        or sum(map(len, self._waiting_texts.values())) >= CHARACTERS_A_DRAW
                    ):
                        self._count_whole_texts()

    def score(self, scores: Sequence[KeyPositions], sample: TextSample) -> None:
        """Score drawn texts of a batch, by the positions of each key under test."""
        decoys = self._decoys
        for of_key in scores:
            key_id = of_key.opened_key.key.key_id
            if key_id in decoys.one_message_keys:
                places = np.flatnonzero(sample.kinds[of_key.documents] == decoys.kinds[key_id].number)
                if len(places):
                    self._score_one(of_key, places, sample.seeds)
            if key_id in decoys.all_messages_keys:
                places = np.flatnonzero(sample.all_messages[of_key.documents])
                if len(places):
                    self._score_all(of_key, places, sample.seeds)

    def rows(self) -> list[pa.RecordBatch]:
        """The counts of the piece, as rows of AUDIT_COUNTS."""
        if self._waiting_texts:
            self._count_whole_texts()
        return super().rows()

    def _count_whole_texts(self) -> None:
        if self._detector is None or self._decoys.whole_texts is None:
            return
        whole_texts = self._decoys.whole_texts
        for kind, sums in whole_texts.count_hits(self._detector, self._sampler.piece, self._waiting_texts).items():
            self.add(HitSubject(kind, whole_texts.messages, "all"), sums)
        self._waiting_texts = {}

    def _score_one(self, scores: KeyPositions, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, kind = scores.opened_key.key, self._decoys.kinds[scores.opened_key.key.key_id]
        score, terms, best = list[NDArray[np.generic]](), list[NDArray[np.float64]](), np.empty(0)
        of_places = [seeds[d] for d in scores.documents[places].tolist()]
        messages = np.array([int.from_bytes(seed[:8], "little") % key.messages for seed in of_places])
        marks = [kind.open(key.messages, seed) for seed in of_places]
        for mark, some in _shared_marks(marks, scores.tokens.offsets[scores.documents[places]]):
            positions = select_positions(scores.positions, places[some])
            if scores.parts is not None and isinstance(mark, ScoresParts):
                terms.append(mark.terms(scores.tokens, positions, messages[some]))
            else:
                score.append(mark.score(scores.tokens, positions, messages[some]))
        law, positions = kind.law, select_positions(scores.positions, places)
        if terms and scores.parts is not None:
            sums = running_sums(np.concatenate(terms), positions.offsets)
            score = [totals(sums, positions)]
            best = least_of_parts(law, sums, positions, scores.parts.of_documents(places))
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
        """Count hits of single messages, and once more by parts of the traffic. Arguments as of `cluster_sums`."""
        self.count(kind, scores.opened_key, cluster_sums(hits, tests, chance), 1)
        for part, names in strata(scores.positions.scored[places]):
            for name in np.unique(names).tolist():
                of = names == name
                sums = cluster_sums(hits[of], tests[of], chance[of])
                self.count(f"{kind}_{part}", scores.opened_key, sums, 1, stratum=name)

    def _score_all(self, scores: KeyPositions, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, scored = scores.opened_key.key, scores.positions.scored[places]
        kind = self._decoys.kinds[key.key_id]
        of_places = [seeds[d] for d in scores.documents[places].tolist()]
        score, best = np.zeros(len(places)), np.zeros(0 if scores.parts is None else len(places))
        marks = [scores.opened_key.to_device(kind.open(key.messages, seed)) for seed in of_places]
        for mark, some in _shared_marks(marks, scores.tokens.offsets[scores.documents[places]]):
            positions = select_positions(scores.positions, places[some])
            of_texts = mark, scores.tokens, positions, key.messages
            if scores.parts is None:
                found = search(*of_texts)
            else:
                limit, parts = Limit(THRESHOLDS[0], key.messages, 1), scores.parts.of_documents(places[some])
                found, spans = search_parts(*of_texts, 1, limit, parts)
                for span in spans:
                    place = some[span.document]
                    best[place] = min(best[place], span.log10_p)
            score[some] = found.score[:, 0]
        hit = log10_p_best(kind.law, score, scored, key.messages)[:, None] <= LOG10_THRESHOLDS[None, :]
        chance = self._decoys.chances(kind.law, scored, key.messages)
        self.count("decoy_best", scores.opened_key, cluster_sums(hit, np.ones(len(hit)), chance), key.messages)
        self._count_spans(scores, places, best, key.messages)
        if isinstance(kind.format, CountsHits):
            secrets = [kind.draw_key(entropy_of(kind.name, key.messages, seed)) for seed in of_places]
            critical = self._decoys.critical(kind.law, scored)
            positions = select_positions(scores.positions, places)
            hits = kind.format.count_all(secrets, scores.tokens, positions, key.messages, critical)
            chance = self._decoys.chances(kind.law, scored, 1, DEEP_THRESHOLDS)
            counted = np.full(len(scored), kind.format.counted(key.messages))
            self._count_parts("decoy_all", scores, places, hits, counted, chance)

    def _count_spans(self, scores: KeyPositions, places: NDArray[np.int64], best: ArrayLike, messages: int) -> None:
        """Count the smallest p of any part of each document, log10, by the p-value that a span would have."""
        # The law bounds the chance of a pass: parts that share draws pass together; it is 0 where no part can pass.
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
    """Marks of D documents, each under its own key, that begin at int64[D], and which each scores: one, if it can."""
    every = np.arange(len(marks))
    joined = marks[0].join_marks(marks, begins) if isinstance(marks[0], JoinsKeys) else None
    if joined is not None:
        yield joined, every
    else:
        yield from ((mark, every[d : d + 1]) for d, mark in enumerate(marks))


class LevelDecoyObserver(HitCounts):
    """Counts how often decoys of one message reach each threshold in texts whose tokens count by a model.

    Whether a model reads a text depends on the keys of the registry, and on no decoy, so that decoys' p-values hold in
    the texts that it reads as in all. The law bounds how often they pass.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, start: int) -> None:
        super().__init__(decoys, origin)
        self._sampler = TextSampler(decoys, origin.shard_id, start)

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score the drawn texts of those that a model read."""
        del text_of
        sample = self._sampler.sample(digests)
        for of_key in scores:
            key_id = of_key.opened_key.key.key_id
            if key_id in self._decoys.first_keys:
                number = self._decoys.kinds[key_id].number
                places = np.flatnonzero(sample.kinds[of_key.documents] == number)
                self._score_by_levels(of_key, places, sample.seeds)

    def _score_by_levels(self, scores: KeyPositions, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, kind = scores.opened_key.key, self._decoys.kinds[scores.opened_key.key.key_id]
        log10_p = []
        for place in places.tolist():
            seed, positions = seeds[int(scores.documents[place])], select_positions(scores.positions, [place])
            mark = scores.opened_key.to_device(kind.open(key.messages, seed))
            score = mark.score(scores.tokens, positions, int.from_bytes(seed[:8], "little") % key.messages)
            log10_p.append(float(log10_p_best(mark.law, score, positions.scored, 1)[0]))
        if log10_p:
            hits = np.array(log10_p)[:, None] <= LOG10_THRESHOLDS[None, :]
            chance = np.broadcast_to(np.array(THRESHOLDS), hits.shape)
            self.count("decoy_weighed", scores.opened_key, cluster_sums(hits, np.ones(len(hits)), chance), 1)


class Rehearsal:
    """Decoys that are scored to compile their kernels, and counted nowhere."""

    def __init__(self, decoys: Decoys) -> None:
        self._decoys = decoys

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score all texts under every kind of key, as some text of the scan will be."""
        del text_of
        observer, count = DecoyObserver(self._decoys, BatchOrigin("", "", ""), 0), len(digests)
        for number in range(len(self._decoys.first_keys)):
            all_messages = np.full(count, self._decoys.draws_all and number == 0)
            observer.score(scores, TextSample(dict(enumerate(digests)), np.full(count, number), all_messages))


def strata(scored: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.str_]]]:
    """Yield parts of the traffic (schemas.audit.PARTS), each with the stratum of every one of D documents: str[D].

    scored: positions, int64[D], each above 0.
    """
    length, host = PARTS
    low = 2 ** np.floor(np.log2(scored)).astype(np.int64)
    yield length, np.array([f"{least}-{2 * least - 1}" for least in low.tolist()])
    yield host, np.full(len(scored), platform.node() or "unnamed")

"""Count decoys on texts whose tokens count by how much they surprised a model."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.hits import LOG10_THRESHOLDS, THRESHOLDS, cluster_sums
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.hit_counts import DecoyHits
from scanner.controls.decoys.text_sample import TextSampler
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.watermark import select_positions
from scanner.watermark.rule import log10_p_best


class LevelDecoyObserver(DecoyHits):
    """Counts how often decoys of one message reach each threshold in texts whose tokens count by a model.

    Whether a model reads a text depends on the keys of the registry, but on no decoy. So the p-values of decoys hold in
    the texts that it reads as in all others. The law bounds how often they pass.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, piece: bytes) -> None:
        super().__init__(decoys, origin)
        self._sampler = TextSampler(decoys, piece)

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score the drawn texts among those that a model read."""
        del text_of
        sample = self._sampler.sample(digests)
        for key_positions in scores:
            key_id = key_positions.opened_key.key.key_id
            if key_id in self._decoys.first_keys:
                number = self._decoys.kinds[key_id].number
                places = np.flatnonzero(sample.kinds[key_positions.documents] == number)
                self._score_by_levels(key_positions, places, sample.seeds)

    def _score_by_levels(self, scores: KeyPositions, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, kind = scores.opened_key.key, self._decoys.kinds[scores.opened_key.key.key_id]
        log10_p = []
        for place in places.tolist():
            seed, positions = seeds[int(scores.documents[place])], select_positions(scores.positions, [place])
            decoy = kind.open(key.messages, seed)
            self.compare(kind.format, key.messages, [decoy])
            mark = scores.opened_key.to_device(decoy)
            score = mark.score(scores.tokens, positions, int.from_bytes(seed[:8], "little") % key.messages)
            log10_p.append(float(log10_p_best(mark.law, score, positions.scored, 1)[0]))
        if log10_p:
            hits = np.array(log10_p)[:, None] <= LOG10_THRESHOLDS[None, :]
            chance = np.broadcast_to(np.array(THRESHOLDS), hits.shape)
            self.count("decoy_levels", scores.opened_key, cluster_sums(hits, np.ones(len(hits)), chance), 1)

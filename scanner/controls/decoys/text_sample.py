"""Draw texts of a piece of a shard to score under decoys, and the seeds of these."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.controls.decoys.draws import Decoys


class TextSample(NamedTuple):
    """Texts of a batch of D that are scored under decoys.

    seeds: seed of the decoys of each drawn text, by its place in the batch.
    kinds: int64[D], number of the kind of key whose decoy of one message scores each text. −1: none.
    all_messages: bool[D], whether a text is scored under all messages of a decoy of each kind.
    """

    seeds: dict[int, bytes]
    kinds: NDArray[np.int64]
    all_messages: NDArray[np.bool_]


class TextSampler:
    """Draws texts of one piece of a shard, each once.

    piece: its name. Draws and seeds of decoys hash it.
    """

    def __init__(self, decoys: Decoys, piece: bytes) -> None:
        self._decoys, self._piece, self._drawn = decoys, piece, set[bytes]()

    def sample(self, digests: Sequence[bytes]) -> TextSample:
        """Draw texts of a batch, by their digests."""
        sample = TextSample({}, np.full(len(digests), -1), np.zeros(len(digests), np.bool_))
        for d, kind, all_messages in self._decoys.drawn(self._piece, digests):
            if digests[d] not in self._drawn:
                self._drawn.add(digests[d])
                sample.seeds[d] = self._decoys.seed(self._piece, digests[d])
                sample.kinds[d], sample.all_messages[d] = kind, all_messages
        return sample

"""Learning which n-grams many texts hold, from a sample of the scanned texts (scanner.watermark.common_ngrams).

A keyed digest of a text decides whether the text is drawn, and which bit the text sets. So a copy of a text is drawn
with it and sets the same bit, and nobody who posts texts knows which are drawn.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from scanner.detection.published import TextIds
from scanner.detection.sketches import reach_of
from scanner.detection.under_test import KeyUnderTest
from scanner.input.documents import read_text
from scanner.watermark.common_ngrams import LEAST_REACH, TEXTS_A_CELL, Sketch, hash_key

MOST_CHARACTERS = 1 << 14
"""Characters of a text that are learnt; a long text holds no more n-grams than many short ones."""


class Learner:
    """Sketches of the n-grams of texts, one for each tokenizer and window of the keys under test.

    Keys that read fewer than LEAST_REACH previous tokens have none.

    Args:
        tests: the keys.
        ids: gives keyed digests of texts.
        share: of the texts, which are drawn.
        most: n-grams of each tokenizer after which nothing more is learnt.
    """

    def __init__(self, tests: Sequence[KeyUnderTest], ids: TextIds, share: float, most: int) -> None:
        self._ids, self._share, self._most = ids, share, most
        self.key = hash_key(ids.ngram_secret())
        self._tokenizers = {test.key.tokenizer.sha256: test.tokenizer for test in tests}
        kinds = {(test.key.tokenizer.sha256, reach_of(test.watermark.rule)) for test in tests}
        self.sketches = [(name, Sketch(reach)) for name, reach in sorted(kinds) if reach >= LEAST_REACH]
        self.texts = self.ngrams = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is learnt."""
        return self.ngrams >= self._most or not self.sketches

    def learn(self, stored: pa.LargeBinaryArray) -> None:
        """Learn those of some stored texts that are drawn."""
        drawn = [(text[:MOST_CHARACTERS], bit) for raw in stored.to_pylist() if (bit := self._bit(raw)) is not None
                 for text in [read_text(raw)[0]] if text]  # fmt: skip
        if not drawn or self.full:
            return
        bits = np.array([bit for _, bit in drawn], np.uint8)
        tokens = {name: each.encode([text for text, _ in drawn]) for name, each in self._tokenizers.items()}
        for name, sketch in self.sketches:
            sketch.learn(self.key, tokens[name], bits)
        self.texts += len(drawn)
        self.ngrams += max(len(of_one.ids) for of_one in tokens.values())

    def _bit(self, raw: bytes | None) -> int | None:
        """The bit that a text sets; None: it is not drawn."""
        if raw is None:
            return None
        lot = self._ids.for_filter(raw)
        drawn = int.from_bytes(lot[:8], "little") < self._share * 2.0**64
        return lot[8] % TEXTS_A_CELL if drawn else None

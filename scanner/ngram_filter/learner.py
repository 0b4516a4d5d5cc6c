"""Learning n-grams from a sample of a night's texts.

A keyed digest of a text decides whether the text is drawn, so that a copy of a text is drawn with it, and nobody who
posts texts knows which are drawn. The bit that the text sets is its account's where the input has accounts, so that
texts of one account count once, and so do all texts without one; else its own. What is learnt depends on texts and
accounts alone, never on a score.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from scanner.detection.attribution import OpenedKey
from scanner.detection.rows import TextIds
from scanner.input.documents import read_text
from scanner.ngram_filter.common_ngrams import BITS_A_CELL, LEAST_REACH, Sketch, hash_key
from scanner.watermark.positions import reach_of, select_documents

CHARACTERS_LEARNT = 1 << 14
"""Characters of a text that are learnt; a long text holds no more n-grams than many short ones."""


class Learner:
    """Sketches of the n-grams of texts, one for each tokenizer and window of the keys under test.

    Keys that read fewer than LEAST_REACH previous tokens have none.

    Args:
        keys: under test.
        ids: gives keyed digests of texts.
        share: of the texts, which are drawn.
        most: n-grams of each tokenizer after which nothing more is learnt.
        least: n-grams of a text; texts with fewer are not learnt, whatever they hold.
        by_account: whether the input has accounts.
    """

    def __init__(
        self,
        keys: Sequence[OpenedKey],
        ids: TextIds,
        share: float,
        most: int,
        least: int,
        *,
        by_account: bool,
    ) -> None:
        self._ids, self._share, self._most, self._least = ids, share, most, least
        self._by_account = by_account
        self.key = hash_key(ids.ngram_secret())
        self._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in keys}
        kinds = {(opened_key.key.tokenizer.sha256, reach_of(opened_key.watermark.rule)) for opened_key in keys}
        self.sketches = [(name, Sketch(reach)) for name, reach in sorted(kinds) if reach >= LEAST_REACH]
        self._taught = [set[bytes]() for _ in self.sketches]  # digests of texts: copies count once
        self.ngrams = 0

    @property
    def texts(self) -> list[int]:
        """How many distinct texts each sketch was learnt from."""
        return [len(taught) for taught in self._taught]

    @property
    def full(self) -> bool:
        """Whether nothing more is learnt."""
        return self.ngrams >= self._most or not self.sketches

    def learn(self, stored: pa.LargeBinaryArray, accounts: pa.StringArray) -> None:
        """Learn those of some stored texts that are drawn.

        Args:
            stored: the texts.
            accounts: of each text; null: unknown.
        """
        limit = self._share * 2.0**64
        drawn = [
            (text[:CHARACTERS_LEARNT], self._bit(raw, account), digest)
            for raw, account in zip(stored.to_pylist(), accounts.to_pylist(), strict=True)
            if raw is not None
            and int.from_bytes((digest := self._ids.for_filter(raw))[:8], "little") < limit
            and (text := read_text(raw)[0])
        ]
        if not drawn or self.full:
            return
        bits = np.array([bit for _, bit, _ in drawn], np.uint8)
        tokens = {name: each.encode([text for text, _, _ in drawn]) for name, each in self._tokenizers.items()}
        for place, (name, sketch) in enumerate(self.sketches):
            enough = np.diff(tokens[name].offsets) - sketch.reach >= self._least
            sketch.learn(self.key, select_documents(tokens[name], np.flatnonzero(enough)), bits[enough])
            self._taught[place].update(digest for (_, _, digest), is_long in zip(drawn, enough, strict=True) if is_long)
        self.ngrams += max(len(of_one.ids) for of_one in tokens.values())

    def _bit(self, raw: bytes, account: str | None) -> int:
        """Return the bit that a text sets: its account's, or its own where the input has none."""
        whose = b"account\0" + (account or "").encode() if self._by_account else raw
        return self._ids.for_filter(whose)[8] % BITS_A_CELL

"""The rules by which a text is decided upon, as one value for scans, checks, proofs and replays, and their filter.

The filter has common n-grams of each tokenizer and window, learnt from earlier texts, which are left out of scoring.
A keyed digest of a text decides whether the text is drawn, so that a copy of a text is drawn with it, and nobody who
posts texts knows which are drawn. The bit that the text sets is its account's where the input has accounts, so that
texts of one account count once, and so do all texts without one; else its own. What is learnt depends on texts and
accounts alone, never on a score.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import OpenedKey
from scanner.detection.rows import TextIds
from scanner.input.documents import read_text
from scanner.scan_plan import NO_VARIANTS, ErrorShares
from scanner.watermark import Positions, Tokens
from scanner.watermark.positions import (
    BITS_A_CELL,
    LEAST_REACH,
    CommonNgrams,
    PositionRule,
    Sketch,
    hash_key,
    reach_of,
    select_documents,
)
from schemas.config import ScanConfig
from schemas.words import Dedup


class Filter(NamedTuple):
    """The n-grams that a scan leaves out, by the SHA-256 of their tokenizer and by how far they reach."""

    common: Mapping[tuple[str, int], CommonNgrams]

    def of(self, tokenizer: str, rule: PositionRule) -> CommonNgrams | None:
        """The n-grams that a rule leaves out in tokens of a tokenizer, by its SHA-256; None: it leaves out none."""
        return self.common.get((tokenizer, reach_of(rule)))

    def positions(self, tokenizer: str, rule: PositionRule, tokens: Tokens, dedup: Dedup) -> Positions:
        """The scored positions of a batch by a rule, without common n-grams."""
        positions, common = rule.positions(tokens, dedup), self.of(tokenizer, rule)
        return positions if common is None else common.without(tokens, positions)


NO_FILTER = Filter({})


def common_places_of(common: CommonNgrams | None, ids: NDArray[np.uint32]) -> frozenset[int]:
    """Places of a text that are left out, by the slow path of proofs."""
    from scanner.watermark.proof import find_common_places  # flags alone need mpmath

    return frozenset() if common is None else find_common_places(ids.tolist(), *common.plain)


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
        """Learn those of some stored texts that are drawn; accounts: of each text, null where nobody knows."""
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
        """The bit that a text sets: its account's, or its own where the input has none."""
        whose = b"account\0" + (account or "").encode() if self._by_account else raw
        return self._ids.for_filter(whose)[8] % BITS_A_CELL


@dataclass(frozen=True)
class Rules:
    """What decides on a text besides its keys and their users.

    Args:
        false_positive_rate: a document is flagged when its corrected p-value is at most this.
        keys_tested: number of keys whose p could be reported for a document, scored here or not; keys without weights
            of their own share equally.
        misnaming_rate: users of a group are named when the corrected p of what is theirs and nobody else's is at most
            this; None: the false-positive rate.
        dedup: which repeats are left out.
        min_scored: scored positions below which a key does not score a document.
        weights: of looks and of variants; where normalised texts have one, these are scored too, where they differ;
            where spans have one, these are looked for.
        ngram_filter: n-grams that are left out of scoring.
    """

    false_positive_rate: float
    keys_tested: int
    misnaming_rate: float | None = None
    dedup: Dedup = ScanConfig.model_fields["dedup"].default
    min_scored: int = ScanConfig.model_fields["min_scored"].default
    weights: ErrorShares = NO_VARIANTS
    ngram_filter: Filter = NO_FILTER

    @classmethod
    def of(cls, config: ScanConfig, keys_tested: int, ngram_filter: Filter = NO_FILTER) -> "Rules":
        """The rules of a scan's configuration."""
        rates = config.false_positive_rate, keys_tested, config.misnaming_rate
        return cls(*rates, config.dedup, config.min_scored, ErrorShares.of(config), ngram_filter)

    @classmethod
    def recorded(
        cls,
        scan: Mapping[str, Any],
        keys_tested: int,
        weights: ErrorShares = NO_VARIANTS,
        ngram_filter: Filter = NO_FILTER,
    ) -> "Rules":
        """The rules of a scan by its row of SCANS."""
        rates = scan["false_positive_rate"], keys_tested, scan["misnaming_rate"]
        return cls(*rates, scan["dedup"], scan["min_scored"], weights, ngram_filter)

    @functools.cached_property
    def rates(self) -> tuple[float, float]:
        """At or below which p a text is flagged, and its user named."""
        return self.false_positive_rate, self.misnaming_rate or self.false_positive_rate

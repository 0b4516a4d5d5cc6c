"""Keys of decoys: what they are drawn from, which keys they stand for, and decisions on whole texts under them.

Tokens, scores and counts are in scanner.controls.decoys.observers.

A text that is drawn goes through the whole detector, with a decoy in place of each key. It is a hit where the smallest
corrected p of its verdict or its spans reaches a threshold. A flag is corrected for messages, keys, variants, units and
parts together, and other decoys test each of these alone. Expected hits are computed in this file alone, from the
configured shares and REACH_OF_GROUPS (a search of groups misses messages), so a correction that is dropped elsewhere
shows. Where there are several looks, texts count once more by the whole text alone.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.audit.statistics.hits import (
    DEEP_THRESHOLDS,
    THRESHOLDS,
    ClusterSums,
    RowMemory,
    chances,
    cluster_sums,
    critical_scores,
)
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.detection.detector import Detector
from scanner.detection.spans import SPAN
from scanner.registry import NamedUser, read_secret
from scanner.scan_plan import Plan
from scanner.text.normal_form import normalise_all
from scanner.watermark import Format, Watermark
from scanner.watermark.format import CountsHits, DrawsKeys
from scanner.watermark.formats import can_have_levels, format_of
from scanner.watermark.laws import Law
from schemas.audit import DECISION, DECISION_WHOLE
from schemas.registry import MasterKey
from schemas.tables import DOCUMENTS
from schemas.words import Naming

TEXTS_A_DRAW = 64
"""Most texts that are decided under the same decoys: one by one they take several times as long. They are a cluster."""

REACH_OF_GROUPS = ((0.03, 0.65), (0.003, 0.85))
"""Upper limits of what keys with groups reach of a level of p, for levels from the first number up; 1 for smaller ones.

Messages of a group share draws, and few groups are searched for their users. `python -m tests.bench.decisions` measured
0.50 to 0.55 at 0.1 and 0.57 to 0.78 at 0.01, in texts of 20 to 400 words.
"""

REACHED_ABOVE = 512
"""Most scored positions to which REACH_OF_GROUPS applies: in texts of 400 to 2,000 words 0.79 to 0.95 are reached."""

CHARACTERS_A_DRAW = 2**18
"""Characters of texts from which fewer are decided together, so that the driver waits no longer for a sign of life."""

_ALPHA = np.array(THRESHOLDS)


class _DecoyKey(NamedTuple):
    """A key's format and law, its share of the false-positive rate, and whether its messages share draws."""

    how: Format
    law: Law
    draw_key: Callable[[bytes], bytes]
    share: float
    groups: bool

    def level(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Level of looks with weights, float64[D], at each threshold: float64[D, J]."""
        return np.asarray(-np.expm1(np.log1p(-_ALPHA) * self.share * weight[:, None]), np.float64)

    def reach(self, level: NDArray[np.float64], scored: NDArray[np.int64]) -> NDArray[np.float64]:
        """Most that sound p-values reach of a level, [D, J], in D texts of so many positions: float64[D, J]."""
        short = self.groups & (scored[:, None] <= REACHED_ABOVE)
        steps = [short & (level >= least) for least, _ in REACH_OF_GROUPS]
        return np.select(steps, [most for _, most in REACH_OF_GROUPS], 1.0)


def _lower(log10_p: NDArray[np.float64], rows: pa.RecordBatch) -> None:
    p = rows["log10_p_global"].to_numpy(zero_copy_only=False).astype(np.float64)
    np.fmin.at(log10_p, rows["row"].to_numpy(), p)


def _cluster(log10_p: NDArray[np.float64], chance: NDArray[np.float64]) -> ClusterSums:
    """Sums of texts under the same decoys, by their p-values and chances of a hit, float64[D, J]."""
    hits = log10_p[:, None] <= np.log10(_ALPHA)[None, :]
    return cluster_sums(hits.sum(axis=0)[None, :], np.array([len(hits)]), chance.mean(axis=0)[None, :])


class _NoHolders:
    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        del key_id, message, at
        return NamedUser(Naming.UNALLOCATED, None, None)


class _ScoreRecorder:
    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        del digests, text_of
        self.scores = scores


def draw_numbers(secret: bytes, digests: Sequence[bytes]) -> NDArray[np.uint64]:
    """A number below 2^63 for each of D texts, by uniform digests of 32 bytes and by 8 bytes of a secret: uint64[D].

    Digests are multiplied by an odd number, the piece's secret, so that each piece draws other texts.
    """
    odd = np.uint64(int.from_bytes(secret, "little") | 1)
    return np.frombuffer(b"".join(digests), np.uint64)[::4] * odd >> np.uint64(1)


class WholeTextDecoys:
    """Draws texts for the whole detector, under decoys in place of all keys.

    Holds the audit secret; shown in no repr.

    Args:
        secret: 16 to 64 bytes.
        plan: the scan's plan. Its keys without a law, and those whose format draws no keys, are left out.
    """

    def __init__(self, secret: bytes, plan: Plan) -> None:
        self._secret, self._weights = secret, plan.weights
        self._limit = int(plan.config.audit.decisions_share * 2.0**63)
        self._keys: dict[str, _DecoyKey] = {}
        self._chances = RowMemory()
        for key in plan.keys:
            how, share = format_of(key), 1.0 / (key.one_of or plan.keys_tested)
            if (law := how.law()) is not None and isinstance(how, DrawsKeys):
                groups = isinstance(how, CountsHits) and how.counted(key.messages) < key.messages
                self._keys[key.key_id] = _DecoyKey(how, law, how.draw_key, share, groups)
        self.messages = sum(key.messages for key in plan.keys if key.key_id in self._keys)

    def __repr__(self) -> str:
        return f"WholeTextDecoys({len(self._keys)} keys)"

    def __bool__(self) -> bool:
        return bool(self._keys and self._limit)

    def drawn(self, piece: bytes, digests: Sequence[bytes]) -> NDArray[np.int64]:
        """The drawn texts of a piece, by their uniform digests; a piece draws other texts than another."""
        data = hashlib.blake2b(piece, key=self._secret, digest_size=8, person=b"decision-v1").digest()
        return np.flatnonzero(draw_numbers(data, digests) < np.uint64(self._limit))

    def marks(self, seed: bytes) -> dict[str, Watermark]:
        """A decoy of each key, by its id. Equal keys have other decoys too, as they are other keys."""
        made = {}
        for key_id, key in self._keys.items():
            data = hashlib.blake2b(seed + key_id.encode(), key=self._secret, digest_size=32, person=b"decision-key-v1")
            made[key_id] = key.how.open(key.draw_key(data.digest()))
        return made

    def count_hits(self, detector: Detector, piece: bytes, texts: Mapping[bytes, str]) -> dict[str, ClusterSums]:
        """Hits of texts, by their digests, under decoys of their own: a cluster's sums, each [J], by kind.

        DECISION: by every look. DECISION_WHOLE, where looks share the rate: by the whole text, of texts that are their
        own normal form. All looks together reach so little of what is expected that a factor of two would hide.
        """
        seed = piece + b"".join(texts)
        documents = pa.RecordBatch.from_pylist(
            [{"row": row, "text": text.encode()} for row, text in enumerate(texts.values())], DOCUMENTS
        )
        scored = _ScoreRecorder()
        result = detector.under(self.marks(seed), _NoHolders(), THRESHOLDS[0]).score_batch(
            documents, BatchOrigin("", "", ""), scored
        )
        log10_p, weights, written = np.full(len(texts), np.inf), self._weights, [*texts.values()]
        forms = normalise_all(written) if weights.normalised else written
        differs = np.array([form != text for form, text in zip(forms, written, strict=True)])
        whole, chance = self._chance(scored.scores, differs)
        sums, of_parts = {}, np.array([look == SPAN for look in result.verdicts["look"].to_pylist()])
        _lower(log10_p, result.verdicts.filter(pa.array(~of_parts)))  # a part's p stands in for a whole text's
        if (weights.normalised or weights.span) and not differs.all():
            sums[DECISION_WHOLE] = _cluster(log10_p[~differs], whole[~differs])
        for rows in (result.verdicts, result.spans):
            _lower(log10_p, rows)
        return {DECISION: _cluster(log10_p, chance)} | sums

    def _chance(
        self, scores: Sequence[KeyPositions], differs: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Most that sound p-values reach of each threshold in each text, whole as written and by any look: [D, J]."""
        # Scores increase in the same draws, so looks pass together rather than apart: the chance that none passes is at
        # least the product of theirs.
        weights, whole = self._weights, np.zeros((len(differs), len(_ALPHA)))  # log of that product
        others, normalised = whole.copy(), weights.normalised or 0.0
        for of_key in scores:
            key, places = self._keys[of_key.opened_key.key.key_id], of_key.documents
            messages, scored, parted = of_key.opened_key.key.messages, of_key.positions.scored, of_key.has_parts
            # a text that lacks a look has its share elsewhere (scanner.scan_plan.ErrorShares.corrections)
            without = 0.0 if can_have_levels(of_key.opened_key.key) else weights.weighed or 0.0
            look = weights.document + without + np.where(parted, 0.0, weights.span or 0.0)
            of_whole = look * (weights.as_written + np.where(differs, 0.0, normalised))
            whole[places] += np.log1p(-self._as_written(key, messages, scored, of_whole[places]))
            others += np.log1p(-key.level(np.where(differs, look * normalised, 0.0)))
            level = key.level(np.where(parted, weights.span or 0.0, 0.0)[places])
            others[places] += np.log1p(-level * key.reach(level, scored))
        return -np.expm1(whole), -np.expm1(whole + others)

    def _as_written(
        self, key: _DecoyKey, messages: int, scored: NDArray[np.int64], weight: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Most that the best message of whole texts with weights, float64[D], reaches: float64[D, J]."""
        level, attained = key.level(weight), np.empty((len(scored), len(_ALPHA)))
        for one in np.unique(weight).tolist():
            of, levels = weight == one, key.level(np.array([one]))[0].tolist()
            find = functools.partial(chances, key.law, thresholds=levels, messages=messages)
            attained[of] = self._chances.of((key.law, messages, key.share, one), scored[of], find)
        return attained * key.reach(level, scored)


FEWEST_DOCUMENTS = 50_000
"""Fewest documents that are scored with one message, where the input has so many: fewer say too little about a night.
"""

FEWEST_DOCUMENTS_ALL_MESSAGES = 500
"""Fewest documents that are scored with all messages, where the input has so many. Each has a p-value a message."""


class DecoyKind(NamedTuple):
    """Keys of one format, with equal parameters, and of one tokenizer: `kind_of`, what they are."""

    name: str
    number: int
    format: Format
    law: Law
    draw_key: Callable[[bytes], bytes]

    def open(self, messages: int, seed: bytes) -> Watermark:
        """The decoy of a key of so many messages that a text's seed makes."""
        return self.format.open(self.draw_key(entropy_of(self.name, messages, seed)))


class Decoys:
    """The decoys of a scan. Holds the audit secret; shown in no repr.

    Args:
        secret: 16 to 64 bytes.
        keys: the keys under test. Decoys have their formats, if these have a law and draw keys.
        dedup: as the verdicts have it.
        share: share of the documents that are scored with one message, each under a decoy of one kind of key; of keys
            that have several messages only where each of these cannot be counted.
        all_messages_share: share of the documents that are scored with all messages, under a decoy of each kind of key.
        whole_texts: draws the documents that go through the whole detector; None: none is.
    """

    def __init__(
        self,
        secret: bytes,
        keys: Sequence[MasterKey],
        dedup: str,
        share: float,
        all_messages_share: float,
        *,
        whole_texts: WholeTextDecoys | None = None,
    ) -> None:
        self._secret = secret
        self.dedup = dedup
        self._limits = tuple(int(part * 2.0**63) for part in (share, all_messages_share))
        self._chances, self._critical = RowMemory(), RowMemory()
        # keys of one kind share their decoys: the first of each kind brings tokens and positions
        self.kinds: dict[str, DecoyKind] = {}
        self.first_keys: set[str] = set()
        self.one_message_keys: set[str] = set()
        self.all_messages_keys: set[str] = set()
        self.whole_texts = whole_texts
        of_name: dict[str, DecoyKind] = {}
        one_message_kinds: set[str] = set()
        kinds_and_messages: set[tuple[str, int]] = set()
        for key in keys:
            how, name = format_of(key), kind_of(key)
            law = how.law()
            if law is None or not isinstance(how, DrawsKeys):
                continue
            if name not in of_name:
                of_name[name] = DecoyKind(name, len(of_name), how, law, how.draw_key)
                self.first_keys.add(key.key_id)
            if name not in one_message_kinds and (key.messages == 1 or not isinstance(how, CountsHits)):
                one_message_kinds.add(name)
                self.one_message_keys.add(key.key_id)
            if (name, key.messages) not in kinds_and_messages and key.messages > 1:
                self.all_messages_keys.add(key.key_id)
            self.kinds[key.key_id] = of_name[name]
            kinds_and_messages.add((name, key.messages))

    def __repr__(self) -> str:
        return f"Decoys({len(self.first_keys)} kinds of keys)"

    @property
    def draws_all(self) -> bool:
        """Whether some texts are scored under all messages of a decoy."""
        return self._limits[1] > 0

    def drawn(self, piece: bytes, digests: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
        """Which texts are drawn, their kind of key with one message (−1: none), whether they take all messages."""
        data = hashlib.blake2b(piece, key=self._secret, digest_size=8, person=b"decoy-draw-v1").digest()
        numbers = draw_numbers(data, digests)
        for d in np.flatnonzero(numbers < np.uint64(max(self._limits))).tolist():
            number = int(numbers[d])
            kind = number * len(self.first_keys) // self._limits[0] if number < self._limits[0] else -1
            yield d, kind, number < self._limits[1]

    def seed(self, piece: bytes, digest: bytes) -> bytes:
        """The seed from which the decoy keys of a text are made."""
        return hashlib.blake2b(piece + digest, key=self._secret, digest_size=32, person=b"decoy-v1").digest()

    def chances(
        self, law: Law, scored: NDArray[np.int64], messages: int, thresholds: Sequence[float] = THRESHOLDS
    ) -> NDArray[np.float64]:
        """P(p ≤ α) as the law has it: float64[D, J] (scanner.audit.statistics.judgement)."""
        return self._chances.of(
            (law, messages, len(thresholds)), scored, lambda missing: chances(law, missing, thresholds, messages)
        )

    def critical(self, law: Law, scored: NDArray[np.int64]) -> NDArray[np.float64]:
        """The smallest scores that pass with one message, down to the last of DEEP_THRESHOLDS: float64[D, J]."""
        return self._critical.of(law, scored, lambda missing: critical_scores(law, missing, DEEP_THRESHOLDS).critical)


def kind_of(key: MasterKey) -> str:
    """Everything that decoys of a key depend on, as text: keys of one kind share decoys."""
    return ";".join(map(str, [*format_of(key).digest_fields().values(), key.tokenizer.sha256]))


def entropy_of(kind: str, messages: int, seed: bytes) -> bytes:
    """The entropy of a decoy. With one seed, every kind of key (`kind_of`) and number of messages gets another.

    Otherwise the messages of a smaller number would be hit along with those of a larger number, and be counted twice.
    """
    data = f"{kind};{messages}".encode()
    return hashlib.blake2b(data, key=seed, digest_size=32, person=b"decoy-key-v1").digest()


def open_decoys(plan: Plan) -> Decoys | None:
    """Read the audit secret, as every worker does itself; None where the plan draws no document.

    Raises:
        SecretError: the secret cannot be read.
    """
    how = plan.config.audit
    if not (how.share or how.all_messages_share or how.decisions_share):
        return None
    secret = read_secret(plan.audit_secret, plan.registry)
    share = share_of(how.share, FEWEST_DOCUMENTS, plan.documents)
    of_all = share_of(how.all_messages_share, FEWEST_DOCUMENTS_ALL_MESSAGES, plan.documents)
    return Decoys(
        secret, plan.keys, plan.config.dedup, share, of_all, whole_texts=WholeTextDecoys(secret, plan) or None
    )


def share_of(configured: float, fewest: int, documents: int | None) -> float:
    """Return the share of the documents that is scored: as configured, and so many documents at least.

    Args:
        configured: the configured share; 0: no document is scored.
        fewest: fewest documents to score, where the input has so many.
        documents: how many the input has; None: unknown.
    """
    return max(configured, min(1.0, fewest / documents)) if configured and documents else configured

"""Count whole decisions: texts that go through the whole detector, with a decoy in place of each key.

A text is a hit if the smallest corrected p of its verdict or its spans reaches a threshold. A flag is corrected for
messages, keys, variants, units and parts together. Other decoys test each of these on its own. Only this file computes
expected hits, from the configured shares and REACH_OF_GROUPS (a search of groups misses messages). So a correction that
is dropped elsewhere shows. If there are several looks, texts count once more by the whole text only. Texts with another
normal form also count by the normalised text only.

They have draws and an observer of their own, but are judged in one family with all other decoys. So they are no
separate control.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.audit.statistics.hits import THRESHOLDS, ClusterSums, RowMemory, chances, cluster_sums
from scanner.controls.control import DecidesAccounts
from scanner.controls.decoys.draws import draw_numbers, share_of
from scanner.controls.decoys.hit_counts import HitCounts, HitSubject
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.detection.detector import Detector
from scanner.looks.normalising import normalise_all
from scanner.registry import NamedUser, read_secret
from scanner.scan_plan import Plan
from scanner.watermark import Format, Watermark
from scanner.watermark.format import CountsHits, DrawsKeys
from scanner.watermark.formats import can_have_levels, format_of
from scanner.watermark.laws import Law
from schemas.tables import DOCUMENTS
from schemas.words import SPAN, Naming

DECISION, DECISION_WHOLE, DECISION_NORMALISED = "decision", "decision_whole", "decision_normalised"
"""Kinds of rows whose clusters are texts under the same decoys.

They count by every look, by the whole text only, and by the normalised text only.
"""

DECISION_ACCOUNTS = "decision_accounts"
"""Kind of rows whose clusters are accounts under the same decoys, decided by all of their posts."""

DECISIONS = (DECISION, DECISION_WHOLE, DECISION_NORMALISED, DECISION_ACCOUNTS)

FEWEST_DECISIONS = 1000
"""Smallest number of documents decided whole, if the input has so many. Fewer make too few clusters."""

POSTS_OF_FEWEST = 10_000
"""Smallest number of documents whose accounts are decided whole, if the input has so many.

It is larger, because accounts are fewer than documents.
"""

TEXTS_A_DRAW = 64
"""Largest number of texts decided under the same decoys.

They are one cluster. One by one they take several times as long.
"""

REACH_OF_GROUPS = ((0.03, 0.65), (0.003, 0.85))
"""Upper limits of the share of a level of p that decoys reach under keys with groups.

Each pair is a level and the limit for this and larger levels.

A search by groups misses some messages, so decoys reach a level less often than stated: at 0.03 and above at most 65 %
as often, at 0.003 and above at most 85 %. The limit for smaller levels is 1.

Messages of a group share draws, and few groups are searched for their users. `python -m tests.bench.decisions` measured
0.50 to 0.55 at 0.1 and 0.57 to 0.78 at 0.01, in texts of 20 to 400 words.
"""

REACHED_ABOVE = 512
"""Largest number of scored positions to which REACH_OF_GROUPS applies.

In texts of 400 to 2,000 words the measured share is 0.79 to 0.95.
"""

CHARACTERS_A_DRAW = 2**18
"""Number of characters of texts from which fewer texts are decided together.

Otherwise the driver would wait too long for a sign of life.
"""

_ALPHA = np.array(THRESHOLDS)


class _DecoyKey(NamedTuple):
    """A key's format and law, its share of the false-positive rate, and whether its messages share draws."""

    how: Format
    messages: int
    law: Law
    draw_key: Callable[[bytes], bytes]
    share: float
    groups: bool

    def level(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the level of looks with weights, float64[D], at each threshold: float64[D, J]."""
        return np.asarray(-np.expm1(np.log1p(-_ALPHA) * self.share * weight[:, None]), np.float64)

    def reach(self, level: NDArray[np.float64], scored: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the largest share of a level, [D, J], that sound p-values reach in D texts of so many positions.

        The result is float64[D, J].
        """
        short = self.groups & (scored[:, None] <= REACHED_ABOVE)
        steps = [short & (level >= least) for least, _ in REACH_OF_GROUPS]
        return np.select(steps, [limit for _, limit in REACH_OF_GROUPS], 1.0)


def _lower(log10_p: NDArray[np.float64], rows: pa.RecordBatch) -> None:
    p = rows["log10_p_global"].to_numpy(zero_copy_only=False).astype(np.float64)
    np.fmin.at(log10_p, rows["row"].to_numpy(), p)


def _cluster(log10_p: NDArray[np.float64], chance: NDArray[np.float64]) -> ClusterSums:
    """Sum texts under the same decoys, by their p-values and chances of a hit, float64[D, J]."""
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


class WholeTextDecoys:
    """Draws texts for the whole detector, under decoys in place of all keys.

    It holds the audit secret, and no repr shows it.

    Args:
        secret: 16 to 64 bytes.
        plan: the scan's plan. Keys without a law are left out, and so are keys whose format draws no keys.
    """

    def __init__(self, secret: bytes, plan: Plan) -> None:
        self._secret, self._weights = secret, plan.weights
        share = share_of(plan.config.audit.decisions_share, FEWEST_DECISIONS, plan.documents)
        self._limit = int(share * 2.0**63)
        share_of_accounts = share_of(plan.config.audit.share, POSTS_OF_FEWEST, plan.documents)
        self._limit_of_accounts = int(share_of_accounts * 2.0**63) if share else 0
        self._nights = plan.config.accounts.nights if plan.config.accounts else 1
        self._min_scored = plan.config.min_scored
        self._keys: dict[str, _DecoyKey] = {}
        self._chances = RowMemory()
        for key in plan.keys:
            how, share = format_of(key), 1.0 / (key.one_of or plan.keys_tested)
            if (law := how.law()) is not None and isinstance(how, DrawsKeys):
                groups = isinstance(how, CountsHits) and how.counted(key.messages) < key.messages
                self._keys[key.key_id] = _DecoyKey(how, key.messages, law, how.draw_key, share, groups)
        self.messages = sum(key.messages for key in plan.keys if key.key_id in self._keys)

    def __repr__(self) -> str:
        return f"WholeTextDecoys({len(self._keys)} keys)"

    def __bool__(self) -> bool:
        return bool(self._keys and self._limit)

    def drawn(self, piece: bytes, digests: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the drawn texts of a piece, by their uniform digests. Each piece draws other texts."""
        data = hashlib.blake2b(piece, key=self._secret, digest_size=8, person=b"decision-v1").digest()
        return np.flatnonzero(draw_numbers(data, digests) < np.uint64(self._limit))

    def drawn_accounts(self, piece: bytes, digests: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the drawn accounts of a part of a pass, by digests of their names."""
        data = hashlib.blake2b(piece, key=self._secret, digest_size=8, person=b"decision-v1").digest()
        return np.flatnonzero(draw_numbers(data, digests) < np.uint64(self._limit_of_accounts))

    def can_replace_any(self, scores: Sequence[KeyPositions]) -> bool:
        """Return whether decoys can replace any of some keys."""
        return any(key_positions.opened_key.key.key_id in self._keys for key_positions in scores)

    def marks(self, seed: bytes) -> dict[str, Watermark]:
        """Return a decoy of each key, by its id. Equal keys have different decoys, because they are different keys."""
        made = {}
        for key_id, key in self._keys.items():
            data = hashlib.blake2b(seed + key_id.encode(), key=self._secret, digest_size=32, person=b"decision-key-v1")
            made[key_id] = key.how.open(key.draw_key(data.digest()))
        return made

    def seed(self, piece: bytes, digests: Iterable[bytes]) -> bytes:
        """Return the seed from which the decoys of some texts together are made."""
        return piece + b"".join(digests)

    def form_of(self, key_id: str) -> tuple[Format, int]:
        """Return format and messages of a key under test."""
        return self._keys[key_id].how, self._keys[key_id].messages

    def count_hits(
        self, detector: Detector, marks: Mapping[str, Watermark], texts: Mapping[bytes, str]
    ) -> dict[str, ClusterSums]:
        """Count hits of texts, by their digests, under decoys: a cluster's sums, each [J], by kind.

        DECISION: by every look.
        DECISION_WHOLE: if looks share the rate, by the whole text, for texts that are their own normal form. All looks
            together reach so little of the expectation that it would hide a factor of two.
        DECISION_NORMALISED: if texts are normalised, by the normalised text where it has the smaller p, for texts that
            differ from it.
        """
        documents = pa.RecordBatch.from_pylist(
            [{"row": row, "text": text.encode()} for row, text in enumerate(texts.values())], DOCUMENTS
        )
        scored = _ScoreRecorder()
        result = detector.under(marks, _NoHolders(), THRESHOLDS[0]).score_batch(
            documents, BatchOrigin("", "", ""), scored
        )
        log10_p, weights, written = np.full(len(texts), np.inf), self._weights, [*texts.values()]
        forms = normalise_all(written) if weights.normalised else written
        differs = np.array([form != text for form, text in zip(forms, written, strict=True)])
        whole, of_normalised, chance = self._chance(scored.scores, differs)
        sums, is_span = {}, np.array([look == SPAN for look in result.verdicts["look"].to_pylist()])
        if weights.normalised and differs.any():
            log10_p_normalised = np.full(len(texts), np.inf)
            _lower(log10_p_normalised, result.verdicts.filter(pc.is_valid(result.verdicts["variant"])))
            sums[DECISION_NORMALISED] = _cluster(log10_p_normalised[differs], of_normalised[differs])
        _lower(log10_p, result.verdicts.filter(pa.array(~is_span)))  # a part's p replaces that of a whole text
        if (weights.normalised or weights.span) and not differs.all():
            sums[DECISION_WHOLE] = _cluster(log10_p[~differs], whole[~differs])
        for rows in (result.verdicts, result.spans):
            _lower(log10_p, rows)
        return {DECISION: _cluster(log10_p, chance)} | sums

    def count_account_hits(
        self,
        judge: DecidesAccounts,
        marks: Mapping[str, Watermark],
        scores: Sequence[KeyPositions],
        accounts: NDArray[np.int64],
    ) -> ClusterSums:
        """Count hits of accounts under decoys in place of all keys: a cluster's sums, each [J].

        scores: scores of all accounts, as an observer is shown them.
        accounts: int64[A], places of the accounts.
        """
        log10_p = judge.decide_under(marks, scores, accounts, THRESHOLDS[0])
        missed = np.zeros((len(accounts), len(_ALPHA)))  # log of the chance that no key passes
        weight = np.full(len(accounts), (self._weights.account or 0.0) / self._nights)
        for key_positions in scores:
            key = self._keys.get(key_positions.opened_key.key.key_id)
            if key is None:
                continue
            scored = key_positions.positions.scored[accounts]
            reached = self._as_written(key, key.messages, scored, weight)
            missed += np.log1p(-np.where(scored[:, None] >= self._min_scored, reached, 0.0))
        return _cluster(np.where(np.isnan(log10_p), np.inf, log10_p), -np.expm1(missed))

    def _chance(
        self, scores: Sequence[KeyPositions], differs: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the largest chance that sound p-values reach each threshold in each text.

        Returns:
            By the whole text as written, [D, J].
            By the normalised text, [D, J].
            By any look, [D, J].
        """
        # Scores increase in the same draws, so looks tend to pass together: the chance that none passes is at least the
        # product of their chances.
        weights, whole = self._weights, np.zeros((len(differs), len(_ALPHA)))  # log of that product
        by_normalised, by_parts, normalised = whole.copy(), whole.copy(), weights.normalised or 0.0
        for key_positions in scores:
            key, places = self._keys[key_positions.opened_key.key.key_id], key_positions.documents
            messages, scored, parted = (
                key_positions.opened_key.key.messages,
                key_positions.positions.scored,
                key_positions.has_parts,
            )
            # the share of a look that a text lacks is elsewhere (scanner.error_shares.ErrorShares.corrections)
            without = 0.0 if can_have_levels(key_positions.opened_key.key) else weights.levels or 0.0
            look = weights.document + without + np.where(parted, 0.0, weights.span or 0.0)
            whole_weights = look * (weights.as_written + np.where(differs, 0.0, normalised))
            whole[places] += np.log1p(-self._as_written(key, messages, scored, whole_weights[places]))
            by_normalised += np.log1p(-key.level(np.where(differs, look * normalised, 0.0)))
            level = key.level(np.where(parted, weights.span or 0.0, 0.0)[places])
            by_parts[places] += np.log1p(-level * key.reach(level, scored))
        return -np.expm1(whole), -np.expm1(by_normalised), -np.expm1(whole + by_normalised + by_parts)

    def _as_written(
        self, key: _DecoyKey, messages: int, scored: NDArray[np.int64], weight: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the largest chance that the best message of whole texts reaches a threshold: float64[D, J].

        weight: float64[D], of each text.
        """
        level, attained = key.level(weight), np.empty((len(scored), len(_ALPHA)))
        for unique_weight in np.unique(weight).tolist():
            has_weight, levels = weight == unique_weight, key.level(np.array([unique_weight]))[0].tolist()
            find = functools.partial(chances, key.law, thresholds=levels, messages=messages)
            attained[has_weight] = self._chances.of(
                (key.law, messages, key.share, unique_weight), scored[has_weight], find
            )
        return attained * key.reach(level, scored)


def open_whole_texts(plan: Plan) -> WholeTextDecoys | None:
    """Read the audit secret, as every worker does for itself. None if the plan decides no document whole.

    Raises:
        SecretError: the secret cannot be read.
    """
    if not plan.config.audit.decisions_share:
        return None
    return WholeTextDecoys(read_secret(plan.audit_secret, plan.registry), plan) or None


class WholeTextObserver(HitCounts):
    """Has the drawn texts of a piece decided whole, some at a time, and counts hits."""

    def __init__(
        self, decoys: WholeTextDecoys, detector: Detector, origin: BatchOrigin, dedup: str, piece: bytes
    ) -> None:
        super().__init__(origin, dedup)
        self._decoys, self._detector, self._piece = decoys, detector, piece
        self._decided, self._waiting = set[bytes](), dict[bytes, str]()

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Keep the drawn texts of a batch, and have them decided once they are many, or long."""
        del scores
        for d in self._decoys.drawn(self._piece, digests).tolist():
            if digests[d] not in self._decided:
                self._decided.add(digests[d])
                self._waiting[digests[d]] = text_of(d)
                characters = sum(map(len, self._waiting.values()))
                if len(self._waiting) == TEXTS_A_DRAW or characters >= CHARACTERS_A_DRAW:
                    self._decide()

    def rows(self) -> list[pa.RecordBatch]:
        """Return the counts of the piece, as rows of AUDIT_COUNTS."""
        if self._waiting:
            self._decide()
        return super().rows()

    def _decide(self) -> None:
        marks = self._decoys.marks(self._decoys.seed(self._piece, self._waiting))
        for key_id, mark in marks.items():
            self.compare(*self._decoys.form_of(key_id), [mark])
        for kind, sums in self._decoys.count_hits(self._detector, marks, self._waiting).items():
            self.add(HitSubject(kind, self._decoys.messages, "all"), sums)
        self._waiting = {}

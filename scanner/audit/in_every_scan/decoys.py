"""Decoys: a sample of the scanned documents, scored once more under keys that mark nothing, by the code of the scan.

A decoy key is made for one document of one shard, so its p-values are independent draws of the law on this very
traffic, marked or not, whatever is duplicated in it. It is derived from the audit secret, the shard's id and the
text's digest. The shard's id stands for the scan: it hashes the file and the keys under test and is the same in every
run that scans the shard, so that a resumed scan, a second attempt or a second driver counts the same hits, and a copy
of the text in another shard, or in another night's scan, meets another key. A text counts once in its shard.

Beside them, a few decoy keys are the same for all documents: the spread between their counts shows how much the
documents share n-grams, and is no sign of a broken law.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.audit.statistics.expectation import DEEP, THRESHOLDS, Remembered, chances, levels
from scanner.audit.statistics.intervals import Moments, moments
from scanner.detection.detector import Origin, Seen
from scanner.detection.scan_plan import Plan
from scanner.registry import read_secret
from scanner.watermark import Format, Watermark, only
from scanner.watermark.format import Columns, CountsHits, DrawsKeys
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Law
from scanner.watermark.search import candidates, log10_p_best
from schemas.registry import MasterKey
from schemas.tables import AUDIT_COUNTS

LEAST = 50_000
"""Documents that are scored with one message at least, where the input has so many: fewer say too little of a night."""

FIXED = 4
"""Decoy keys that are the same for all documents, of each kind of key."""

_LOG10_ALPHA = np.log10(THRESHOLDS)


@dataclass(frozen=True)
class Asked:
    """What a set of hits is about; columns of AUDIT_COUNTS."""

    kind: str
    messages: int
    decoy: int | None
    columns: Columns
    label: str


class Kind(NamedTuple):
    """Keys of one format, with equal parameters, and of one tokenizer: their number, what they are, fixed decoys."""

    number: int
    format: Format
    law: Law
    draw_key: Callable[[bytes], bytes]
    fixed: tuple[Watermark, ...]

    def open(self, entropy: bytes) -> Watermark:
        """The decoy that 32 bytes make."""
        return self.format.open(self.draw_key(entropy))


class Decoys:
    """The decoys of a scan. Holds the audit secret; shown in no repr.

    Args:
        secret: 16 to 64 bytes.
        keys: those under test: decoys are of their formats, where these have a law and draw keys.
        dedup: as the verdicts have it.
        share: of the documents, that are scored with one message, each under a decoy of one kind of key.
        all_messages_share: of the documents, that are scored with all messages, under a decoy of each kind of key.
    """

    def __init__(
        self, secret: bytes, keys: Sequence[MasterKey], dedup: str, share: float, all_messages_share: float
    ) -> None:
        self._secret = secret
        self.dedup = dedup
        self._limits = tuple(int(part * 2.0**63) for part in (share, all_messages_share))
        self._chances, self._critical = Remembered(), Remembered()
        # keys of one kind share their decoys: the first of each kind brings tokens and positions
        self.kinds: dict[str, Kind] = {}
        self.one: set[str] = set()
        self.all: set[str] = set()
        of_name: dict[str, Kind] = {}
        kinds_and_messages: set[tuple[str, int]] = set()
        for key in keys:
            how, name = format_of(key), _kind(key)
            law = how.law()
            if law is None or not isinstance(how, DrawsKeys):
                continue
            if name not in of_name:
                fixed = tuple(how.open(how.draw_key(self._fixed_entropy(name, i))) for i in range(FIXED))
                of_name[name] = Kind(len(of_name), how, law, how.draw_key, fixed)
                self.one.add(key.key_id)
            if (name, key.messages) not in kinds_and_messages and key.messages > 1:
                self.all.add(key.key_id)
            self.kinds[key.key_id] = of_name[name]
            kinds_and_messages.add((name, key.messages))

    def __repr__(self) -> str:
        return f"Decoys({len(self.one)} kinds of keys)"

    def of_piece(self, origin: Origin, start: int) -> "PieceDecoys":
        """Begin to count for the rows of a shard from row `start` on."""
        return PieceDecoys(self, origin, start)

    def rehearsal(self) -> "PieceDecoys":
        """As for a piece, but every document is drawn that may be, and nothing is kept: it compiles the kernels."""
        certain = copy.copy(self)
        certain._limits = tuple(2**63 if limit else 0 for limit in self._limits)
        return PieceDecoys(certain, Origin("", "", ""), 0)

    def drawn(self, piece: bytes, digests: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
        """Those of some texts that are drawn: which, its kind of key with one message (−1: none), if it takes all.

        A digest is uniform as it is; times an odd number that is the piece's secret, each piece draws other texts.
        """
        data = hashlib.blake2b(piece, key=self._secret, digest_size=8, person=b"decoy-draw-v1").digest()
        odd = np.uint64(int.from_bytes(data, "little") | 1)
        numbers = (np.frombuffer(b"".join(digest[:8] for digest in digests), np.uint64) * odd) >> np.uint64(1)
        for d in np.flatnonzero(numbers < np.uint64(max(self._limits))).tolist():
            number = int(numbers[d])
            kind = number * len(self.one) // self._limits[0] if number < self._limits[0] else -1
            yield d, kind, number < self._limits[1]

    def seed(self, piece: bytes, digest: bytes) -> bytes:
        """What the decoy keys of a text are made from."""
        return hashlib.blake2b(piece + digest, key=self._secret, digest_size=32, person=b"decoy-v1").digest()

    def _fixed_entropy(self, kind: str, i: int) -> bytes:
        data = f"{kind};{i}".encode()
        return hashlib.blake2b(data, key=self._secret, digest_size=32, person=b"decoy-fixed-v1").digest()

    def chances(
        self, law: Law, scored: NDArray[np.int64], messages: int, thresholds: Sequence[float] = THRESHOLDS
    ) -> NDArray[np.float64]:
        """P(p ≤ α) as the law has it: float64[D, J] (scanner.audit.statistics.expectation)."""
        about = (law, messages, len(thresholds))
        return self._chances.of(about, scored, lambda missing: chances(law, missing, thresholds, messages))

    def critical(self, law: Law, scored: NDArray[np.int64]) -> NDArray[np.float64]:
        """The smallest scores that pass with one message, down to the last of DEEP: float64[D, J]."""
        return self._critical.of(law, scored, lambda missing: levels(law, missing, DEEP).critical)


def _kind(key: MasterKey) -> str:
    return ";".join(map(str, [*format_of(key).decides().values(), key.tokenizer.sha256]))


class PieceDecoys:
    """Counts the decoys' hits of one piece of a shard; scanner.detection.detector shows it every batch."""

    def __init__(self, decoys: Decoys, origin: Origin, start: int) -> None:
        self._decoys = decoys
        self._origin = origin
        self._piece = f"{origin.shard_id};{start};".encode()
        self._known: set[bytes] = set()
        self._found: dict[Asked, Moments] = {}

    def see(self, digests: Sequence[bytes], seen: Sequence[Seen]) -> None:
        """Score those documents of a batch that are drawn.

        Args:
            digests: SHA-256 of the D texts.
            seen: what each key scored.
        """
        seeds: dict[int, bytes] = {}
        kinds, every = np.full(len(digests), -1), np.zeros(len(digests), np.bool_)
        for d, kind, all_messages in self._decoys.drawn(self._piece, digests):
            if digests[d] not in self._known:
                self._known.add(digests[d])
                seeds[d], kinds[d], every[d] = self._decoys.seed(self._piece, digests[d]), kind, all_messages
        for of_key in seen:
            key_id = of_key.test.key.key_id
            if key_id in self._decoys.one:
                number = self._decoys.kinds[key_id].number
                self._score_one(of_key, np.flatnonzero(kinds[of_key.documents] == number), seeds)
            if key_id in self._decoys.all:
                self._score_all(of_key, np.flatnonzero(every[of_key.documents]), seeds)

    def _score_one(self, seen: Seen, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, scored = seen.test.key, seen.positions.scored[places]
        kind, score = self._decoys.kinds[key.key_id], []
        for place in places.tolist():
            seed = seeds[int(seen.documents[place])]
            message = int.from_bytes(seed[:8], "little") % key.messages
            mark = kind.open(_entropy_of(key, seed))
            score.append(mark.score(seen.tokens, only(seen.positions, [place]), message)[0])
        self._add("decoy", seen, scored, np.array(score), 1)
        positions = only(seen.positions, places)
        for i, mark in enumerate(kind.fixed):
            self._add("decoy_fixed", seen, scored, mark.score(seen.tokens, positions, 0), 1, i)

    def _score_all(self, seen: Seen, places: NDArray[np.int64], seeds: dict[int, bytes]) -> None:
        key, scored = seen.test.key, seen.positions.scored[places]
        if not len(places):
            return
        kind = self._decoys.kinds[key.key_id]
        entropies = [_entropy_of(key, seeds[int(seen.documents[place])]) for place in places.tolist()]
        score = []
        for place, entropy in zip(places.tolist(), entropies, strict=True):
            mark = seen.test.to_device(kind.open(entropy))
            score.append(candidates(mark, seen.tokens, only(seen.positions, [place]), key.messages).score[0, 0])
        self._add("decoy_best", seen, scored, np.array(score), key.messages)
        if isinstance(kind.format, CountsHits):
            secrets = [kind.draw_key(entropy) for entropy in entropies]
            critical = self._decoys.critical(kind.law, scored)
            positions = only(seen.positions, places)
            counted = kind.format.counted(key.messages)
            found = kind.format.count_hits(secrets, seen.tokens, positions, counted, critical)
            chance = self._decoys.chances(kind.law, scored, 1, DEEP)
            self._count("decoy_all", seen, found.hits, np.full(len(scored), counted), chance, 1)

    def _add(
        self,
        kind: str,
        seen: Seen,
        scored: NDArray[np.int64],
        score: NDArray[np.generic],
        messages: int,
        decoy: int | None = None,
    ) -> None:
        """Count one score of each document, by the p-value that a verdict would have."""
        if not len(scored):
            return
        law = self._decoys.kinds[seen.test.key.key_id].law
        log10_p = log10_p_best(law, score, scored, messages)
        chance = self._decoys.chances(law, scored, messages)
        hit = log10_p[:, None] <= _LOG10_ALPHA[None, :]
        self._count(kind, seen, hit, np.ones(len(scored)), chance, messages, decoy)

    def _count(
        self,
        kind: str,
        seen: Seen,
        hits: NDArray[np.generic],
        tests: NDArray[np.generic],
        chance: NDArray[np.float64],
        messages: int,
        decoy: int | None = None,
    ) -> None:
        how = self._decoys.kinds[seen.test.key.key_id].format
        asked = Asked(kind, messages, decoy, how.columns(), how.label())
        sums = moments(hits, tests, chance)
        self._found[asked] = self._found[asked].plus(sums) if asked in self._found else sums

    def rows(self) -> list[pa.RecordBatch]:
        """What was counted, as rows of AUDIT_COUNTS."""
        shared = self._origin._asdict() | {"dedup": self._decoys.dedup, "scanned_at": datetime.now(UTC)}
        rows: list[dict[str, Any]] = []
        for asked, sums in self._found.items():
            about = {"kind": asked.kind, "messages": asked.messages, "decoy": asked.decoy, "label": asked.label}
            columns = {"threshold": DEEP[: len(sums.hits)], **sums.columns()}
            same = shared | asked.columns._asdict() | about
            rows += [same | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [pa.RecordBatch.from_pylist(rows, AUDIT_COUNTS)] if rows else []


def _entropy_of(key: MasterKey, seed: bytes) -> bytes:
    """What a decoy is drawn from; of the same seed, every kind of key and number of messages gets another.

    The messages of a smaller number would otherwise be hit along with those of a larger one, and be counted twice.
    """
    data = f"{_kind(key)};{key.messages}".encode()
    return hashlib.blake2b(data, key=seed, digest_size=32, person=b"decoy-key-v1").digest()


def open_decoys(plan: Plan) -> Decoys | None:
    """Read the audit secret, as every worker does itself; None where the plan has none or draws no document.

    Raises:
        SecretError: the secret cannot be read.
    """
    how = plan.config.audit
    if plan.audit_secret is None or not (how.share or how.all_messages_share):
        return None
    secret = read_secret(plan.audit_secret, plan.registry)
    share = share_of(how.share, plan.documents)
    return Decoys(secret, plan.keys, plan.config.dedup, share, how.all_messages_share)


def share_of(configured: float, documents: int | None) -> float:
    """The share of the documents that is scored with one message: as configured, and LEAST documents at least.

    Args:
        configured: 0: none are.
        documents: of the input; None: it is not known how many.
    """
    return max(configured, min(1.0, LEAST / documents)) if configured and documents else configured

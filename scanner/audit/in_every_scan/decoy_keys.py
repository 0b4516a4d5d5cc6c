"""Keys of decoys: what they are drawn from, of which texts, and which keys of the registry they stand for.

Tokens, scores and counts are in scanner.audit.in_every_scan.decoys.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.expectation import DEEP, THRESHOLDS, Remembered, chances, levels
from scanner.detection.scan_plan import Plan
from scanner.registry import read_secret
from scanner.watermark import Format, Watermark
from scanner.watermark.format import DrawsKeys
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Law
from schemas.registry import MasterKey

LEAST = 50_000
"""Documents that are scored with one message at least, where the input has so many: fewer say too little of a night."""

SHADOWS = 20
"""Messages beyond those of a key of one message that are scored under it."""

FIXED = 4
"""Decoy keys that are the same for all documents, of each kind of key."""


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
        self.shadowed: dict[str, Law] = {}
        of_name: dict[str, Kind] = {}
        kinds_and_messages: set[tuple[str, int]] = set()
        for key in keys:
            how, name = format_of(key), kind_of(key)
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
            if _has_shadows(key, how):
                self.shadowed[key.key_id] = law
            kinds_and_messages.add((name, key.messages))

    def __repr__(self) -> str:
        return f"Decoys({len(self.one)} kinds of keys)"

    def certain(self) -> "Decoys":
        """As these, but every document is drawn that may be."""
        certain = copy.copy(self)
        certain._limits = tuple(2**63 if limit else 0 for limit in self._limits)
        return certain

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


def _has_shadows(key: MasterKey, how: Format) -> bool:
    """Whether a key of one message could have more, and nobody can write text of those."""
    try:
        how.check_messages(1 + SHADOWS)
    except ValueError:
        return False
    return key.messages == 1 and not how.can_be_framed()


def kind_of(key: MasterKey) -> str:
    """All that decoys of a key depend on, as text: keys of one kind share them."""
    return ";".join(map(str, [*format_of(key).decides().values(), key.tokenizer.sha256]))


def entropy_of(key: MasterKey, seed: bytes) -> bytes:
    """What a decoy is drawn from; of the same seed, every kind of key and number of messages gets another.

    The messages of a smaller number would otherwise be hit along with those of a larger one, and be counted twice.
    """
    data = f"{kind_of(key)};{key.messages}".encode()
    return hashlib.blake2b(data, key=seed, digest_size=32, person=b"decoy-key-v1").digest()


def open_decoys(plan: Plan) -> Decoys | None:
    """Read the audit secret, as every worker does itself; None where the plan draws no document.

    Raises:
        SecretError: the secret cannot be read.
    """
    how = plan.config.audit
    if not (how.share or how.all_messages_share):
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

"""Draw texts and keys for decoys: which texts are drawn, and which keys the decoys replace."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, RowMemory, chances, critical_scores
from scanner.registry import read_secret
from scanner.scan_plan import Plan
from scanner.watermark import Format, Watermark
from scanner.watermark.format import CountsHits, DrawsKeys
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Law
from schemas.registry import MasterKey


def draw_numbers(secret: bytes, digests: Sequence[bytes]) -> NDArray[np.uint64]:
    """Draw a number below 2^63 for each of D texts, by uniform digests of 32 bytes and 8 bytes of a secret: uint64[D].

    Digests are multiplied by an odd number, the piece's secret, so that each piece draws other texts.
    """
    odd = np.uint64(int.from_bytes(secret, "little") | 1)
    return np.frombuffer(b"".join(digests), np.uint64)[::4] * odd >> np.uint64(1)


FEWEST_DOCUMENTS = 50_000
"""Smallest number of documents that are scored with one message, if the input has so many.

Fewer say too little about a night.
"""

FEWEST_DOCUMENTS_ALL_MESSAGES = 500
"""Smallest number of documents that are scored with all messages, if the input has so many.

Each has a p-value for every message.
"""


class DecoyKind(NamedTuple):
    """A kind of key: one format with equal parameters, and one tokenizer (`kind_of`)."""

    name: str
    number: int
    format: Format
    law: Law
    draw_key: Callable[[bytes], bytes]

    def open(self, messages: int, seed: bytes) -> Watermark:
        """Return the decoy of a key of so many messages, made from a text's seed."""
        return self.format.open(self.draw_key(entropy_of(self.name, messages, seed)))


class Decoys:
    """The decoys of a scan. It holds the audit secret, and no repr shows it.

    Args:
        secret: 16 to 64 bytes.
        keys: the keys under test. Decoys have their formats, if these have a law and draw keys.
        dedup: as for the verdicts.
        share: share of the documents that are scored with one message, each under a decoy of one kind of key. A key
            with several messages takes part only if its messages cannot all be counted.
        all_messages_share: share of the documents that are scored with all messages, under a decoy of each kind of key.
    """

    def __init__(
        self,
        secret: bytes,
        keys: Sequence[MasterKey],
        dedup: str,
        share: float,
        all_messages_share: float,
    ) -> None:
        self._secret = secret
        self.dedup = dedup
        self._limits = tuple(int(part * 2.0**63) for part in (share, all_messages_share))
        self._chances, self._critical = RowMemory(), RowMemory()
        # keys of one kind share their decoys: the first key of each kind gives tokens and positions
        self.kinds: dict[str, DecoyKind] = {}
        self.first_keys: set[str] = set()
        self.one_message_keys: set[str] = set()
        self.all_messages_keys: set[str] = set()
        kinds_by_name: dict[str, DecoyKind] = {}
        one_message_kinds: set[str] = set()
        kinds_and_messages: set[tuple[str, int]] = set()
        for key in keys:
            how, name = format_of(key), kind_of(key)
            law = how.law()
            if law is None or not isinstance(how, DrawsKeys):
                continue
            if name not in kinds_by_name:
                kinds_by_name[name] = DecoyKind(name, len(kinds_by_name), how, law, how.draw_key)
                self.first_keys.add(key.key_id)
            if name not in one_message_kinds and (key.messages == 1 or not isinstance(how, CountsHits)):
                one_message_kinds.add(name)
                self.one_message_keys.add(key.key_id)
            if (name, key.messages) not in kinds_and_messages and key.messages > 1:
                self.all_messages_keys.add(key.key_id)
            self.kinds[key.key_id] = kinds_by_name[name]
            kinds_and_messages.add((name, key.messages))

    def __repr__(self) -> str:
        return f"Decoys({len(self.first_keys)} kinds of keys)"

    @property
    def draws_all(self) -> bool:
        """Return whether some texts are scored under all messages of a decoy."""
        return self._limits[1] > 0

    def drawn(self, piece: bytes, digests: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
        """Yield the drawn texts of a piece.

        Yields:
            The place of the text, its kind of key with one message (−1: none), and whether it takes all messages.
        """
        data = hashlib.blake2b(piece, key=self._secret, digest_size=8, person=b"decoy-draw-v1").digest()
        numbers = draw_numbers(data, digests)
        for d in np.flatnonzero(numbers < np.uint64(max(self._limits))).tolist():
            number = int(numbers[d])
            kind = number * len(self.first_keys) // self._limits[0] if number < self._limits[0] else -1
            yield d, kind, number < self._limits[1]

    def seed(self, piece: bytes, digest: bytes) -> bytes:
        """Return the seed from which the decoy keys of a text are made."""
        return hashlib.blake2b(piece + digest, key=self._secret, digest_size=32, person=b"decoy-v1").digest()

    def chances(
        self, law: Law, scored: NDArray[np.int64], messages: int, thresholds: Sequence[float] = THRESHOLDS
    ) -> NDArray[np.float64]:
        """Return P(p ≤ α) by the law: float64[D, J] (scanner.audit.statistics.judgement)."""
        return self._chances.of(
            (law, messages, len(thresholds)), scored, lambda missing: chances(law, missing, thresholds, messages)
        )

    def critical(self, law: Law, scored: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the smallest scores that pass with one message, down to the last of DEEP_THRESHOLDS: float64[D, J]."""
        return self._critical.of(law, scored, lambda missing: critical_scores(law, missing, DEEP_THRESHOLDS).critical)


def kind_of(key: MasterKey) -> str:
    """Return all data that decoys of a key depend on, as text. Keys of one kind share decoys."""
    return ";".join(map(str, [*format_of(key).digest_fields().values(), key.tokenizer.sha256]))


def entropy_of(kind: str, messages: int, seed: bytes) -> bytes:
    """Return the entropy of a decoy. It differs between kinds of key (`kind_of`) and between numbers of messages.

    Otherwise the messages of a smaller number would be hit together with those of a larger number, and counted twice.
    """
    data = f"{kind};{messages}".encode()
    return hashlib.blake2b(data, key=seed, digest_size=32, person=b"decoy-key-v1").digest()


def open_decoys(plan: Plan) -> Decoys | None:
    """Read the audit secret, as every worker does for itself. None if the plan scores no document under a single decoy.

    Raises:
        SecretError: the secret cannot be read.
    """
    how = plan.config.audit
    if not (how.share or how.all_messages_share):
        return None
    secret = read_secret(plan.audit_secret, plan.registry)
    share = share_of(how.share, FEWEST_DOCUMENTS, plan.documents)
    all_messages_share = share_of(how.all_messages_share, FEWEST_DOCUMENTS_ALL_MESSAGES, plan.documents)
    return Decoys(secret, plan.keys, plan.config.dedup, share, all_messages_share)


def share_of(configured: float, fewest: int, documents: int | None) -> float:
    """Return the share of the documents that is scored: the configured one, but at least so many documents.

    Args:
        configured: the configured share. 0: no document is scored.
        fewest: smallest number of documents to score, if the input has so many.
        documents: number of documents of the input. None: unknown.
    """
    return max(configured, min(1.0, fewest / documents)) if configured and documents else configured

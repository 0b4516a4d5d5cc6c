"""Keys of decoys: the entropy and the texts that they are drawn from, and the registry's keys that they stand for.

Tokens, scores and counts are in scanner.audit.in_every_scan.decoys.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.in_every_scan.decisions import Decisions, draw_numbers
from scanner.audit.statistics.judgement import DEEP, THRESHOLDS, Remembered, chances, levels
from scanner.registry import Holders, read_secret
from scanner.scan_plan import Plan
from scanner.watermark import Format, Watermark
from scanner.watermark.format import DrawsKeys, StandsIn
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Law
from schemas.registry import MasterKey

LEAST = 50_000
"""Fewest documents that are scored with one message, where the input has so many: fewer say too little about a night.
"""

RANKED = 5_000
"""Documents among these in which users' messages are ranked, where there are more: a rank takes twenty scores."""

SHADOWS = 20
"""Messages that are scored under a key of one message besides its own."""


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
        share: share of the documents that are scored with one message, each under a decoy of one kind of key.
        all_messages_share: share of the documents that are scored with all messages, under a decoy of each kind of key.
        holders: knows who has a message; None: no user's message is compared with others.
        ranked: share of the documents scored with one message, in which users' messages are ranked.
        decisions: draws the documents that are decided whole; None: none is.
    """

    def __init__(
        self,
        secret: bytes,
        keys: Sequence[MasterKey],
        dedup: str,
        share: float,
        all_messages_share: float,
        *,
        holders: Holders | None = None,
        ranked: float = 1.0,
        decisions: Decisions | None = None,
    ) -> None:
        self._secret = secret
        self.dedup = dedup
        self._limits = tuple(int(part * 2.0**63) for part in (share, all_messages_share))
        self._chances, self._critical = Remembered(), Remembered()
        # keys of one kind share their decoys: the first of each kind brings tokens and positions
        self.kinds: dict[str, DecoyKind] = {}
        self.one: set[str] = set()
        self.all: set[str] = set()
        self.shadowed: dict[str, Law] = {}
        self.holders = holders
        self.ranked, self.decisions = ranked, decisions
        self.held: dict[str, int] = {}
        of_name: dict[str, DecoyKind] = {}
        kinds_and_messages: set[tuple[str, int]] = set()
        for key in keys:
            how, name = format_of(key), kind_of(key)
            law = how.law()
            if law is None or not isinstance(how, DrawsKeys):
                continue
            if name not in of_name:
                of_name[name] = DecoyKind(name, len(of_name), how, law, how.draw_key)
                self.one.add(key.key_id)
            if (name, key.messages) not in kinds_and_messages and key.messages > 1:
                self.all.add(key.key_id)
            self.kinds[key.key_id] = of_name[name]
            if _has_shadows(key, how):
                self.shadowed[key.key_id] = law
            if holders and key.messages > 1 and isinstance(how, StandsIn) and (held := holders.count(key.key_id)):
                self.held[key.key_id] = held
            kinds_and_messages.add((name, key.messages))

    def __repr__(self) -> str:
        return f"Decoys({len(self.one)} kinds of keys)"

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
            kind = number * len(self.one) // self._limits[0] if number < self._limits[0] else -1
            yield d, kind, number < self._limits[1]

    def seed(self, piece: bytes, digest: bytes) -> bytes:
        """The seed from which the decoy keys of a text are made."""
        return hashlib.blake2b(piece + digest, key=self._secret, digest_size=32, person=b"decoy-v1").digest()

    def numbers(self, key_id: str, seeds: Sequence[bytes]) -> NDArray[np.uint64]:
        """Four numbers for each of D texts under a key, which depend on no score: uint64[D, 4]."""
        made = [
            hashlib.blake2b(seed + key_id.encode(), key=self._secret, digest_size=32, person=b"knockoff-v1").digest()
            for seed in seeds
        ]
        return np.frombuffer(b"".join(made), np.uint64).reshape(-1, 4)

    def chances(
        self, law: Law, scored: NDArray[np.int64], messages: int, thresholds: Sequence[float] = THRESHOLDS
    ) -> NDArray[np.float64]:
        """P(p ≤ α) as the law has it: float64[D, J] (scanner.audit.statistics.judgement)."""
        about = (law, messages, len(thresholds))
        return self._chances.of(about, scored, lambda missing: chances(law, missing, thresholds, messages))

    def critical(self, law: Law, scored: NDArray[np.int64]) -> NDArray[np.float64]:
        """The smallest scores that pass with one message, down to the last of DEEP: float64[D, J]."""
        return self._critical.of(law, scored, lambda missing: levels(law, missing, DEEP).critical)


def _has_shadows(key: MasterKey, how: Format) -> bool:
    """Whether a key of one message could have more messages, which nobody can write text of."""
    try:
        how.check_messages(1 + SHADOWS)
    except ValueError:
        return False
    return key.messages == 1 and not how.can_be_framed()


def kind_of(key: MasterKey) -> str:
    """Everything that decoys of a key depend on, as text: keys of one kind share decoys."""
    return ";".join(map(str, [*format_of(key).decides().values(), key.tokenizer.sha256]))


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
    share = share_of(how.share, plan.documents)
    holders = Holders.load(plan.registry, [key.key_id for key in plan.keys])
    ranked = min(1.0, RANKED / (share * plan.documents)) if share and plan.documents else 1.0
    of_all, decisions = how.all_messages_share, Decisions(secret, plan)
    return Decoys(
        secret, plan.keys, plan.config.dedup, share, of_all, holders=holders, ranked=ranked, decisions=decisions
    )


def share_of(configured: float, documents: int | None) -> float:
    """The share of the documents that is scored with one message: the configured one, and LEAST documents at least.

    Args:
        configured: the configured share; 0: no document is scored.
        documents: how many the input has; None: unknown.
    """
    return max(configured, min(1.0, LEAST / documents)) if configured and documents else configured

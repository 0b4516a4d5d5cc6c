"""What a person must know about one flag: the finding, how likely chance makes it, and where it stands in the text.

Nothing here decides: the verdict was given by the scan.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scanner.detection.shares import recorded_tests
from scanner.evidence.case import Case
from scanner.evidence.names_then import NOT_ASKED, RegistrySays
from scanner.evidence.neighbours import Around, Copied
from scanner.evidence.weighing import OwnSaid, PartSaid, Weighed
from scanner.text.quoting import Kind, Part
from scanner.watermark.formats import generator_of
from scanner.watermark.rule import corrected
from schemas.registry import MasterKey
from schemas.words import Naming

ALIKE = 0.01
"""Largest p-value of a part that does not read like text without a mark."""


@dataclass(frozen=True)
class Explanation:
    """A flag explained.

    case: its row and scan; key: the key's record, None without a configuration, or if it is gone; text: as it was
    scored, None where it cannot be shown, for the reason `no_text`; not_from_file: why it is the one that the scan
    kept; parts of the text; weighed: how it speaks for the verdict's message, None for the reason `not_weighed`;
    of_user: flags that name the flag's own user, None where nobody is named; of_message, of_account, of_text: flags
    with the same message, account and text; alike: flags with this text or near-duplicates, one piece of evidence,
    None: too many to tell; expected: N·p, how many texts of its scan chance alone brings to this p-value at most;
    false_flags: how many flags of its scan chance alone makes at most; None: the scan did not end. spans: its marked
    parts, rows of schemas.tables.SPANS in the order in which they stand. copied: what it shares with earlier
    flagged posts of other accounts, None: no such post is alike, or the texts cannot be read.
    canary: it names a canary of the registry. registry: whether it
    says the same of the names; where it does not, the row names nobody.
    """

    case: Case
    rate: float
    key: MasterKey | None
    text: str | None
    no_text: str | None
    not_from_file: str | None
    parts: Sequence[Part]
    weighed: Weighed | None
    not_weighed: str | None
    of_user: Around | None
    of_message: Around
    of_account: Around | None
    of_text: Around
    alike: Around | None
    expected: float | None
    false_flags: float | None
    spans: Sequence[Mapping[str, Any]] = ()
    copied: Copied | None = None
    canary: bool = False
    registry: RegistrySays = NOT_ASKED

    @property
    def row(self) -> Mapping[str, Any]:
        """Its row of schemas.tables.VERDICTS."""
        return self.case.row

    @property
    def alone(self) -> OwnSaid | None:
        """Evidence that tells the named user from others of a group; None: nobody is named, or there is no group.

        A text that is flagged by a part of it is None too, since its names go by that part alone.
        """
        named = self.row["naming"] == Naming.NAMED and self.row["unit"] is None
        return self.weighed.alone if named and self.weighed else None

    @property
    def log10_p_own(self) -> float | None:
        """p of the second rule (SPEC_2 §3), as log10: chance to name a stranger of the group; None as `alone` is."""
        if self.alone is None:
            return None
        return float(corrected(np.array(self.alone.log10_p), self.alone.group, recorded_tests(self.row)))

    @property
    def generator(self) -> str | None:
        """Generator whose random numbers made the mark, if its stack draws others on another device; else None."""
        keys = (self.case.scan or {}).get("keys") or []
        name = next((key["method"] for key in keys if key["key_id"] == self.row["key_id"]), None)
        return generator_of(name or (self.key.format if self.key else ""))

    @property
    def said_of_parts(self) -> list[PartSaid]:
        """Findings in quoted lines and in own words, if the text has both."""
        return self.weighed.parts if self.weighed and len(self.weighed.parts) > 1 else []

    @property
    def silent(self) -> set[Kind]:
        """Kinds of part that by themselves read like text without the mark: no run of theirs is shown to speak."""
        return {part.kind for part in self.said_of_parts if part.log10_p > math.log10(ALIKE)}

    @property
    def carried_by(self) -> Kind | None:
        """The part that alone carries the mark, if the other reads like text without one: `quoted`, `own` or None."""
        log10_p_of = {part.kind: part.log10_p_any for part in self.said_of_parts}
        orders: tuple[tuple[Kind, Kind], ...] = (("quoted", "own"), ("own", "quoted"))
        for kind, other in orders:
            if log10_p_of and log10_p_of[kind] <= math.log10(self.rate) and log10_p_of[other] > math.log10(ALIKE):
                return kind
        return None

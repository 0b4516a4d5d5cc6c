"""Decide which claim of a flag others can check: one for anybody, or one for a holder of the key's secret."""

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scanner.errors import Refused
from scanner.evidence.case import FlagCase
from scanner.printable import counted
from scanner.registry.key_records import read_record
from scanner.watermark.format import SMALLEST_CLAIMED_WINDOW, DrawsFromSeeds
from scanner.watermark.formats import format_of
from schemas.config import ClaimsConfig
from schemas.registry import MasterKey
from schemas.words import LEVELS, AuditState

OTHER_WAY = (
    "`brickscan replay --proof` writes a claim for a party that holds the key's secret, such as a court or an escrow "
    "agent"
)
"""The other way, if nobody can check a flag without the key."""


class ClaimRefusal(NamedTuple):
    """The reason why a flag has no claim that anybody can check.

    why: in words, after the name of the flag and a colon.
    by_secret: whether it has one for a holder of the key's secret.
    """

    why: str
    by_secret: bool = True

    def __str__(self) -> str:
        return f"{self.why}; {OTHER_WAY}" if self.by_secret else self.why


def look_of_record(look: str | None, variant: str | None) -> str:
    """Return name and version, in a key's public record, of the look that found a row of VERDICTS."""
    return "parts/1" if look else "as written/1" if variant is None else "normalised/1"


def refusal(
    row: Mapping[str, Any], scan: Mapping[str, Any] | None, key: MasterKey, looks: Collection[str]
) -> ClaimRefusal | None:
    """Return why a flag has no claim that anybody can check. None: it has one, unless its p is too large there.

    Args:
        row: row of schemas.tables.VERDICTS.
        scan: row of schemas.tables.SCANS. None: the scan has not ended.
        key: the flag's key.
        looks: looks in the key's public record. Empty for a key without a record.
    """
    form, look = format_of(key), look_of_record(row["look"], row["variant"])
    if row["message"] is None:
        return ClaimRefusal("no message is shown for this flag, so there is nothing to claim", by_secret=False)
    if row["audit"] == AuditState.ALARM:
        return ClaimRefusal("the audit of its scan raised an alarm: do not use any of its flags", by_secret=False)
    if not isinstance(form, DrawsFromSeeds) or key.record is None:
        why = "has no seeds that could be shown: it belongs to another stack, or to version 1 of our mark"
        return ClaimRefusal(f"key {key.key_id!r} {why}")
    if form.rule().context < SMALLEST_CLAIMED_WINDOW:
        why = "tokens, which occur in so many texts that a few claims would use it up"
        return ClaimRefusal(f"key {key.key_id!r} has windows of fewer than {SMALLEST_CLAIMED_WINDOW} {why}")
    if row["look"] == LEVELS:
        why = "its tokens were weighted by how much they surprised a model, and claims count all tokens equally"
        return ClaimRefusal(f"{why}; `brickscan replay` computes the flag again", by_secret=False)
    if scan is None:
        return ClaimRefusal(
            "its scan has not finished, so its audit has not judged it: let it finish first", by_secret=False
        )
    if scan["dedup"] != "ngram":
        return ClaimRefusal("its scan counted repeats differently from claims")
    if scan["filter_sha256"] is not None:
        why = "its scan left out common n-grams, and the person who checks a claim cannot tell which ones"
        return ClaimRefusal(why)
    if look not in looks:
        why = f"was found by the look {look!r}, which is not in the public record of key {key.key_id!r}"
        return ClaimRefusal(why)
    return None


def offer(case: FlagCase, key: MasterKey | None, registry: str, config: Path, settings: ClaimsConfig) -> str | None:
    """Describe how others can check a flag: what the claim shows and costs, who may ask for it, and the command.

    Args:
        case: the flag.
        key: the flag's key. None: it is gone.
        registry: folder of the registry.
        config: file of the scan's configuration.
        settings: settings in that file.

    Returns:
        One or more sentences. None: no claim can be made at all.
    """
    if key is None:
        return None
    try:
        looks = read_record(registry, key)[0].looks if key.record is not None else {}
    except Refused:
        return None
    refused = refusal(case.row, case.scan, key, looks)
    if refused is not None:
        if not refused.by_secret:
            return None
        command = shlex.join(["brickscan", "replay", str(config), case.where, "--proof", "CASE"])
        return (
            f"by a party that holds the key's secret, such as a court or an escrow agent: {command}. {_NOBODY}: "
            f"{refused.why}"
        )
    command = shlex.join(["brickscan", "claim", str(config), case.where, "--out", "CASE", "--list", "LIST"])
    asked_by = "" if settings.asked_by is None else f"Who may ask for it: {settings.asked_by}. "
    return (
        "a claim that anybody can check, without the key. It makes a part of the key public, at most 1,000 seeds, and "
        "nothing takes that back, not even an erasure. Anyone who has the claim sees every message that is marked in "
        "the text, other users' too, and can mark the same windows of words for any user. So scans no longer count "
        f"these windows, in any text. Once 5 % of all positions are gone you need a new key. {asked_by}A key may have "
        f"at most {counted(settings.most_a_month, 'such claim')} a month. The command, which asks before it does "
        f"anything: {command}"
    )


_NOBODY = "There is no claim that anybody can check"

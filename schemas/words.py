"""Define words in tables that say why a row is as it is.

This module imports no library, so any module may import it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

Dedup = Literal["ngram", "context"]
"""Unit that counts once in a text. A repeat has the same draw again. If repeats counted too, no p-value would hold."""


class Naming(StrEnum):
    """Reason why a row names a user or does not."""

    NAMED = "named"
    UNALLOCATED = "unallocated"  # no user had the message when it was scanned
    EVERYBODY = "everybody"  # the key marks for everybody alike: its one message names nobody
    HELD_LATER = "held_later"  # its user got it after `first_seen_at`
    RESERVED = "reserved"  # the message is never given to anybody
    REMOVED = "removed"  # the message belonged to a user, from whom it was withdrawn
    AMBIGUOUS = "ambiguous"  # several messages pass, and one mark raises the scores of others
    UNDECIDED = "undecided"  # messages pass, but none by the positions that it shares with no other
    ASSUMED = "assumed"  # p holds only if the format's hash behaves as random
    QUOTED = "quoted"  # of accounts: a user passes on all posts, but not on own words only
    UNPROVED = "unproved"  # the proof computed another result than the flag: there is a bug, and nobody is named
    NONE = "none"  # not flagged
    OTHER_REGISTRY = "other_registry"  # in no table: the registry never had the users that the row's scan used


WHY_NOBODY: Mapping[str, str] = {
    Naming.UNALLOCATED: "no user had the message then",
    Naming.EVERYBODY: "the key marks for everybody alike",
    Naming.HELD_LATER: "its user got the message after the document existed",
    Naming.RESERVED: "the message is reserved and never given to a user, so this flag is false",
    Naming.REMOVED: "the user who had the message was removed",
    Naming.AMBIGUOUS: "several messages fit well enough for a flag",
    Naming.UNPROVED: "a slower method computed the flag again and found a different result",
    Naming.UNDECIDED: "the evidence is too weak to choose one user",
    Naming.QUOTED: "without the lines that it quotes, its own words do not name a user",
    Naming.ASSUMED: "anyone can make this mark, and its p-value rests on an assumption about a hash",
    Naming.OTHER_REGISTRY: "the scan used a different registry, or users that this registry has lost",
}
"""Sentences for people on why a flag names nobody."""


class NamingCondition(StrEnum):
    """A condition for naming a user for a text. check_claim.py checks each, or says that it does not."""

    TEXT = "text"  # the scored text follows from the stored text: its first part, its manifests, its normal form
    TOKENS = "tokens"  # its tokens are those of the key's tokenizer
    POSITIONS = "positions"  # each position with a whole window counts once, except n-grams that many texts have
    PART = "part"  # a scored part is one that is tested in every text
    LENGTH = "length"  # it has as many positions as the configuration requires
    KEY = "key"  # the p-values of its format hold over the draw of the key
    TESTS = "tests"  # p is corrected for all messages, parts, keys and looks
    SCORE = "score"  # the proof gives the same score and p
    RATE = "rate"  # p is at most the false-positive rate (SPEC_3 §4, rule 1)
    OWN_EVIDENCE = "own evidence"  # so is p of the positions that no other message reads, or no other passes (rule 2)
    OTHER_KEYS = "other keys"  # if one mark raises the scores of others, none passes under another key or look
    RESERVED = "reserved"  # the message is one that users may get
    HOLDER = "holder"  # a user held the message when the document existed, and the registry is as scans saw it


UNMET_CONDITION = {
    Naming.UNALLOCATED: NamingCondition.HOLDER,
    Naming.EVERYBODY: NamingCondition.HOLDER,
    Naming.HELD_LATER: NamingCondition.HOLDER,
    Naming.REMOVED: NamingCondition.HOLDER,
    Naming.OTHER_REGISTRY: NamingCondition.HOLDER,
    Naming.RESERVED: NamingCondition.RESERVED,
    Naming.AMBIGUOUS: NamingCondition.OWN_EVIDENCE,
    Naming.UNDECIDED: NamingCondition.OWN_EVIDENCE,
    Naming.ASSUMED: NamingCondition.KEY,
    Naming.UNPROVED: NamingCondition.SCORE,
    Naming.NONE: NamingCondition.RATE,
}
"""Sentences on why a text names nobody, by the condition that does not hold."""

OF_REGISTRY = (Naming.NAMED, Naming.UNALLOCATED, Naming.HELD_LATER, Naming.REMOVED)
"""Namings that depend only on a message and the users of a registry."""

SPAN = "span"
"""Value of `look` for a verdict from the text's best span."""

LEVELS = "levels"
"""Value of `look` for a flag of the whole text with tokens weighed by how much they surprised a model."""

OF_PASS = f":{LEVELS}"
"""End of the digest of keys under which a model read texts. The digest of the scan's keys comes before it."""


class Proof(StrEnum):
    """Whether a flag was computed a second time, from text and registry, by code that shares nothing with the first."""

    PROVED = "proved"  # it was, with the same result
    DIFFERS = "differs"  # it was, with another result: a bug
    NOT_DRAWN = "not drawn"  # it was not: the text is too long, or only a keyed sample of too many flags was drawn
    NOT_OFFERED = "not offered"  # it was not: the format has no second computation


class ReviewDecision(StrEnum):
    """Decision of a reviewer on a flag."""

    CONFIRMED = "confirmed"  # the mark is there, and the person to ask is the one who posted it
    QUOTED = "quoted"  # the mark is there, in another person's words that the document quotes
    DISMISSED = "dismissed"  # the mark is not there: the flag is false
    UNCLEAR = "unclear"  # a person checked it, without a result
    ALLOWED = "allowed"  # the mark is there, and nothing needs to be done about it


class AuditState(StrEnum):
    """Result of the audit of a scan."""

    NO_ALARM = "no alarm"  # nothing was incompatible with the stated rates
    ALARM = "alarm"
    CANARIES_LOST = "canaries lost"  # texts that are known to be marked were not found, or named for others
    POSSIBLE_FRAMING = "possible framing"  # no alarm, but few accounts post texts with messages that nobody holds
    NO_DECOYS = "no decoys"  # no alarm, but no document was scored under decoy keys: the law itself was not tested
    NOT_JUDGED = "not judged"  # the scan did not end


class AuditVerdict(StrEnum):
    """Result of a row of an audit for a stated rate."""

    HOLDS = "holds"  # the upper limit is at most twice the expectation
    TOO_SMALL = "too small"  # p-values are too small: a bug
    CONSERVATIVE = "conservative"
    TOO_FEW = "too few"  # for canaries: fewer than planned were found, or named correctly
    TOO_MANY = "too many"  # for canaries: more than by chance are named for somebody else
    UNDECIDED = "undecided"


PART_REASONS = ("too_long", "invalid_utf8", "surrogates")
"""Reasons why only a part of a text was scored. The first that holds is recorded.

too_long: the text is longer than the limit.
invalid_utf8: some of its bytes are no UTF-8.
surrogates: some of its bytes are surrogates, which are no characters.

The person who posts a text can cause these. Therefore none of them keeps the text from being scored.
"""

DOCUMENT_REASONS = ("null_text", "unreadable", "failed", "killed_worker", "out_of_memory", "timed_out")
"""Reasons why a document is in quarantine.

null_text: it has no text.
unreadable: its part of the file is corrupt.
failed, killed_worker, out_of_memory, timed_out: how its worker ended at each attempt.
"""

LASTING_FILE_REASONS = (
    *("no_regular_file", "not_parquet", "encrypted", "truncated", "unreadable", "missing_column", "wrong_type"),
)
"""Reasons why a file is in quarantine as long as it does not change. A second run does not read it again."""

PASSING_FILE_REASONS = ("vanished", "changed", "io_error")
"""Reasons why a file is in quarantine for now. A second run scans it if it can be read then."""

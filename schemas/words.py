"""Words that tables hold, which say why a row is as it is. Plain Python, so that everything may import them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

Dedup = Literal["ngram", "context"]
"""What counts once in a text. A repeat has the same draw again: where repeats count too, no p-value holds."""


class Naming(StrEnum):
    """Why a row names a user or does not."""

    NAMED = "named"
    UNALLOCATED = "unallocated"  # no user had the message when it was scanned
    EVERYBODY = "everybody"  # the key marks for everybody alike: its one message names nobody
    HELD_LATER = "held_later"  # its user got it after `first_seen_at`
    RESERVED = "reserved"  # the message is never given to anybody
    REMOVED = "removed"  # the message was a user's whose allocation was withdrawn
    AMBIGUOUS = "ambiguous"  # several messages pass, and one mark raises the scores of others
    UNDECIDED = "undecided"  # messages pass, but none on what it shares with no other
    ASSUMED = "assumed"  # p holds only if the format's hash behaves
    QUOTED = "quoted"  # of accounts: a user passes on all posts, and not on own words alone
    UNPROVED = "unproved"  # a slow path computed another result than the flag: there is a bug, and nobody is named
    NONE = "none"  # not flagged
    OTHER_REGISTRY = "other_registry"  # in no table: the registry never had the users by which the row's scan named


WHY_NOBODY: Mapping[str, str] = {
    Naming.UNALLOCATED: "no user held the message then",
    Naming.EVERYBODY: "the key marks for everybody alike",
    Naming.HELD_LATER: "its user got the message after the document existed",
    Naming.RESERVED: "the message is reserved: a false accusation",
    Naming.REMOVED: "the user who held the message was removed",
    Naming.AMBIGUOUS: "several messages reach the level of a flag",
    Naming.UNPROVED: "the proof, counted again in high precision, gave another result than the scan",
    Naming.UNDECIDED: "the evidence for one user alone is too weak",
    Naming.QUOTED: "without the lines that it quotes, its own words name nobody",
    Naming.ASSUMED: "anyone can make this mark, and p holds only as far as a hash behaves",
    Naming.OTHER_REGISTRY: "its scan had another registry than this one, or users that this one lost",
}
"""Words for people: why a flag names nobody."""


class NamingCondition(StrEnum):
    """What must hold before a text names a user; check_claim.py checks each, or says that it does not."""

    TEXT = "text"  # what is scored is the stored text: its first part, its manifests, its normal form
    TOKENS = "tokens"  # by the tokenizer of the key
    POSITIONS = "positions"  # each with a whole window counts once, but for n-grams that many texts have
    PART = "part"  # of a text: it is one that is looked at in every text
    LENGTH = "length"  # as many positions as the configuration asks for
    KEY = "key"  # the p-values of its format hold over the draw of the key
    TESTS = "tests"  # p is corrected for all messages, parts, keys and looks
    SCORE = "score"  # the proof gives the same score and p
    RATE = "rate"  # p is at most the false-positive rate (SPEC_3 §4, rule 1)
    OWN_EVIDENCE = "own evidence"  # so is p on what no other message reads, or no other passes (rule 2)
    OTHER_KEYS = "other keys"  # where one mark raises the scores of others, none passes under another key or look
    RESERVED = "reserved"  # the message is one that users are given
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
"""Why a text names nobody, by the condition that does not hold."""

OF_REGISTRY = (Naming.NAMED, Naming.UNALLOCATED, Naming.HELD_LATER, Naming.REMOVED)
"""Namings that follow from a message and the users of a registry."""

SPAN = "span"
"""Value of `look` for a verdict that comes from its best span."""

LEVELS = "levels"
"""Value of `look` for a flag by the whole text, whose tokens count by how much they surprised a model."""

OF_PASS = f":{LEVELS}"
"""End of the digest of keys under which a model read, whichever; before it stands the digest of the scan's keys."""


class Proof(StrEnum):
    """Whether a flag was computed again, from text and registry, by a path that shares no code with the first."""

    PROVED = "proved"  # and came out the same
    DIFFERS = "differs"  # and came out differently: a bug
    NOT_DRAWN = "not drawn"  # not computed again: too many flags, of which a keyed sample was drawn, or too long a text
    NOT_OFFERED = "not offered"  # not computed again: the format has no such path


class ReviewDecision(StrEnum):
    """Decision of a reviewer on a flag."""

    CONFIRMED = "confirmed"  # the mark is there, and whoever posted it is the one to ask
    QUOTED = "quoted"  # the mark is there, in words of somebody else that the document quotes
    DISMISSED = "dismissed"  # the mark is not there: the flag is false
    UNCLEAR = "unclear"  # looked at, without a result
    ALLOWED = "allowed"  # the mark is there, and nothing is to be done about it


class AuditState(StrEnum):
    """How the audit of a scan ended."""

    NO_ALARM = "no alarm"  # nothing was incompatible with the stated rates
    ALARM = "alarm"
    CANARIES_LOST = "canaries lost"  # texts that are known to be marked were not found, or named for others
    POSSIBLE_FRAMING = "possible framing"  # no alarm, but few accounts post texts with messages that nobody holds
    NO_DECOYS = "no decoys"  # no alarm, but no document was scored under decoy keys: the law itself was not tested
    NOT_JUDGED = "not judged"  # the scan did not end


class AuditVerdict(StrEnum):
    """What a row of an audit says about a stated rate."""

    HOLDS = "holds"  # the upper limit is at most twice the expectation
    TOO_SMALL = "too small"  # p-values are: a bug
    CONSERVATIVE = "conservative"
    TOO_FEW = "too few"  # for canaries: fewer than planned were found, or named right
    TOO_MANY = "too many"  # for canaries: more than by chance are named for somebody else
    UNDECIDED = "undecided"


PART_REASONS = ("too_long", "invalid_utf8", "surrogates")
"""Reasons why only a part of a text was scored, the first that holds: the text is longer than the limit; bytes of it
are no UTF-8, or are surrogates, which are no characters. Whoever posts a text chooses these, so none of them keeps it
from being scored.
"""

DOCUMENT_REASONS = ("null_text", "unreadable", "failed", "killed_worker", "out_of_memory", "timed_out")
"""Reasons why a document is in quarantine. `unreadable`: its part of the file is corrupt; from `failed` on: the end of
its worker, each time that it was tried.
"""

LASTING_FILE_REASONS = (
    *("no_regular_file", "not_parquet", "encrypted", "truncated", "unreadable", "missing_column", "wrong_type"),
)
"""Reasons for which a file is in quarantine as long as it stays the same: a rerun does not look at it again."""

PASSING_FILE_REASONS = ("vanished", "changed", "io_error")
"""Reasons for which a file is in quarantine for now: a rerun scans it, if it can be read then."""

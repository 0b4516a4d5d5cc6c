"""The words that tables hold: why a row is what it is. Plain Python, so that everything may know them."""

from enum import StrEnum


class Naming(StrEnum):
    """Why a row names a user or does not. Before there was `held_later` or `everybody`, rows read `unallocated`."""

    NAMED = "named"
    UNALLOCATED = "unallocated"  # no user had the message when it was scanned
    EVERYBODY = "everybody"  # the key marks for everybody alike: its one message names nobody
    HELD_LATER = "held_later"  # its user got it after `first_seen_at`
    RESERVED = "reserved"  # the message is never given to anybody
    REMOVED = "removed"  # the message was a user's whose allocation was withdrawn
    AMBIGUOUS = "ambiguous"  # several messages pass, and one mark raises the scores of others
    UNDECIDED = "undecided"  # messages pass, but none by what it shares with no other
    ASSUMED = "assumed"  # p holds only if the format's hash behaves
    UNPROVED = "unproved"  # computed again by a slow path, the flag is another: there is a bug, and nobody is named
    NONE = "none"  # not flagged


class Proof(StrEnum):
    """Whether a flag was computed again, from text and registry, by a path that shares no code with the first."""

    PROVED = "proved"  # and came out the same
    DIFFERS = "differs"  # and did not: a bug
    NOT_DRAWN = "not drawn"  # it was not: there were too many, and a keyed sample was
    NOT_OFFERED = "not offered"  # it was not: its format has no such path


class AuditState(StrEnum):
    """How the audit of a scan ended."""

    NO_ALARM = "no alarm"  # nothing was incompatible with the stated rates
    ALARM = "alarm"
    CANARIES_LOST = "canaries lost"  # texts that are known to be marked were not found, or named for others
    POSSIBLE_FRAMING = "possible framing"  # no alarm, but few accounts post what carries messages that nobody holds
    NO_DECOYS = "no decoys"  # no alarm, but no document was scored under decoy keys: the law itself was not tested
    NOT_JUDGED = "not judged"  # the scan did not end


class AuditVerdict(StrEnum):
    """What a row of an audit says of a stated rate."""

    HOLDS = "holds"  # the upper limit is at most twice the expectation
    TOO_SMALL = "too small"  # p-values are: a bug
    CONSERVATIVE = "conservative"
    TOO_FEW = "too few"  # of canaries: fewer than planned were found, or named right
    TOO_MANY = "too many"  # of canaries: more than by chance are named for somebody else
    UNDECIDED = "undecided"


PART_REASONS = ("too_long", "invalid_utf8", "surrogates")
"""Why a text was looked at in part alone, the first that holds: it is longer than what is scored; bytes of it are no
UTF-8, or are surrogates, which are no characters. Who posts a text chooses these, so none of them keeps it from being
scored."""

DOCUMENT_REASONS = (
    *("null_text", "unreadable"),
    *("failed", "killed_worker", "out_of_memory", "timed_out"),
    *PART_REASONS,
)
"""Why a document is in quarantine. `unreadable`: its part of the file is corrupt; from `failed` on: what became of its
worker, each time that it was tried. PART_REASONS stand in rows of earlier versions, which scored no part of a text."""

LASTING_FILE_REASONS = ("no_regular_file", "not_parquet", "truncated", "unreadable", "missing_column", "wrong_type")
"""Why a file is in quarantine for as long as it stays what it is: a rerun does not look at it again."""

PASSING_FILE_REASONS = ("vanished", "changed", "io_error")
"""Why a file is in quarantine for now: a rerun scans it, if it can be read then."""

"""Flags and decisions as they travel between systems.

A flag is one neutral record, whose version grows when a field changes its meaning. A decision is a row of a file.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from schemas.words import ReviewDecision


class _VerdictPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VerdictDocument(_VerdictPart):
    """Where the text stood."""

    path: str  # of its file
    row: int  # within the file, from 0
    doc_id: str | None  # as its platform calls it
    account_id: str | None  # who posted it
    created_at: datetime | None  # when it was posted


class VerdictKey(_VerdictPart):
    """Under which key the mark is; the key itself stands nowhere."""

    key_id: str
    commitment: str | None  # hexadecimal; None: the scan did not end, or its format has none
    format: str | None
    tokenizer_sha256: str | None


class VerdictP(_VerdictPart):
    """Logarithms to base 10."""

    log10_p: float | None  # of the message alone
    log10_p_global: float  # corrected for all messages of all keys that were tested
    messages_tested: int | None
    correction: float | None  # times that p is corrected for keys and looks
    basis: str | None  # over what p holds: key, key-<bits>-bits or assumed; None: as key
    false_positive_rate: float  # at which it was flagged
    log10_p_shown: float  # for people: no smaller than its rank among decoys, where the hash alone speaks
    expected_by_chance_at_most: float | None  # texts of its scan that chance brings as far; None: it did not end


class VerdictSpan(_VerdictPart):
    """A part of the text that is marked by itself: characters (code points) of the text as it stands."""

    char_from: int
    char_to: int  # the one after the last
    key_id: str
    message: int | None
    user_id: str | None
    naming: str
    log10_p_global: float


class Verdict(_VerdictPart):
    """A flag: a document contains text marked for somebody. It does not say who wrote or posted it."""

    version: Literal[1] = 1
    id: str = Field(pattern=r"^brickscan-[0-9a-f]{32}$")  # the same whenever this document and text are told
    document: VerdictDocument
    text_sha256: str  # of its bytes, hexadecimal
    key: VerdictKey
    message: int | None
    user_id: str | None  # for whom the text was marked; None: nobody is named, for the reason `naming`
    naming: str
    named: tuple[str, ...]  # all who are named, the first is user_id
    p: VerdictP
    checked: bool  # whether the tables were held against their signatures; false: without the audit secret nobody can
    proof: str | None  # whether it was computed again by a path that shares no code with the scan
    audit: str | None  # how the audit of its scan ended; None: it has not
    spans: tuple[VerdictSpan, ...]
    says: tuple[str, ...]  # sentences for people
    does_not_say: tuple[str, ...]
    scan_id: str
    scanned_at: datetime
    scan_version: str | None  # of brickscan; None: the scan did not end
    replay: str  # the command that computes it again, where the scan's configuration is


class AccountVerdict(_VerdictPart):
    """A marked account: its posts together contain text marked for somebody. It does not say who wrote them."""

    version: Literal[1] = 1
    id: str = Field(pattern=r"^brickscan-account-[0-9a-f]{32}$")  # the same whenever this account and night are told
    account_id: str
    night: str  # date of the data
    nights: int  # of the window whose posts were tested together
    posts: int
    texts: int  # distinct ones
    first_post: datetime | None
    last_post: datetime | None
    key_id: str
    message: int | None
    user_id: str | None  # for whom the posts are marked; None: nobody is named, for the reason `naming`
    naming: str
    named: tuple[str, ...]  # all who are named, the first is user_id
    quoted_share: float | None  # of the scored tokens, that stands in quoted lines alone
    log10_p_global: float  # corrected for all messages of all keys
    messages_tested: int
    correction: float
    checked: bool  # as of a Verdict
    proof: str | None  # `proved`: the pooled score was computed again, and came out the same; else nobody is named
    audit: str | None
    says: tuple[str, ...]
    does_not_say: tuple[str, ...]
    scan_id: str
    scanned_at: datetime
    explain: str  # the command that shows its posts, where the scan's configuration is


LONGEST_NOTE = 4_000
"""Most characters of a note."""

LONGEST_NAME = 200


def _time(value: object) -> object:
    """Return a time in ISO 8601 as UTC. Pydantic itself would take a number for the seconds since 1970."""
    if not isinstance(value, str):
        raise ValueError("a text is needed, such as '2026-11-26T21:15:00Z'")
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is None:
            raise ValueError("no zone")
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("a time with its zone is needed, such as '2026-11-26T21:15:00Z'") from None


class Decision(BaseModel):
    """What somebody decided on a flag, as other systems give it back (`brickscan decide --from`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    id: str = Field(pattern=r"^brickscan-[0-9a-f]{32}$")  # of the flag, as in its Verdict
    decision: ReviewDecision
    decided_by: str = Field(min_length=1, max_length=LONGEST_NAME)  # name of a person
    decided_at: Annotated[AwareDatetime, BeforeValidator(_time)] | None = None  # None: when it is recorded
    note: str = Field(default="", max_length=LONGEST_NOTE)  # why, in words

    @field_validator("decided_by", "note")
    @classmethod
    def _holds_no_null_character(cls, value: str) -> str:
        if "\0" in value:
            raise ValueError("a null character is not allowed")
        return value

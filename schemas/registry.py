"""The registry of master keys: the record of each key. References to secrets, never the secrets."""

import functools
import re
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.versions import FIRST_VERSION, MADE_BEFORE, VERSION
from schemas.words import Dedup


def _written(pattern: str, words: str) -> AfterValidator:
    """Return a validator for text that must match a pattern. Its error describes the pattern in words."""

    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{words} are needed")
        return text

    return AfterValidator(checked)


MOST_VALUE_BYTES = 4096
"""Largest size of a beacon's value, in bytes."""

_SMALL = "1 to 64 small letters a to z, digits, "
FormatName = Annotated[str, _written(r"[a-z0-9][a-z0-9-]{0,63}", f"{_SMALL}and - after the first")]
KeyId = Annotated[str, _written(r"[a-z0-9][a-z0-9._-]{0,63}", f"{_SMALL}and . _ - after the first")]
ValueHex = Annotated[
    str,
    _written(rf"([0-9a-f]{{2}}){{1,{MOST_VALUE_BYTES}}}", "an even number of digits 0 to 9 and a to f"),
]
Sha256 = Annotated[str, _written(r"[0-9a-f]{64}", "64 digits 0 to 9 and a to f, as `sha256sum` prints them,")]


def _in_a_year_of_every_zone(moment: datetime) -> datetime:
    """Return the time if it can be shown in UTC and compared with a time a day away.

    Raises:
        ValueError: its year is not 1970 to 9998.
    """
    if not 1970 <= moment.year < 9999:
        raise ValueError(f"is in the year {moment.year}; allowed: the years 1970 to 9998")
    return moment


KeyTime = Annotated[AwareDatetime, AfterValidator(_in_a_year_of_every_zone)]
"""A time of a key, with a zone."""

MAX_WINDOW = 16
MAX_GAMMA_BITS = 8
MAX_MESSAGES = 2**32
MOST_NUMBERS = 2**16  # in version 3: messages of a key without groups, groups of a key, and users of a group
RESERVED_EVERY = 20  # every 20th message is reserved: never given to a user, so a detection there is known to be false


def is_reserved(message: Any) -> Any:  # noqa: ANN401 - a number, an array of them or an expression of polars
    """Return whether a message is one of the 5 % that are never given to a user."""
    return message % RESERVED_EVERY == RESERVED_EVERY - 1


def reserved_count(messages: Any) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Count the reserved messages among the messages 0 … M−1."""
    return messages // RESERVED_EVERY


@functools.lru_cache(maxsize=256)
def parse_gamma(text: str) -> Fraction:
    """Read γ = n / 2^b in lowest terms, n odd, 1 ≤ b ≤ 8 (SPEC, symbols).

    Raises:
        ValueError: any other text. The message says what is allowed, and does not repeat the text.
    """
    match = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", text)
    if match:
        n, d = int(match[1]), int(match[2])
        if text == f"{n}/{d}" and n % 2 == 1 and n < d <= 2**MAX_GAMMA_BITS and d & (d - 1) == 0:
            return Fraction(n, d)
    raise ValueError(f"is not n/2^b in lowest terms with n odd and 1 <= b <= {MAX_GAMMA_BITS}; try 1/4, 1/2 or 3/8")


def _is_gamma(text: str) -> str:
    parse_gamma(text)
    return text


def _holds_no_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path must not contain a NUL character; remove it")
    return path


def _is_reference(value: str) -> str:
    # never echo the value: someone may have pasted the key itself
    well_formed = re.fullmatch(r"file:.+|env:[A-Za-z_][A-Za-z0-9_]*", value)
    if not well_formed or re.fullmatch(r"[a-z]+:(0x)?[0-9a-fA-F]{32,}", value):
        raise ValueError("a reference is needed, 'file:PATH' or 'env:NAME', not the secret itself")
    return value


def _is_read(version: int) -> int:
    """Return the version that this brickscan writes: a registry of an earlier version is written back in this one."""
    if version < FIRST_VERSION:
        raise ValueError(f"{MADE_BEFORE}; if everything in it is still right, write `version = {VERSION}`")
    if version > VERSION:
        raise ValueError(
            f"{VERSION} is the newest version that this brickscan reads; a larger one is from a newer brickscan: "
            "install that one"
        )
    return VERSION


_VERSIONS = tuple(range(FIRST_VERSION, VERSION + 1))
Version = Annotated[int, AfterValidator(_is_read), Field(json_schema_extra={"enum": [*_VERSIONS]})]
Gamma = Annotated[str, AfterValidator(_is_gamma)]
PathText = Annotated[str, Field(min_length=1), AfterValidator(_holds_no_nul)]
SecretReference = Annotated[str, AfterValidator(_is_reference)]
Holder = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


class _RegistryTable(BaseModel):
    # read_toml hides inputs in its errors too: a pasted secret must not be printed back
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class TokenizerFile(_RegistryTable):
    """A tokenizer.json, pinned by the SHA-256 of its bytes. A relative path starts at the registry's folder."""

    file: PathText  # a tokenizer.json
    sha256: Sha256  # digest of its bytes, as hex


class AuditedFilter(_RegistryTable):
    """The n-grams that an audit left out of scoring. Scans under the key must leave them out too.

    texts: number of distinct texts that made an n-gram common.
    learnt: number of texts that the filter was learnt from.
    sha256: digest of the filter.
    """

    texts: int = Field(ge=1)
    learnt: int = Field(ge=0)
    sha256: Sha256


class Admission(_RegistryTable):
    """The audit that a key passed (`brickscan keys admit`).

    audit_id: id of the run of `brickscan calibrate`.
    audited_at: time of that run.
    holds_down_to: smallest threshold of p at which the audit found that the key's rate holds.
    candidates: number of keys that were tried, including this one. The best of many keys looks better than it is.
    messages: number of messages that the key had then. None: not on record, so the key counts as not admitted.
    filter: the n-grams that the audit left out. None: it scored all positions.
    dedup: the repeats that the audit counted once in a text. Scans must count them once too.
    """

    audit_id: Annotated[str, Field(min_length=1)]
    audited_at: KeyTime
    holds_down_to: Annotated[float, Field(gt=0, lt=1)]
    candidates: int = Field(ge=1)
    messages: int | None = Field(default=None, ge=1, le=MAX_MESSAGES)
    filter: AuditedFilter | None = None
    dedup: Dedup = "ngram"


class MasterKey(_RegistryTable):
    """One master key: its format, the place of its secret, and the commitment published when it was made.

    parameters: the format's parameters (scanner.watermark.formats). Only the format understands them.
    commitment: None for a format whose keys are too short for a commitment.
    record: SHA-256 of the public record that was made with the key (schemas.key_record). None: its format has no
        record.
    beacon_value: value of the beacon that the record names, as hex. None: not set yet, or the record names no beacon.
    one_of: 1 over the key's weight (scanner.registry.keys). For example, with 4 the p-values of the key are corrected
        as if the registry had 4 keys. None: they are corrected for all keys of the registry.
    """

    key_id: KeyId
    format: FormatName
    parameters: dict[str, Any] = Field(default_factory=dict)
    messages: int = Field(ge=1, le=MAX_MESSAGES)
    tokenizer: TokenizerFile
    secret: SecretReference
    commitment: Sha256 | None = None
    record: Sha256 | None = None
    beacon_value: ValueHex | None = None
    created_at: KeyTime
    active_from: KeyTime | None = None  # before it, nothing is marked with the key; None: from the start
    active_until: KeyTime | None = None  # from then on, nothing is marked with it; None: until it is retired
    retired_at: KeyTime | None = None
    admission: Admission | None = None
    one_of: int | None = Field(default=None, ge=1, le=2**53)
    held_by: Holder | None = None  # another holder of the secret, such as a serving site, who can mark for anybody

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.active_from and self.active_until and self.active_until <= self.active_from:
            raise ValueError("active_until must be later than active_from")
        return self

    def has_ended(self, at: datetime) -> bool:
        """Return whether the key is retired at a time (with a zone). It is still scanned, and never marks again."""
        return self.retired_at is not None or (self.active_until is not None and self.active_until <= at)

    def marks(self, at: datetime) -> bool:
        """Return whether text may be marked with the key at a time (with a zone)."""
        if self.waits_for_beacon or self.has_ended(at):
            return False
        return self.active_from is None or self.active_from <= at

    @property
    def waits_for_beacon(self) -> bool:
        """Return whether its record names a beacon without a value yet.

        Until then, nothing is marked or scanned with it.
        """
        return self.record is not None and self.beacon_value is None and "beacon" not in self.parameters

    def marked_since(self) -> datetime:
        """Return the time from which text may carry the key's mark.

        A key of another stack may have marked texts before it was added here.
        """
        return self.created_at if self.active_from is None else min(self.created_at, self.active_from)

    def tested_among(self, keys_tested: int) -> int:
        """Return 1 over the key's weight: its own, or otherwise that of an equal share among `keys_tested` keys."""
        return keys_tested if self.one_of is None else self.one_of

    @property
    def admitted_by(self) -> str | None:
        """Return the id of the audit that the key passed with as many messages as it has now. None: there is none."""
        passed = self.admission
        return passed.audit_id if passed is not None and passed.messages == self.messages else None


TRIAL_NAME = "trial"
"""Beginning of the ids of a trial's keys and users. No row of its results is then mistaken for a real one."""

CANARY_ID = "^canary-[0-9a-f]{16}$"
"""Pattern of canaries' ids. An id like this makes nobody a canary: only the registry knows the canaries."""


class Canary(_RegistryTable):
    """A made-up user with a message. The serving side marks the texts that the user's account posts.

    names: whether the holder of the message is named. A key of one message, the same for everybody, names nobody.
    """

    account_id: Annotated[str, Field(min_length=1, max_length=256)]  # and the id of the user
    key_id: KeyId
    message: int = Field(ge=0, lt=MAX_MESSAGES)
    names: bool


class CanaryStrength(_RegistryTable):
    """Texts that were marked with a key as canaries' texts are, and read back under it. Each field has a number a text.

    key_id: id of the key.
    scored: number of positions.
    log10_p: of the text's message by itself. 0 if another message scores better.
    log10_p_own: of the part of the mark that the message shares with no other message, corrected for these others.
    """

    key_id: KeyId
    scored: Annotated[tuple[int, ...], Field(min_length=1)]
    log10_p: tuple[float, ...]
    log10_p_own: tuple[float, ...]

    @model_validator(mode="after")
    def _one_number_a_text(self) -> Self:
        if not len(self.scored) == len(self.log10_p) == len(self.log10_p_own):
            raise ValueError("scored, log10_p and log10_p_own must have a number for each text")
        return self


class Canaries(_RegistryTable):
    """Canaries of a registry (`brickscan canaries`).

    power: planned share of their texts that are found, and named correctly, for any scan.
    made: all canaries that were ever made, because their texts may still come.
    measured: texts from which each scan plans for its own keys, looks and rates. Empty: it plans with `power`.
    """

    power: Annotated[float, Field(gt=0, lt=1)]
    made: tuple[Canary, ...] = ()
    measured: tuple[CanaryStrength, ...] = ()


class Registry(_RegistryTable):
    """All master keys of a platform, read from keys.toml in the registry's folder.

    trial: whether the registry was made for a trial (`brickscan init --trial`). Its key and users are dated back, and
        its scans' findings are evidence against nobody.
    audit_secret: reference to the secret from which decoy keys are derived. None: there are no decoys.
    lasting_secret: reference to the first audit secret, if another one followed. Under it, filters hash n-grams, and
        accounts are told apart from night to night. None: it is the audit secret.
    canaries: made-up users. None: there are none.
    """

    version: Version  # schemas.versions.VERSION
    trial: Literal[True] | None = None
    audit_secret: SecretReference | None = None
    lasting_secret: SecretReference | None = None
    canaries: Canaries | None = None
    keys: tuple[MasterKey, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        first: dict[str, int] = {}
        for number, key in enumerate(self.keys):
            if first.setdefault(key.key_id, number) != number:
                raise ValueError(f"keys.{first[key.key_id]} and keys.{number} have the same key_id; give each its own")
        return self

    @model_validator(mode="after")
    def _weights_are_at_most_one(self) -> Self:
        if sum(Fraction(1, key.one_of) for key in self.keys if key.one_of is not None) > 1:
            raise ValueError("the weights of the keys, 1/one_of, sum to more than 1; restore the original weights")
        return self

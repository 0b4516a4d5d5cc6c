"""Configuration of `brickscan calibrate`: one TOML file, read into frozen models, as in schemas.config."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.config import ClusterConfig, CommonIn, Dedup, InputConfig, Windows, _Frozen
from schemas.registry import MAX_MESSAGES, MOST_NUMBERS, Gamma, KeyId, PathText, TokenizerFile


class LawConfig(_Frozen):
    """Fresh keys for every document: how many null p-values of each format, and of which cases."""

    tests: int = Field(default=4_000_000_000, ge=1)  # null p-values of each format, spread evenly over its cases
    version: Literal[1, 2] = 2  # version of the marks: 1 is the paper's own
    messages: int = Field(default=16_384, ge=1, le=MAX_MESSAGES)  # null p-values a document
    tokens: int = Field(default=256, ge=17)  # tokens of a document that are looked at
    windows: Windows = (0, 1, 2, 4, 8)  # tokens before a token that choose its draw
    gammas: tuple[Gamma, ...] = ("1/4", "1/2", "3/8")  # shares of green tokens
    dedups: Annotated[tuple[Dedup, ...], Field(min_length=1)] = ("ngram", "context")  # what counts once in a text

    @model_validator(mode="after")
    def _something_can_be_tested(self) -> "LawConfig":
        if set(self.windows) == {0} and set(self.dedups) == {"context"}:
            raise ValueError("window 0 with dedup 'context' scores one position of a text; add another window or dedup")
        if self.version == 2 and self.messages > MOST_NUMBERS:
            raise ValueError(f"messages = {self.messages}: of version 2 at most {MOST_NUMBERS} are scored one by one")
        return self


class PiecesConfig(_Frozen):
    """The paper's figure: a few master keys over disjoint pieces of documents."""

    pieces: int = Field(default=100_000, ge=1)  # pieces of documents, none of which overlap
    tokens: int = Field(default=256, ge=17)  # tokens of a piece
    keys: int = Field(default=10, ge=2)  # keys, drawn anew
    version: Literal[1, 2] = 2  # version of the marks: 1 is the paper's own
    windows: Windows = (0, 1, 2, 3, 4, 6, 8)  # tokens before a token that choose its draw
    gamma: Gamma = "1/4"  # share of green tokens


class NamesConfig(_Frozen):
    """Who is named in marked text: synthetic texts of one to several users, under keys with groups."""

    texts: int = Field(default=100_000, ge=1)  # texts of each format, over all lengths: as many tokens of each length
    users: Annotated[tuple[Annotated[int, Field(ge=1, le=16)], ...], Field(min_length=1)] = (1, 2, 3, 6)  # of a text
    tokens: Annotated[tuple[Annotated[int, Field(ge=64, le=100_000)], ...], Field(min_length=1)] = (
        200,
        1_000,
        5_000,
        20_000,
    )  # of a text
    groups: int = Field(default=1026, ge=20, le=MOST_NUMBERS)  # groups, of so many users each
    window: int = Field(default=4, ge=2, le=16)  # narrower windows would come twice, and texts not be independent
    gamma: Gamma = "1/4"  # share of green tokens


class AuditFilterConfig(_Frozen):
    """N-grams that many other texts of the corpus hold are left out of scoring, as a scan's filter would leave them."""

    texts: CommonIn = 16  # as in the filter of the scans, or more
    learnt: int = Field(default=20_000, ge=4)  # most texts that each half teaches the other; a scan needs as many
    min_scored: int = Field(default=16, ge=1, le=2**31)  # as in the scans: texts of fewer n-grams teach nothing


class RegistryAuditConfig(_Frozen):
    """The keys of a registry on this corpus."""

    registry: PathText  # folder of keys.toml
    keys: tuple[KeyId, ...] | None = None  # None: every key
    dedup: Dedup = "ngram"  # as in the scans
    messages: int = Field(default=64, ge=2)  # messages of each key, scored one by one
    tokens: int = Field(default=1024, ge=17)  # tokens of a document that are looked at
    filter: AuditFilterConfig | None = None  # for scans with a filter; None: all positions are scored


class CalibrationConfig(_Frozen):
    """An audit over a corpus known to be unmarked. Relative paths start at the folder of the configuration file."""

    results: PathText  # folder of the tables
    seed: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[ -~]+$")] = "1"  # another seed, other keys
    family_error: Annotated[float, Field(gt=0, lt=0.5)] = 0.01  # probability of an alarm where all laws hold
    tokenizer: TokenizerFile
    input: InputConfig
    law: LawConfig | None = None
    figure: PiecesConfig | None = None
    names: NamesConfig | None = None
    keys: RegistryAuditConfig | None = None
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _something_is_asked(self) -> "CalibrationConfig":
        if not (self.law or self.figure or self.names or self.keys):
            raise ValueError("nothing to do: add a section [law], [figure], [names] or [keys]; only keys needs fields")
        return self

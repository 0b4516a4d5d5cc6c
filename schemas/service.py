"""Define the detector that others ask (`brickscan serve`): its configuration, requests, answers and reports."""

import ipaddress
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import models_json_schema

from schemas.registry import PathText, Version

HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")]

CHARACTERS = (2_000, 20_000, 200_000)
"""Most characters of a text of each length class except the last, which has no limit of its own."""

TICKS = (0.075, 0.5, 4.0, 30.0)
"""Seconds from a request to its answer, by its length class. If that is too short: twice, four times, …, 32 times."""


def tick_of(size: int) -> float:
    """Return the tick of a request whose texts have so many bytes."""
    return TICKS[sum(size > most for most in CHARACTERS)]


SPREAD = 0.005
"""Largest extra delay of an answer, in seconds. It comes from a keyed digest of its texts."""


class _DetectorTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BudgetConfig(_DetectorTable):
    """The number of answers in a window of time.

    A new text counts 1, or its seconds of CPU if they are more. A text that was answered in the same window, or that is
    too short, counts its seconds, and at least 0.1.
    """

    hours: float = Field(default=24, gt=0, le=24 * 366)  # length of a window; at its end all counts begin anew
    near_duplicates: int = Field(default=3, ge=1, le=255)  # new texts answered that share a marked piece
    texts: int = Field(default=100, ge=1)  # for a caller without a token
    expert_texts: int = Field(default=100_000, ge=1)  # for an expert; `near_duplicates` does not apply to experts
    most_texts: int = Field(default=200_000, ge=1)  # for all callers together; beyond it, only experts are answered


class ProxyConfig(_DetectorTable):
    """A proxy in front of the detector, and the headers that it may set. No other address may set them."""

    addresses: tuple[str, ...] = Field(min_length=1)  # addresses or networks of the proxy, as the detector sees them
    caller: HeaderName | None = None  # header whose last entry is the caller's address, such as X-Forwarded-For
    expert: HeaderName | None = None  # header with an expert's name; the proxy sets it, and removes it from requests

    @model_validator(mode="after")
    def _addresses_are_such(self) -> "ProxyConfig":
        for address in self.addresses:
            ipaddress.ip_network(address)
        return self

    def sends(self, address: str) -> bool:
        """Return whether a request from an address comes from the proxy."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any(one in ipaddress.ip_network(network) for network in self.addresses for one in (found, mapped) if one)


class DetectorConfig(_DetectorTable):
    """The detector: the scan whose rules it uses, and what it tells to whom."""

    version: Version  # of this file
    scan: PathText = "scan.toml"  # configuration of the scan whose registry, keys, rate and rules are used
    state: PathText = "detector"  # folder of signing keys, tokens, the budget's table and the log
    name: str | None = Field(default=None, min_length=1, max_length=200)  # address in reports; else where it listens
    provider: str = Field(default="", max_length=200)  # who runs it
    workers: int = Field(default=2, ge=1, le=256)  # processes that score
    factor: float = Field(default=100, ge=1, le=1e12)  # `found` needs p ≤ rate / factor, `not found` p ≥ rate · factor
    most_bytes: int = Field(default=1_000_000, ge=1_000, le=16_000_000)  # of a text or a file; less for costly keys
    batch: int = Field(default=100, ge=1, le=1_000)  # texts of one request to /detect/batch
    seconds: float = Field(default=60, gt=0)  # longest wait of a text, then of its work; at most 1/20 of it is CPU
    filter: bool = False  # leave out the n-grams that a scan of today leaves out, if the scan has a filter
    names: Literal["nobody", "experts"] = "nobody"  # who learns for which user a text was marked; each time is logged
    numbers: bool = False  # constants in place of null in `score`, `p_value`, `num_scored_tokens`
    commitments: PathText | None = None  # the published list (`brickscan keys publish`) whose head reports contain
    log_days: int = Field(default=90, ge=1)  # days that the log of metadata is kept
    log_bytes: int = Field(default=2**30, ge=10_000)  # of the log; beyond, its oldest day goes before `log_days`
    budget: BudgetConfig = BudgetConfig()
    proxy: ProxyConfig | None = None


class DetectorResult(StrEnum):
    """The detector's result for a text."""

    FOUND = "found"  # p is below the false-positive rate by the configured factor or more
    NOT_FOUND = "not found"  # p is above it by that factor or more
    CANNOT_TELL = "cannot tell"  # between the two
    TOO_SHORT = "too short"  # too few tokens to be scored


MEANINGS = {
    DetectorResult.FOUND: (
        "The text contains text that carries the mark. The mark does not say who posted the text, nor that all of it "
        "was generated: quotations and copies carry it too."
    ),
    DetectorResult.NOT_FOUND: (
        "None of the requested marks was found. This does not mean that a person wrote the text: other models have "
        "other marks or none, and editing, paraphrasing or translation removes a mark."
    ),
    DetectorResult.CANNOT_TELL: (
        "The evidence is neither strong enough for a mark nor weak enough to rule one out. It says nothing for or "
        "against the text."
    ),
    DetectorResult.TOO_SHORT: (
        "The text has too few tokens to be checked. Ask with a longer text: 200 tokens, about 150 words, or more."
    ),
}
"""Fixed sentences on the meaning of a result, and on its limits."""


def _without_surrogates(text: object) -> object:
    """Return a text with U+FFFD in place of each half of a surrogate pair. JSON can contain halves, and UTF-8 cannot.

    Other values are returned unchanged.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(text, str) else text


RequestText = Annotated[str, BeforeValidator(_without_surrogates)]


class DetectorRequest(BaseModel):
    """A text. Unknown fields are ignored, as vLLM's example server ignores them."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    text: RequestText


class BatchRequest(BaseModel):
    """Several texts. Each is answered, and charged, by itself."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    texts: tuple[RequestText, ...] = Field(min_length=1)


class SignedReport(BaseModel):
    """A report in the form in which it is downloaded.

    statement: canonical JSON of a `Statement` or a `PageStatement`, exactly the characters that are signed.
    signature: Ed25519 over their UTF-8 bytes, base64.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: str
    signature: str


class Statement(BaseModel):
    """The statement of a report on a text. It has no score, key or file, because these could show another text.

    text_sha256: of the text's UTF-8 bytes as they were received, with JSON unescaped and nothing normalised. Half of a
        surrogate pair counts as U+FFFD.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["brickscan detector report 1"] = "brickscan detector report 1"
    detector: str  # the configured name
    signing_key: str  # id of the key that signs
    time: str  # UTC
    text_sha256: str
    result: DetectorResult
    techniques: tuple[str, ...]  # techniques that were asked for
    technique: str | None  # technique that was found
    commitments_head: str | None  # head of the published list
    false_positive_rate: float  # of `found`
    audited: str | None  # day of the oldest audit of the keys that were tested; null: a key has no audit on record
    version: str  # of brickscan


class PageStatement(BaseModel):
    """The statement of a report on a page that brickscan wrote about a server (`brickscan probe`).

    text_sha256: of the page's JSON, exactly its bytes.
    html_sha256: of the page for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["brickscan probe report 1"] = "brickscan probe report 1"
    signing_key: str  # id of the key that signs
    time: str  # UTC
    text_sha256: str
    html_sha256: str
    version: str  # of brickscan


class SigningKey(BaseModel):
    """A published key that signs reports, or did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    public_key: str  # PEM
    signs_from: AwareDatetime
    signs_until: AwareDatetime | None = None  # null: it still signs
    revoked_at: AwareDatetime | None = None  # from then on, none of its reports is valid


class ExpertToken(BaseModel):
    """A token of an expert, by its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_id: str
    expert: str
    sha256: str
    issued_at: AwareDatetime
    until: AwareDatetime
    revoked_at: AwareDatetime | None = None


class Part(BaseModel):
    """A part of a text that carries the mark: characters from `begin` on and before `end`."""

    begin: int
    end: int


class DetectorAnswer(BaseModel):
    """An answer to one text. `p_class`, `parts` and `user` are for experts only."""

    result: DetectorResult
    is_watermarked: bool  # true for `found` only
    technique: str | None  # public name of the technique whose mark was found
    meaning: str
    score: float | None = None
    p_value: float | None = None
    num_scored_tokens: int | None = None
    report: SignedReport
    text: str | None = None  # the text that was read from a file and is answered; null: the file is itself the text
    p_class: int | None = None  # k where 10^(-6(k+1)) < p ≤ 10^(-6k)
    parts: tuple[Part, ...] | None = None
    user: str | None = None


class DetectorError(BaseModel):
    """The reason why there is no answer. It repeats nothing of the text."""

    detail: str
    retry_after: int | None = None  # seconds, if the budget is used up


class BatchAnswer(BaseModel):
    """Answers in the order of the texts. A text without an answer has the reason instead."""

    answers: tuple[DetectorAnswer | DetectorError, ...]


def openapi_components(*models: type[BaseModel]) -> dict[str, Any]:
    """Return JSON Schemas of models under `#/components/schemas/`."""
    _, found = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    return dict(found["$defs"])

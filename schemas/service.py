"""The detector that others ask (`brickscan serve`): its configuration, its requests, its answers, its reports."""

import ipaddress
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import models_json_schema

from schemas.registry import PathText, Version

HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")]

CHARACTERS = (2_000, 20_000, 200_000)
"""Most characters of a text of each length class but the last, which has no bound of its own."""

TICKS = (0.075, 0.5, 4.0, 30.0)
"""Seconds after a request when its answer leaves, by its length class; else after twice as long, …, or 32 times."""


def tick_of(size: int) -> float:
    """Return the tick of a request whose texts have so many bytes."""
    return TICKS[sum(size > most for most in CHARACTERS)]


SPREAD = 0.005
"""Seconds that an answer leaves later at most, by a keyed digest of its texts."""


class _DetectorTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BudgetConfig(_DetectorTable):
    """How much is answered in a window of time.

    A new text counts 1, or its seconds of CPU if they are more; one that was answered in the window, or is too short,
    counts its seconds, and 0.1 at least.
    """

    hours: float = Field(default=24, gt=0, le=24 * 366)  # length of a window, at whose end all begins anew
    near_duplicates: int = Field(default=3, ge=1, le=255)  # new texts with one piece of marked text that are answered
    texts: int = Field(default=100, ge=1)  # of a caller without a token
    expert_texts: int = Field(default=100_000, ge=1)  # of an expert, to whom `near_duplicates` does not apply
    most_texts: int = Field(default=200_000, ge=1)  # of all together; beyond, only experts are answered


class ProxyConfig(_DetectorTable):
    """A proxy in front, and which of its headers are believed; from other addresses, none is."""

    addresses: tuple[str, ...] = Field(min_length=1)  # the proxy's own, or networks of it, as they reach the detector
    caller: HeaderName | None = None  # header whose last entry is the caller's address, such as X-Forwarded-For
    expert: HeaderName | None = None  # header with an expert's name, which the proxy sets and takes out of requests

    @model_validator(mode="after")
    def _addresses_are_such(self) -> "ProxyConfig":
        for address in self.addresses:
            ipaddress.ip_network(address)
        return self

    def sends(self, address: str) -> bool:
        """Return whether a request from an address is the proxy's."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any(one in ipaddress.ip_network(network) for network in self.addresses for one in (found, mapped) if one)


class DetectorConfig(_DetectorTable):
    """The detector: which scan's rules it answers by, and what it tells whom."""

    version: Version  # of this file
    scan: PathText = "scan.toml"  # configuration of the scan whose registry, keys, rate and rules are taken
    state: PathText = "detector"  # folder of signing keys, tokens, the budget's table and the log
    name: str | None = Field(default=None, min_length=1, max_length=200)  # address in reports; else where it listens
    provider: str = Field(default="", max_length=200)  # who runs it
    workers: int = Field(default=2, ge=1, le=256)  # processes that score
    factor: float = Field(default=100, ge=1, le=1e12)  # how far p is beyond the rate for `found`, and short of it else
    most_bytes: int = Field(default=1_000_000, ge=1_000, le=16_000_000)  # of a text or a file; less for costly keys
    batch: int = Field(default=100, ge=1, le=1_000)  # texts of one request to /detect/batch
    seconds: float = Field(default=60, gt=0)  # longest wait of a text, then of its work, of which 1/20 is CPU at most
    filter: bool = False  # leave out the n-grams that a scan of today does, where the scan has a filter
    names: Literal["nobody", "experts"] = "nobody"  # who learns for which user a text was marked; each time is logged
    numbers: bool = False  # constants in place of null in `score`, `p_value`, `num_scored_tokens`
    commitments: PathText | None = None  # the published list (`brickscan keys publish`) whose head reports carry
    log_days: int = Field(default=90, ge=1)  # days that the log of metadata is kept
    log_bytes: int = Field(default=2**30, ge=10_000)  # of the log; beyond, its oldest day goes before `log_days`
    budget: BudgetConfig = BudgetConfig()
    proxy: ProxyConfig | None = None


class DetectorResult(StrEnum):
    """What the detector says of a text."""

    FOUND = "found"  # p is the configured factor beyond the false-positive rate, or further
    NOT_FOUND = "not found"  # p is that factor short of it, or further
    CANNOT_TELL = "cannot tell"  # between the two
    TOO_SHORT = "too short"  # too few tokens to be scored


MEANINGS = {
    DetectorResult.FOUND: (
        "The text contains text that carries the mark. The mark does not say who posted the text, nor that all of it "
        "was generated: quotations and copies carry it too."
    ),
    DetectorResult.NOT_FOUND: (
        "None of the marks that were asked for was found. This does not say that a person wrote the text: other models "
        "have other marks or none, and editing, paraphrase or translation takes a mark away."
    ),
    DetectorResult.CANNOT_TELL: (
        "The evidence is neither strong enough for a mark nor weak enough to rule one out. It says nothing for or "
        "against the text."
    ),
    DetectorResult.TOO_SHORT: (
        "The text has too few tokens to be looked at. Ask with more of it: 200 tokens, about 150 words, or more."
    ),
}
"""Fixed words on what a result means and does not mean."""


def _without_surrogates(text: object) -> object:
    """Return a text with U+FFFD for each half of a pair, which JSON can hold and UTF-8 cannot.

    Return other values as they are.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(text, str) else text


RequestText = Annotated[str, BeforeValidator(_without_surrogates)]


class DetectorRequest(BaseModel):
    """A text. Fields that are not known are ignored, as vLLM's example server ignores them."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    text: RequestText


class BatchRequest(BaseModel):
    """Several texts, each of which is answered, and charged, by itself."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    texts: tuple[RequestText, ...] = Field(min_length=1)


class SignedReport(BaseModel):
    """A report as it is downloaded.

    statement: canonical JSON of a `Statement` or a `PageStatement`, the very characters that are signed; signature:
        Ed25519 over their UTF-8 bytes, base64.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: str
    signature: str


class Statement(BaseModel):
    """What a report states of a text, and nothing of a score, a key or a file, which may show another text.

    text_sha256: of the text's UTF-8 bytes as they were received, JSON unescaped, nothing normalised; half of a
    surrogate pair is taken for U+FFFD.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["brickscan detector report 1"] = "brickscan detector report 1"
    detector: str  # the configured name
    signing_key: str  # id of the key that signs
    time: str  # UTC
    text_sha256: str
    result: DetectorResult
    techniques: tuple[str, ...]  # asked for
    technique: str | None  # found
    commitments_head: str | None  # of the published list
    false_positive_rate: float  # of `found`
    audited: str | None  # day of the oldest audit among the keys that were asked; null: a key has none on record
    version: str  # of brickscan


class PageStatement(BaseModel):
    """What a report states of a page that brickscan wrote about a server (`brickscan probe`).

    text_sha256: of the page's JSON, its very bytes; html_sha256: of the page for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["brickscan probe report 1"] = "brickscan probe report 1"
    signing_key: str  # id of the key that signs
    time: str  # UTC
    text_sha256: str
    html_sha256: str
    version: str  # of brickscan


class SigningKey(BaseModel):
    """A key that signs, or signed, reports, as it is published."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    public_key: str  # PEM
    signs_from: AwareDatetime
    signs_until: AwareDatetime | None = None  # null: it signs now
    revoked_at: AwareDatetime | None = None  # then none of its reports is good


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
    """An answer to one text. `p_class`, `parts`, `user` are for experts alone."""

    result: DetectorResult
    is_watermarked: bool  # true for `found` alone
    technique: str | None  # public name of the technique whose mark was found
    meaning: str
    score: float | None = None
    p_value: float | None = None
    num_scored_tokens: int | None = None
    report: SignedReport
    text: str | None = None  # that was read out of a file, and is answered, where the file is not that text itself
    p_class: int | None = None  # k where 10^(-6(k+1)) < p ≤ 10^(-6k)
    parts: tuple[Part, ...] | None = None
    user: str | None = None


class DetectorError(BaseModel):
    """Why there is no answer. It repeats nothing of the text."""

    detail: str
    retry_after: int | None = None  # seconds, where the budget is used up


class BatchAnswer(BaseModel):
    """Answers in the order of the texts; where one has none, the reason."""

    answers: tuple[DetectorAnswer | DetectorError, ...]


def openapi_components(*models: type[BaseModel]) -> dict[str, Any]:
    """Return JSON Schemas of models under `#/components/schemas/`."""
    _, found = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    return dict(found["$defs"])

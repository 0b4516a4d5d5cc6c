"""Configurations of jobs: one TOML file, read into frozen models. An unknown or impossible value is refused by name."""

import re
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from schemas.registry import KeyId, PathText, Version
from schemas.words import Dedup

Windows = Annotated[tuple[Annotated[int, Field(ge=0, le=16)], ...], Field(min_length=1)]

_DAYS = re.compile(r"[1-9][0-9]{0,4}d")


class _ConfigTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InputConfig(_ConfigTable):
    """The documents, and the columns that hold their fields. Only the text is required."""

    paths: tuple[PathText, ...] = Field(min_length=1)  # Parquet files or folders; {date} is filled in by --date
    text: str = "text"  # column of the texts
    id: str | None = None  # column of the documents' own ids
    account: str | None = None  # column of the account that posted a document
    time: str | None = None  # column of the time when a document was posted
    time_zone: str = "UTC"  # IANA name, for dates and for times that have no zone
    version: int | None = Field(default=None, ge=0)  # version of the table in `paths`; default: the newest
    timestamp: datetime | None = None  # read the table as it was at this time
    where: PathText | None = None  # SQL on columns of a table's partitions; {date} is filled in by --date

    @model_validator(mode="after")
    def _one_version(self) -> "InputConfig":
        if self.version is not None and self.timestamp is not None:
            raise ValueError("version and timestamp both choose a state of the table; give only one of them")
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError("timestamp has no zone; write it as 2026-08-31T04:00:00Z")
        return self

    @field_validator("time_zone")
    @classmethod
    def _zone_is_known(cls, name: str) -> str:
        import polars as pl  # polars brings its own zones, so the machine's do not matter

        wrong = ValueError("not a time zone of the IANA database; allowed: UTC, Europe/Berlin, America/New_York, …")
        if not name[:1].isalpha():  # +02:00 cannot change between summer and winter
            raise wrong
        try:
            pl.Series([], dtype=pl.Datetime).dt.replace_time_zone(name)
        except pl.exceptions.ComputeError:
            raise wrong from None
        return name


def _check_gpus(field: str, gpus: float) -> None:
    if gpus > 1 and not gpus.is_integer():
        raise ValueError(f"{field} = {gpus}: Ray assigns a share of one GPU, or whole GPUs")


class ClusterConfig(_ConfigTable):
    """Where the work runs: on an existing Ray cluster, or without an address on one that this process starts."""

    address: str | None = None  # address of a Ray cluster; default: this process starts its own
    workers: int | None = Field(default=None, ge=1)  # default: one per CPU of the cluster
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0  # a share of a GPU, or whole ones; 0: CPUs score everything
    require_gpus: bool = False  # refuse to run without a GPU; otherwise the CPU scores, with a warning

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "ClusterConfig":
        _check_gpus("gpus_per_worker", self.gpus_per_worker)
        if self.require_gpus and not self.gpus_per_worker:
            raise ValueError("require_gpus needs gpus_per_worker, for example 0.25")
        return self


class ScanClusterConfig(ClusterConfig):
    """Further limits of a scan's workers. A document that exceeds them is tried again, and ends in quarantine."""

    # default: 4096, or its share of a smaller machine. On a new machine, where it compiles kernels, a worker has taken
    # 580 MiB before its first text with a vocabulary of 49k tokens, and 730 MiB with one of 131k
    worker_memory_mb: int | None = Field(default=None, ge=1024)
    stall_seconds: float = Field(default=300, gt=0)  # seconds without progress; longer for long texts and many messages


ReaderDtype = Literal["float32", "bfloat16"]
"""torch's names of the precisions in which a model may read texts."""


class LevelsConfig(_ConfigTable):
    """A second pass in which a language model reads texts. Each token then counts by how much it surprised the model.

    The model must not have been trained on text that is marked under the keys under test, because p-values hold only
    then.
    """

    model: PathText  # folder of a causal language model, as save_pretrained writes it, with its tokenizer.json
    dtype: ReaderDtype = "float32"  # precision of the model; bfloat16 is slow on CPUs without AVX-512 BF16
    # for keys of one message: the model reads only texts whose p, without the model, is at most this. For keys of
    # several messages it reads all texts that are long enough
    cut: Annotated[float, Field(gt=0, le=1)] = 0.05
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # largest share of texts to read, as a keyed sample
    gpus: Annotated[float, Field(ge=0)] = 0.0  # GPUs of each worker; 0, or if there are too few: the CPU

    @model_validator(mode="after")
    def _gpus_of_readers(self) -> "LevelsConfig":
        _check_gpus("gpus", self.gpus)
        return self


class ScanAuditConfig(_ConfigTable):
    """The audit in every scan: the shares of documents that are also scored under decoy keys, and the alarm."""

    # share of the documents that are scored under decoy keys of one message, of the accounts, and of the texts that a
    # model reads; at least 50,000 documents, if there are so many; 0: none
    share: Annotated[float, Field(ge=0, le=1)] = 0.02
    # share of the documents that are scored under decoy keys of several messages, with all messages; at least 500
    # documents, if there are so many; 0: none
    all_messages_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    # share of the documents on which a whole decision is made under decoy keys; at least 1,000 documents, if there are
    # so many; 0: none, and no accounts
    decisions_share: Annotated[float, Field(ge=0, le=1)] = 0.005
    family_error: Annotated[float, Field(gt=0, lt=0.5)] = 0.001  # probability of a false alarm in a scan
    require_admission: bool = False  # refuse keys that never passed an audit (brickscan keys admit)
    canaries: int | None = Field(default=None, ge=1)  # canaries' texts in each night's input; default: those that come


COST_OF_LOOKS: Mapping[str, float] = {"normalised": 1.6, "windows": 1.3, "segments": 1.3}
"""Costs of looks, in scans for 100,000 users without a look, under the format for which they cost more.

See docs/measurements/cost-of-looks.json.
"""


DEFAULT_LOOKS = """\
variants = { normalised = true }  # a second look without hidden characters, look-alikes and upper case
spans = { windows = true, segments = true }  # parts of texts, too
"""
"""Looks at a text if no scan.toml names any. `brickscan init` and the demo write them into theirs."""


class VariantsConfig(_ConfigTable):
    """Further forms of each document that are scored. Each has a weight, for which all p-values are corrected."""

    normalised: bool = False  # no hidden characters, and plain blanks, letters, styles and cases


class SpansConfig(_ConfigTable):
    """Parts of a document that are tested besides the whole. They have their own share of its error."""

    windows: bool = False  # windows of several sizes, each a quarter of its length after the last
    segments: bool = False  # paragraphs and quotations (`>` lines, HTML blockquotes), each as a whole

    @property
    def tested(self) -> bool:
        """Return whether any parts are tested."""
        return self.windows or self.segments


class AccountsConfig(_ConfigTable):
    """The posts of each account are also tested together, with their own share of the error. Needs input.account.

    The first 16 KiB of each post are kept in the table account_posts until the window is over.
    """

    nights: Literal[1, 7, 30]  # nights of a window, after which each account begins anew; 1: this scan's input only


CommonTexts = Annotated[int, Field(ge=4, le=128)]
"""Number of distinct texts that make an n-gram common."""


class FilterConfig(_ConfigTable):
    """N-grams that many texts of earlier nights contain are not scored. Needs {date} in all input paths."""

    texts: CommonTexts = 16  # about how many distinct texts of the sample make an n-gram common
    nights: int = Field(default=7, ge=1, le=60)  # number of dates before --date whose texts are learnt


Weight = Annotated[float, Field(gt=0, le=1)]


def exact_fraction(weight: float) -> Fraction:
    """Return the exact fraction of a weight as written: 0.9 and 0.1 sum to 1, and 1 over 0.8 · 0.1 is 12.5."""
    return Fraction(str(weight))


class WeightsConfig(_ConfigTable):
    """Shares of the false-positive rate, for looks and for variants of texts. Default: equal shares of those turned on.

    A look or variant that is turned off may also have a share, which is kept for later. If the other shares stay the
    same, it can then be turned on for texts that were already scanned, without `looks_added`. If a text does not have a
    look, the look's share goes to the whole text as written.
    """

    document: Weight | None = None  # share of whole texts
    span: Weight | None = None  # share of their parts
    account: Weight | None = None  # share of all posts of an account together
    levels: Weight | None = None  # share of texts whose tokens are weighed by a model, even if it did not read them
    as_written: Weight | None = None  # share of texts as written
    normalised: Weight | None = None  # share of normalised texts

    @model_validator(mode="after")
    def _sums_are_one_at_most(self) -> "WeightsConfig":
        for names in (("document", "span", "account", "levels"), ("as_written", "normalised")):
            stated = [weight for name in names if (weight := getattr(self, name)) is not None]
            if sum(map(exact_fraction, stated)) > 1:
                raise ValueError(
                    f"{' and '.join(names)} sum to more than 1: texts would be flagged falsely more often than "
                    "false_positive_rate says; give shares that sum to 1 at most"
                )
        return self


class EvidenceConfig(_ConfigTable):
    """Data that is kept so that a flag can be explained and replayed later."""

    keep_text: bool = False  # keep the texts of flags, in the table flag_texts, from the next scan on
    # your record of the owners of accounts: a .csv or .parquet file with the columns account_id and user_id. Pages
    # recommend `confirmed` only if this record agrees, because an account can be called like another user
    account_owners: str | None = None


class ClaimsConfig(_ConfigTable):
    """Claims that anybody can check without the key, by `brickscan claim`. Each shows a part of the key for good."""

    # who may ask for a claim, in your own words, such as "the accused and their lawyer, in an appeal"; shown on pages
    asked_by: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    most_a_month: int = Field(default=10, ge=0)  # claims in a calendar month (UTC) that show a part of a key


class ScanConfig(_ConfigTable):
    """One kind of scan. Relative paths start at the folder of the configuration file."""

    version: Version  # version of this file and of the files it names
    registry: PathText  # folder of keys.toml and the users
    results: PathText  # folder of the tables; made by the first scan
    false_positive_rate: Annotated[float, Field(gt=0, lt=1)]  # share of unmarked texts that may be flagged
    # rate at which a stranger of the group may be named, for each user whose marked text a document contains;
    # default: the rate above
    misnaming_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    keys: tuple[KeyId, ...] | None = None  # default: every key of the registry
    dedup: Dedup = "ngram"  # what counts once in a text, because repeats bring no new draw: an n-gram, or its context
    min_scored: int = Field(default=16, ge=1, le=2**31)  # texts with fewer scored positions are too short
    allow_empty: bool = False  # exit with 0, not 4, if a scan finds no document at all
    # largest share of documents in quarantine, including those that the footers of lost files promise; else exit code 4
    max_quarantined_share: Annotated[float, Field(ge=0, le=1)] | None = None
    max_lost_files: int = Field(default=0, ge=0)  # largest number of whole files that cannot be read; else exit code 4
    retain: str | None = None  # "400d": drop nights that began longer ago, after each scan; default: keep all
    retain_flags: bool = False  # keep the rows of dropped nights in `flags`
    input: InputConfig
    # scan texts again with other shares of looks than before. This costs: unmarked texts are flagged more often, by the
    # factor in the summary
    looks_added: bool = False
    variants: VariantsConfig = VariantsConfig()
    spans: SpansConfig = SpansConfig()
    accounts: AccountsConfig | None = None
    filter: FilterConfig | None = None
    weights: WeightsConfig = WeightsConfig()
    levels: LevelsConfig | None = None
    evidence: EvidenceConfig = EvidenceConfig()
    claims: ClaimsConfig = ClaimsConfig()
    audit: ScanAuditConfig = ScanAuditConfig()
    cluster: ScanClusterConfig = ScanClusterConfig()

    @property
    def costs(self) -> dict[str, float]:
        """Return the COST_OF_LOOKS of the looks that are on."""
        on = self.variants.model_dump() | self.spans.model_dump()
        return {look: times for look, times in COST_OF_LOOKS.items() if on[look]}

    @model_validator(mode="after")
    def _keys_are_distinct(self) -> "ScanConfig":
        if self.keys is not None and (not self.keys or len(set(self.keys)) != len(self.keys)):
            raise ValueError("keys must name each key once, at least one; leave it out to test every key")
        return self

    @model_validator(mode="after")
    def _all_looks_have_weights(self) -> "ScanConfig":
        stated = self.weights
        other = {"as_written": stated.normalised, "normalised": stated.as_written}
        for name in ("as_written", *["normalised"] * self.variants.normalised):
            if getattr(stated, name) is None and other[name] is not None:
                raise ValueError(f"weights.{name} is missing: give both variants a weight, or neither")
        on = {"span": self.spans.tested, "account": self.accounts, "levels": self.levels}
        looks = ["document", *(name for name, tested in on.items() if tested)]
        missing = [name for name in looks if getattr(stated, name) is None]
        if missing and len(missing) < len(looks):
            raise ValueError(f"weights.{missing[0]} is missing: give each look that is tested a weight, or none")
        return self

    @model_validator(mode="after")
    def _accounts_are_identified(self) -> "ScanConfig":
        if self.accounts is not None and self.input.account is None:
            raise ValueError("accounts needs input.account, the column of the accounts that posted documents")
        return self

    @model_validator(mode="after")
    def _nights_are_identified(self) -> "ScanConfig":
        if self.filter is not None and not all("{date}" in path for path in self.input.paths):
            raise ValueError(
                "filter needs {date} in each of input.paths: the date separates texts of earlier nights from tonight's"
            )
        return self

    @field_validator("retain")
    @classmethod
    def _retain_is_days(cls, text: str | None) -> str | None:
        if text is not None and not _DAYS.fullmatch(text):
            raise ValueError('a number of days from "1d" to "99999d" is needed, such as "400d"')
        return text

    @model_validator(mode="after")
    def _retained_flags_need_retain(self) -> "ScanConfig":
        if self.retain_flags and self.retain is None:
            raise ValueError('retain_flags needs retain, for example "400d"; without it no night is dropped')
        return self

    @property
    def retain_days(self) -> int | None:
        """Return the number of days for which nights are kept. None: for ever."""
        return None if self.retain is None else int(self.retain.removesuffix("d"))

"""Define audits: the configuration of `brickscan calibrate`, and the Arrow schemas of counts and results.

The configuration is one TOML file. It is read into frozen models, as in schemas.config.
"""

from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from schemas.config import ClusterConfig, CommonTexts, InputConfig, Windows, _ConfigTable
from schemas.registry import MAX_MESSAGES, MOST_NUMBERS, Gamma, KeyId, PathText, TokenizerFile
from schemas.tables import TIME
from schemas.words import Dedup


class LawConfig(_ConfigTable):
    """The law under fresh keys for every document: number of null p-values of each format, and its cases."""

    tests: int = Field(default=4_000_000_000, ge=1)  # null p-values of each format, spread evenly over its cases
    version: Literal[1, 3] = 3  # version of the marks: 1 is the paper's own
    messages: int = Field(default=16_384, ge=1, le=MAX_MESSAGES)  # null p-values a document
    tokens: int = Field(default=256, ge=17)  # tokens of a document that are scored
    windows: Windows = (0, 1, 2, 4, 8)  # number of previous tokens that decide a token's draw
    gammas: tuple[Gamma, ...] = ("1/4", "1/2", "3/8")  # shares of green tokens
    dedups: Annotated[tuple[Dedup, ...], Field(min_length=1)] = ("ngram", "context")  # repeats that count once

    @model_validator(mode="after")
    def _something_can_be_tested(self) -> "LawConfig":
        if set(self.windows) == {0} and set(self.dedups) == {"context"}:
            raise ValueError("window 0 with dedup 'context' scores one position of a text; add another window or dedup")
        if self.version == 3 and self.messages > MOST_NUMBERS:
            raise ValueError(
                f"messages = {self.messages}: under version 3 at most {MOST_NUMBERS} are scored one by one"
            )
        return self


class FigureConfig(_ConfigTable):
    """The paper's figure: a few master keys over disjoint pieces of documents."""

    pieces: int = Field(default=100_000, ge=1)  # pieces of documents, without overlaps
    tokens: int = Field(default=256, ge=17)  # tokens of a piece
    keys: int = Field(default=10, ge=2)  # number of new keys
    version: Literal[1, 3] = 3  # version of the marks: 1 is the paper's own
    windows: Windows = (0, 1, 2, 3, 4, 6, 8)  # number of previous tokens that decide a token's draw
    gamma: Gamma = "1/4"  # share of green tokens


class AuditFilterConfig(_ConfigTable):
    """N-grams that many other texts of the corpus contain. They are left out of scoring, as by a scan's filter."""

    texts: CommonTexts = 16  # as in the filter of the scans, or more
    learnt: int = Field(default=20_000, ge=4)  # most texts of a half that the other learns from; a scan needs as many
    min_scored: int = Field(default=16, ge=1, le=2**31)  # as in the scans: texts with fewer n-grams are not learnt


class RegistryAuditConfig(_ConfigTable):
    """The keys of a registry, tested on this corpus."""

    registry: PathText  # folder of keys.toml
    keys: tuple[KeyId, ...] | None = None  # default: every key
    dedup: Dedup = "ngram"  # as in the scans
    messages: int = Field(default=64, ge=2)  # messages of each key, scored one by one
    tokens: int = Field(default=1024, ge=17)  # tokens of a document that are scored
    filter: AuditFilterConfig | None = None  # for scans with a filter; default: all positions are scored


class CalibrationConfig(_ConfigTable):
    """An audit over a corpus known to be unmarked. Relative paths start at the folder of the configuration file."""

    results: PathText  # folder of the tables
    seed: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[ -~]+$")] = "1"  # another seed gives other keys
    family_error: Annotated[float, Field(gt=0, lt=0.5)] = 0.01  # probability of an alarm if all laws hold
    tokenizer: TokenizerFile
    input: InputConfig
    law: LawConfig | None = None
    figure: FigureConfig | None = None
    keys: RegistryAuditConfig | None = None
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _requests_something(self) -> "CalibrationConfig":
        if not (self.law or self.figure or self.keys):
            raise ValueError("nothing to do: add a section [law], [figure] or [keys]; only [keys] needs fields")
        return self


AUDIT_COUNTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # one of the kinds below, or of a control (scanner.controls)
        pa.field("method", pa.string(), nullable=False),
        pa.field("dedup", pa.string(), nullable=False),
        pa.field("messages", pa.int64(), nullable=False),  # messages that each p-value is corrected for
        # of p; in rows of kind decoy_keys, the chance that two decoys draw alike
        pa.field("threshold", pa.float64(), nullable=False),
        # distinct texts of the piece of a shard; of decisions: groups; of decoy_keys: pairs of decoys
        pa.field("texts", pa.int64(), nullable=False),
        pa.field("tests", pa.int64(), nullable=False),  # one for each text or pair; for decoy_all, one for each score
        # p at or below the threshold; of decoy_keys: pairs that draw alike
        pa.field("hits", pa.int64(), nullable=False),
        pa.field("expected", pa.float64(), nullable=False),  # expected hits, if the law holds
        pa.field("hits_squared", pa.float64(), nullable=False),  # this and the next two: summed over texts
        pa.field("hits_times_expected", pa.float64(), nullable=False),
        pa.field("expected_squared", pa.float64(), nullable=False),
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("label", pa.string(), nullable=False),  # the format's label, or `all` if several are counted together
        # from here only in rows of kinds RESERVED_TEXT and RESERVED_ACCOUNT; the key also in SCORED_ACCOUNTS
        pa.field("key_id", pa.string()),
        pa.field("message", pa.int64()),
        # a keyed digest, not `text_id`; in rows of kind decoy_keys, the least digest of a decoy's draws
        pa.field("text", pa.binary()),
        pa.field("account_id", pa.string()),  # null also if p is above 1e-3
        pa.field("stratum", pa.string()),  # part of the traffic, such as a length or host; null: all of it
    ]
)
"""Counts of the controls of each shard. Rows enter with the shard, exactly once, and any group of them can be added up.

Each text whose best message is a reserved one at p ≤ 0.1 has another row, of kind RESERVED_TEXT. Its threshold is the
least one that its corrected p does not exceed. Verdicts do not show the message.
"""

RESERVED_TEXT = "reserved_text"

RESERVED_ACCOUNT, SCORED_ACCOUNTS = "reserved_account", "scored_accounts"
"""Kinds of rows on accounts: accounts whose best message is reserved at p ≤ 0.1, and all accounts that a key scored."""

AUDITS = pa.schema(
    [
        pa.field("audit_id", pa.string(), nullable=False),
        pa.field("at", TIME, nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("config_sha256", pa.string(), nullable=False),
        pa.field("corpus", pa.string(), nullable=False),  # paths
        pa.field("seed", pa.string(), nullable=False),  # seed of the drawn keys, which mark nothing
        pa.field("kind", pa.string(), nullable=False),  # of a control of a scan (scanner.controls), or of AUDIT_KINDS
        pa.field("measure", pa.string(), nullable=False),  # rate | uniformity
        pa.field("test", pa.string(), nullable=False),  # exact | z
        pa.field("method", pa.string(), nullable=False),
        pa.field("key_id", pa.string()),  # null: drawn keys
        pa.field("commitment", pa.string()),  # commitment of that key
        pa.field("dedup", pa.string()),  # null: all cases of a format together
        pa.field("messages", pa.int64(), nullable=False),  # messages that each p-value is corrected for
        pa.field("threshold", pa.float64()),  # of p; null for uniformity; of decoy_keys: chance that two draw alike
        pa.field("tests", pa.int64(), nullable=False),
        pa.field(
            "cluster", pa.string(), nullable=False
        ),  # taken for independent: document, key, message; of keys in a corpus: piece, or account and piece
        # of a corpus: its worth in clusters of equal size; 1 if all texts are fillings of one template
        pa.field("clusters", pa.int64(), nullable=False),
        pa.field("hits", pa.int64()),  # p at or below the threshold
        pa.field("expected", pa.float64()),  # expected hits: the sum of the largest attainable p ≤ threshold
        pa.field("low", pa.float64()),  # limits of the mean of hits, simultaneous over the family
        pa.field("high", pa.float64()),
        pa.field("design_effect", pa.float64()),  # variance between clusters over the binomial one, at least 1
        pa.field("bound", pa.float64()),  # times the expectation; if the true rate is above it, p-values are too small
        pa.field("p_value", pa.float64(), nullable=False),  # of so many hits, or so small p-values; 0 below 1e-308
        pa.field("family", pa.int64(), nullable=False),  # rows that are judged together
        pa.field("family_error", pa.float64(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),  # an AuditVerdict
        pa.field("label", pa.string()),  # the format's label; null: all of a method together
        pa.field("stratum", pa.string()),  # part of the traffic, such as a length or host; null: all of it
        # digest of the filter by which a calibration left n-grams out; null, as the next two: it scored all positions
        pa.field("filter_sha256", pa.string()),
        pa.field("filter_texts", pa.int64()),  # distinct texts that made an n-gram common
        pa.field("filter_learnt", pa.int64()),  # number of texts that the filter was learnt from
    ]
)
"""Rows of audits of the false-positive rate: one per threshold, or per test of uniformity."""

AUDIT_KINDS = ("law", "law_total", "law_best_total", "figure", "key", "key_messages")
"""Kinds of the rows of a calibration. Each has scored texts → hits:

- law: texts under keys drawn for every document, one case → p at a threshold
- law_total: the same for all cases of a method → p at a threshold
- law_best_total: the same for the best of all messages → p at a threshold
- figure: the paper's: texts of one corpus under a few keys → p at a threshold
- key: texts under a key of the registry, the best of its messages → p at a threshold
- key_messages: the same for its messages one by one → p at a threshold
"""

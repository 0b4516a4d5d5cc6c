"""Define the paper's experiments: their configuration, and the Arrow schemas of their texts and figures."""

from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from schemas.config import ClusterConfig, InputConfig, ReaderDtype, Windows, _ConfigTable
from schemas.registry import MAX_MESSAGES, Gamma, PathText

Attack = Annotated[
    str,
    Field(
        pattern=r"^((substitute|delete|insert|paste|homoglyphs|zero-width|swap-letters|markdown|excerpt|truncate)"
        r":(0\.[0-9]{0,3}[1-9]|1\.0)|lower|upper|retokenise|synonyms|strip-unicode|quote|c2pa|rearrange)$"
    ),
]
"""Attack on a marked text before detection, such as `substitute:0.3`; see scanner.research.attacks."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, lt=1)]

MESSAGES = {version: tuple(10**k for k in range(1, last + 1)) for version, last in ((1, 6), (3, 9))}
"""Numbers of messages of Table 3, by version of the marks. Version 1 has fewer, because it scores each message."""


class RobustnessConfig(_ConfigTable):
    """The paper's Table 2: how similar and how detectable marked texts are, by method, window and strength."""

    prompts: int = Field(default=48, ge=2)  # prompts that texts are written for
    keys: int = Field(default=8, ge=2)  # keys, drawn from the seed
    keys_a_prompt: int = Field(default=2, ge=1)  # of these keys, in turn; the paper: every one
    windows: Windows = (0, 1, 4)  # number of previous tokens that decide a token's draw
    temperatures: tuple[Positive, ...] = (0.8, 0.9, 1.0, 1.1)  # strengths of Gumbel
    deltas: tuple[Positive, ...] = (1.0, 2.0, 3.0, 4.0)  # strengths of the green list
    greenlist_temperature: Positive = 0.8  # sampling temperature under the green list
    gamma: Gamma = "1/4"  # share of green tokens
    false_positive_rate: Rate = 1e-5  # rate at which power is stated
    attacks: tuple[Attack, ...] | None = None  # default: all of the report, paste only with `human`
    human: InputConfig | None = None  # text written by people, which marked text is pasted into
    sentence_model: PathText | None = None  # folder of a sentence-embedding model; default: no similarities
    other_tokenizer: PathText | None = None  # for retokenise; default: the sentence model's

    @model_validator(mode="after")
    def _fits(self) -> "RobustnessConfig":
        if self.keys_a_prompt > self.keys:
            raise ValueError(f"keys_a_prompt = {self.keys_a_prompt} is more than keys = {self.keys}; lower it")
        if not self.temperatures and not self.deltas:
            raise ValueError("temperatures and deltas are both empty; name at least one strength of a method")
        wanted = self.attacks or ()
        if self.human is None and any(attack.startswith("paste") for attack in wanted):
            raise ValueError(
                "attacks: paste needs text written by people; add [robustness.human] with paths, or leave it out"
            )
        if self.sentence_model is None and self.other_tokenizer is None and "retokenise" in wanted:
            raise ValueError("attacks: retokenise needs other_tokenizer or sentence_model; name one, or leave it out")
        return self


class IdentificationConfig(_ConfigTable):
    """The paper's Table 3: how often the user whom a text was marked for is found among many."""

    users: int = Field(default=100, ge=2)  # users whose texts are searched
    texts: int = Field(default=10, ge=1)  # texts of each user
    window: int = Field(default=4, ge=0, le=16)  # number of previous tokens that decide a token's draw
    gamma: Gamma = "1/4"  # share of green tokens
    delta: Positive = 3.0  # strength of the green list
    greenlist_temperature: Positive = 0.8  # sampling temperature under the green list
    gumbel_temperature: Positive = 1.0  # strength of Gumbel: the sampling temperature
    # M, users that a text is searched among: its own and others without texts; default: MESSAGES of the version
    messages: Annotated[tuple[Annotated[int, Field(ge=2, le=MAX_MESSAGES)], ...], Field(min_length=1)] | None = None
    false_positive_rates: Annotated[tuple[Rate, ...], Field(min_length=1)] = (1e-3, 1e-6)  # rates of Table 3's rows


class UtilityConfig(_ConfigTable):
    """The paper's Table 1: how often free-form answers are right, with and without the mark."""

    tasks: Annotated[tuple[PathText, ...], Field(min_length=1)]  # task files of lm_eval; data beside them, local
    documents: int | None = Field(default=100, ge=1)  # the first so many of each task; --paper-size takes all
    windows: Windows = (1, 4)  # number of previous tokens that decide a token's draw
    gamma: Gamma = "1/4"  # share of green tokens
    delta: Positive = 1.0  # strength of the green list, with greedy decoding
    gumbel_temperature: Positive = 1.0  # strength of Gumbel: the sampling temperature


class EvaluationConfig(_ConfigTable):
    """The paper's experiments with a local model. Relative paths start at the folder of the configuration file."""

    results: PathText  # a folder; the texts are kept in it
    model: PathText  # a folder as `save_pretrained` writes it, with tokenizer.json
    prompts: PathText  # one a line, or Parquet with a column `prompt`
    version: Literal[1, 3] = 3  # version of the marks: 1 is the paper's own
    seed: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[ -~]+$")] = "1"  # of keys, sampling, attacks
    batch: int = Field(default=32, ge=1)  # texts written together; hundreds on a GPU
    dtype: ReaderDtype = "float32"  # precision of the model; bfloat16 is slow on CPUs without AVX-512 BF16
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95  # share of top-p sampling; 1: all tokens
    max_new_tokens: int = Field(default=256, ge=1)  # most tokens of a text
    min_scored: int = Field(default=16, ge=1, le=2**31)  # as in a scan: with fewer, a text is too short to be flagged
    robustness: RobustnessConfig | None = None
    identification: IdentificationConfig | None = None
    utility: UtilityConfig | None = None
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _requests_something(self) -> "EvaluationConfig":
        if self.robustness is None and self.identification is None and self.utility is None:
            raise ValueError("nothing to do: add a section [robustness] or [identification], or [utility] with tasks")
        return self


TEXTS = pa.schema(
    [
        pa.field("unit", pa.string(), nullable=False),  # digest of everything that decides the batch of the text
        pa.field("row", pa.int64(), nullable=False),  # row of the batch
        pa.field("model_sha256", pa.string(), nullable=False),  # digest of the model's files and its precision
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("method", pa.string()),  # null, as the next five: not marked
        pa.field("window", pa.int64()),
        pa.field("gamma", pa.string()),  # null for Gumbel, as delta
        pa.field("delta", pa.float64()),
        pa.field("commitment", pa.string()),  # commitment of the key
        pa.field("message", pa.int64()),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("top_p", pa.float64(), nullable=False),
        pa.field("max_new_tokens", pa.int64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # that the model wrote; its text may have others
    ]
)
"""Texts of `brickscan evaluate`, as they are kept: one file per batch."""

FIGURES = pa.schema(
    [
        pa.field("experiment", pa.string(), nullable=False),  # robustness | identification | utility
        pa.field("task", pa.string()),  # for utility only
        pa.field("method", pa.string()),  # null: unmarked text
        pa.field("window", pa.int64()),
        pa.field("gamma", pa.string()),
        pa.field("delta", pa.float64()),
        pa.field("temperature", pa.float64(), nullable=False),  # 0: greedy
        pa.field("measure", pa.string(), nullable=False),  # see MEASURES
        pa.field("attack", pa.string()),  # before detection; null: none
        pa.field("false_positive_rate", pa.float64()),  # rate at which texts are flagged; null: not about flags
        pa.field("messages", pa.int64()),  # messages that each text was searched for
        pa.field("least_scored", pa.int64()),  # fewest scored tokens of the texts that are counted; null: all texts
        pa.field("most_scored", pa.int64()),
        pa.field("n", pa.int64(), nullable=False),  # texts
        pa.field("hits", pa.int64()),  # null: a mean
        pa.field("clusters", pa.string(), nullable=False),  # treated as independent, such as `48 prompts, 8 keys`
        pa.field("value", pa.float64()),  # a share or a mean; null, as the limits, if n is 0
        pa.field("low", pa.float64()),  # limits of the 95 % interval
        pa.field("high", pa.float64()),
        pa.field("p_value", pa.float64()),  # for utility, paired, if the mark changes nothing; null: no mark
        pa.field("label", pa.string()),  # the format's label; null: unmarked text
    ]
)
"""Figures of the experiments: one figure a row."""

ANSWERS = pa.schema(
    [
        pa.field("exam", pa.string(), nullable=False),  # a digest of everything that decides the answers
        pa.field("task", pa.string(), nullable=False),
        pa.field("document", pa.int64(), nullable=False),  # its number in the task
        pa.field("answer", pa.string(), nullable=False),  # as lm_eval's filters leave it
        pa.field("correct", pa.bool_(), nullable=False),
    ]
)
"""Answers of `brickscan evaluate`, as they are kept: one file per exam."""

MEASURES = ("similarity", "flagged", "scored", "tokens", "found", "wrong", "ambiguous", "correct")
"""Measures of the experiments.

Robustness:

- similarity: cosine of sentence embeddings with unmarked text of the same prompt
- flagged: share of flagged texts
- scored: mean number of scored tokens
- tokens: mean number of tokens that the model wrote

Identification:

- found: share of texts whose user is named
- wrong: share of texts for which somebody else is named
- ambiguous: share of texts for which several messages pass, so that nobody is named

Utility:

- correct: share of right answers
"""

"""Arrow schemas of the paper's experiments: texts, answers and figures."""

import pyarrow as pa

TEXTS = pa.schema(
    [
        pa.field("unit", pa.string(), nullable=False),  # digest of everything that decides the batch it was written in
        pa.field("row", pa.int64(), nullable=False),  # row of the batch
        pa.field("model_sha256", pa.string(), nullable=False),  # digest of the files of the model's folder
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
        pa.field("tokens", pa.int64(), nullable=False),  # that the model wrote; tokenising the text may give others
    ]
)
"""Texts of `brickscan evaluate`, as they are kept: one file a batch."""

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
        pa.field("clusters", pa.string(), nullable=False),  # taken for independent, such as `48 prompts, 8 keys`
        pa.field("value", pa.float64()),  # a share or a mean; null, as the limits, where n is 0
        pa.field("low", pa.float64()),  # limits of the 95 % interval
        pa.field("high", pa.float64()),
        pa.field("p_value", pa.float64()),  # for utility, paired: that the mark changes nothing; null: no mark
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
"""Answers of `brickscan evaluate`, as they are kept: one file an exam."""

MEASURES = ("similarity", "flagged", "scored", "tokens", "found", "wrong", "ambiguous", "correct")
"""Robustness: cosine of sentence embeddings with unmarked text of the same prompt; share flagged; mean scored tokens,
mean tokens that the model wrote. Identification: shares of texts whose user is named, for which somebody else is, for
which more than one message passes, so that nobody is. Utility: share of answers that are right."""

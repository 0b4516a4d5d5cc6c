"""Arrow schemas of what a filter of common n-grams is learnt from, and of the filters themselves."""

import pyarrow as pa

from schemas.tables import TIME

FILTER_SKETCHES = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),  # digest of the shards that a sketch was learnt from
        pa.field("night", pa.string(), nullable=False),  # date of the input: --date
        pa.field("tokenizer_sha256", pa.string(), nullable=False),
        pa.field("reach", pa.int64(), nullable=False),  # tokens of an n-gram before its last
        pa.field("hashed_under", pa.string(), nullable=False),  # digest of the key under which n-grams are hashed
        pa.field("texts", pa.int64(), nullable=False),  # texts that were learnt
        pa.field("ngrams", pa.int64(), nullable=False),  # n-grams of these
        pa.field("part", pa.int64(), nullable=False),  # number of this part of the cells
        pa.field("cells", pa.large_binary(), nullable=False),  # 64 bits each; a text sets one of them
        pa.field("learnt_at", TIME, nullable=False),
    ]
)
"""Sketches of the n-grams of a night, where `[filter]` asks for them, for as many nights as filters are learnt from."""

FILTERS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),  # the first scan of the night
        pa.field("night", pa.string(), nullable=False),  # date of the input: --date
        pa.field("filter_sha256", pa.string(), nullable=False),  # of the night's filter, as in SCANS
        pa.field("tokenizer_sha256", pa.string()),  # this and the next five: null where nothing was learnt before
        pa.field("reach", pa.int64()),  # tokens of an n-gram before its last
        pa.field("hashed_under", pa.string()),  # digest of the key under which n-grams are hashed
        pa.field("learnt_texts", pa.int64()),  # texts that it was learnt from
        pa.field("common_share", pa.float64()),  # share of the cells that are common
        pa.field("common", pa.large_binary()),  # a bit a cell, row by row
        pa.field("texts", pa.int64(), nullable=False),  # `texts` of [filter]
        pa.field("nights", pa.int64(), nullable=False),  # `nights` of [filter]
        pa.field("made_at", TIME, nullable=False),
    ]
)
"""Filters of nights, where `[filter]` asks for them: fixed by the first scan of a night, for ever."""

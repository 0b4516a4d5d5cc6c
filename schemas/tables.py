"""The Arrow schema of every table. Delta has no unsigned integers, so ids that are hashes are binary or hex text."""

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")

USERS = pa.schema(
    [
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("user_id", pa.string()),  # null once the name was erased
        pa.field("event", pa.string(), nullable=False),  # allocated | removed
        pa.field("at", _TIME, nullable=False),
    ]
)
"""The users and their messages: append-only events, one `allocated` and at most one `removed` per (key_id, message)."""

DOCUMENTS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_binary()),  # as it was stored: may be null, may be invalid UTF-8
        pa.field("account_id", pa.string()),
        pa.field("created_at", _TIME),
    ]
)
"""What is scanned, as it comes from a file: nothing in it is trusted."""

VERDICTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("text_sha256", pa.binary(), nullable=False),
        pa.field("account_id", pa.string()),
        pa.field("created_at", _TIME),
        pa.field("status", pa.string(), nullable=False),  # scored | too_short
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("scored", pa.int64(), nullable=False),
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64()),  # null when too short
        pa.field("user_id", pa.string()),
        pa.field("naming", pa.string(), nullable=False),  # see NAMING
        pa.field("score", pa.float64(), nullable=False),
        pa.field("log10_p", pa.float64(), nullable=False),
        pa.field("log10_p_global", pa.float64(), nullable=False),
        pa.field("runner_up_log10_p", pa.float64()),
        pa.field("messages_tested", pa.int64(), nullable=False),
        pa.field("keys_tested", pa.int64(), nullable=False),
        pa.field("flagged", pa.bool_(), nullable=False),
        pa.field("scanned_at", _TIME, nullable=False),
    ]
)
"""One row per document that was read, for the key with the smallest corrected p-value."""

NAMING = ("named", "unallocated", "reserved", "removed", "ambiguous", "none")
"""Why a row names a user or does not. `removed`: the message was a user's whose allocation was withdrawn."""

QUARANTINE = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64()),  # null: the whole file
        pa.field("doc_id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("scanned_at", _TIME, nullable=False),
    ]
)
"""What could not be scored, and why: one row per document, or one per file (row is null) that could not be read."""

DOCUMENT_REASONS = ("null_text", "invalid_utf8", "surrogates", "too_long", "unreadable", "failed", "killed_worker")
"""Why a document is in quarantine. `unreadable`: its part of the file is corrupt; `failed`: scoring it failed."""

LASTING_FILE_REASONS = ("not_parquet", "truncated", "unreadable", "missing_column", "wrong_type")
"""Why a file is in quarantine for as long as it stays what it is: a rerun does not look at it again."""

PASSING_FILE_REASONS = ("vanished", "changed", "io_error")
"""Why a file is in quarantine for now: a rerun scans it, if it can be read then."""

SCANS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("started_at", _TIME, nullable=False),
        pa.field("finished_at", _TIME, nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("config_sha256", pa.string(), nullable=False),
        pa.field("registry_sha256", pa.string(), nullable=False),
        pa.field(
            "keys",
            pa.list_(
                pa.struct(
                    [
                        pa.field("key_id", pa.string()),
                        pa.field("commitment", pa.string()),
                        pa.field("method", pa.string()),
                        pa.field("messages", pa.int64()),
                        pa.field("window", pa.int64()),
                        pa.field("gamma", pa.string()),
                        pa.field("tokenizer_sha256", pa.string()),
                    ]
                )
            ),
            nullable=False,
        ),
        pa.field("dedup", pa.string(), nullable=False),
        pa.field("min_scored", pa.int64(), nullable=False),
        pa.field("false_positive_rate", pa.float64(), nullable=False),
        pa.field("shards", pa.int64(), nullable=False),
        pa.field("shards_skipped", pa.int64(), nullable=False),  # committed by an earlier scan
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("too_short", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("files_quarantined", pa.int64(), nullable=False),
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("audit", pa.string(), nullable=False),
        pa.field("exit_code", pa.int64(), nullable=False),
    ]
)
"""One row per scan: what makes its verdicts replayable, what it did and how it ended."""

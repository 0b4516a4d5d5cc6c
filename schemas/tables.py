"""The Arrow schema of every table. Delta has no unsigned integers, so ids that are hashes are binary or hex text."""

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")

DOCUMENTS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_binary()),  # as it was stored: may be null, may be invalid UTF-8
        pa.field("account_id", pa.string()),
        pa.field("created_at", TIME),
        pa.field("created_at_latest", TIME),  # the latest moment that created_at can mean: a date's last moment
        pa.field("unread", pa.bool_()),  # whether id, account or time are there and cannot be read: they are null
    ]
)
"""Documents as they come from a file: nothing in them is trusted."""

NAMED = pa.list_(
    pa.struct(
        [
            pa.field("key_id", pa.string()),
            pa.field("message", pa.int64()),
            pa.field("user_id", pa.string()),  # null: no user is named, for the reason in `naming`
            pa.field("naming", pa.string()),  # a Naming
            pa.field("log10_p_global", pa.float64()),
        ]
    )
)
"""Messages that the rules of naming let through, the smallest corrected p first (SPEC_2 §3)."""

VERDICTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        # null in `verdicts`, as all that is marked [f]: exact in `flags`
        pa.field("text_sha256", pa.binary()),  # [f]
        pa.field("account_id", pa.string()),
        pa.field("created_at", TIME),
        pa.field("status", pa.string(), nullable=False),  # scored | scored_in_part | too_short | filtered
        # under the key of `key_id`; where that is null, under the first key that scored the text as it stands
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("scored", pa.int64(), nullable=False),
        pa.field("key_id", pa.string()),  # null, as the next: not flagged
        pa.field("message", pa.int64()),
        pa.field("user_id", pa.string()),
        pa.field("naming", pa.string(), nullable=False),  # a Naming
        pa.field("score", pa.float64()),  # [f]
        pa.field("log10_p", pa.float64()),  # [f]; null, as the next: scored under formats alone that have no law
        pa.field("log10_p_global", pa.float64()),  # [f]
        pa.field("runner_up_log10_p", pa.float64()),  # [f]
        pa.field("messages_tested", pa.int64()),  # null, as the next: not flagged
        pa.field("keys_tested", pa.int64()),
        pa.field("flagged", pa.bool_(), nullable=False),
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("reason", pa.string()),  # one of PART_REASONS: why only a part was scored; null: all was
        pa.field("basis", pa.string()),  # over what p holds: key | key-<bits>-bits | assumed; null: not flagged
        # [f]; among 999 decoy keys, where basis is not key and p would flag; else null
        pa.field("p_rank", pa.float64()),
        # both for flagged rows of one message, null in others
        pa.field("first_seen_at", TIME),  # time by which the document existed; null: unknown before its scan
        pa.field("held_since", TIME),  # when a user got the message; null: none ever did
        pa.field("proof", pa.string()),  # a Proof, in flagged rows; null in others
        # normalised: of the text without what hides a mark; null: as it stands, or not flagged
        pa.field("variant", pa.string()),
        pa.field("runner_up_log10_p_global", pa.float64()),  # [f]; corrected as log10_p_global
        # every user once; the first is that of `message`; null: there is none, or the flag is unproved
        pa.field("named", NAMED),  # as the next, each log10_p_global in it: [f]
        pa.field("named_again", NAMED),  # further messages of users that stand in `named`, as under a second key
        pa.field("text_id", pa.binary()),  # keyed digest, equal for equal texts
        # p, corrected, is at most 10^(-6·p_class); null where there is no p-value
        pa.field("p_class", pa.int64()),
        pa.field("sketch", pa.binary()),  # [f]; of flagged texts: 64 numbers by which near-duplicates are recognised
        # 1 over the product of the weights of key, unit and variant where it is no whole number, which keys_tested
        # rounds up; else null
        pa.field("tests", pa.float64()),
        # span: by a part of the text, whose key, message and p these are; null: by the text as a whole, or not flagged
        pa.field("unit", pa.string()),
        # text of a canary that was found and named right, which is no flag to decide on; null: not flagged, or older
        pa.field("canary", pa.bool_()),
    ]
)
"""One row per document that was read. A flagged row is for the key with the smallest corrected p-value.

A key can be learned from exact scores of a few texts, or from the best key and message of many texts. So rows state
only what follows from `flagged`, a coarse class of p, and the text (scanner.detection.published).
"""

DECADES = 6
"""Powers of ten of p that share a class of the column `p_class`.

In a test on 24,000 unmarked texts under a key without a window, classes of one power of ten gave away 99 % of a green
list of 3,000 tokens, and classes of three gave 68 % (half is chance): see tests/detection/test_published.py.
"""

FLAGS = pa.schema([pa.field("keys", pa.string(), nullable=False), *VERDICTS])
"""Flagged rows with exact scores, for those who may see them. keys: as in SHARDS."""

SENT = pa.schema(
    [
        pa.field("at", TIME, nullable=False),
        pa.field("receiver", pa.string(), nullable=False),  # coop | ozone
        pa.field("url", pa.string(), nullable=False),  # where it went
        pa.field("item_id", pa.string(), nullable=False),  # as the receiver calls the flag (schemas.verdict)
        pa.field("state", pa.string(), nullable=False),  # sending (before it is sent), then sent or refused
        pa.field("scan_id", pa.string(), nullable=False),  # with shard_id, path and row: the flag
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("text_sha256", pa.binary(), nullable=False),  # as in VERDICTS
    ]
)
"""Records that `brickscan export` sent to other systems, append-only; `sending` without an end: nobody knows."""

SHARDS = pa.schema(
    [
        pa.field("night", pa.string(), nullable=False),  # date of the data, as in SCANS
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),  # within the file
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("keys", pa.string(), nullable=False),  # digest of the ids of the keys under test
        pa.field("file", pa.string()),  # size and time of the last change; null: written before this column
        pa.field("began_at", TIME, nullable=False),  # when its scan began
        pa.field("scanned_at", TIME, nullable=False),  # when it was finished
        pa.field("documents", pa.int64(), nullable=False),  # in verdicts and in quarantine
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("too_short", pa.int64(), nullable=False),
        pa.field("scored_in_part", pa.int64(), nullable=False),
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("dropped_at", TIME),  # when its rows left the other tables with their night; null: they are there
        pa.field("filtered", pa.int64()),  # documents of which the filter left too few n-grams to be scored
        pa.field("canaries", pa.int64()),  # flagged texts of canaries, named right, beside those in `flagged`
    ]
)
"""One row per range of rows of a file that a scan finished: its counts, and which rows of VERDICTS are the newest."""

QUARANTINE = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64()),  # null: the whole file
        pa.field("doc_id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("account_id", pa.string()),  # this and the next: null where it cannot be read
        pa.field("text_sha256", pa.binary()),  # digest of the text as it is stored
    ]
)
"""Documents and files that could not be scored, and why: one row per document, or per unreadable file (row is null)."""

SECOND_SCORES = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),  # with path and row: the verdict that this belongs to
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string()),
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),  # the verdict's message, which the same draws chose
        pa.field("score_name", pa.string(), nullable=False),  # ln_r | neyman_pearson
        pa.field("settings", pa.string(), nullable=False),  # JSON: the section second_score of the configuration
        pa.field("scored", pa.int64()),  # null, as the next two, when there is a fault
        pa.field("score", pa.float64()),
        pa.field("log10_p_not_independent", pa.float64()),  # of the message alone, as if it were the only test
        pa.field("fault", pa.string()),  # why there is no score
        pa.field("scored_at", TIME, nullable=False),
    ]
)
"""A second score of flagged documents under Gumbel keys, for those who look at them, one row each.

It is computed from the draws that flagged the document and named the message. So it is neither independent evidence nor
a confirmation: among null texts that the main score flags at 1e-3, about 40 % also have p <= 0.01 in the ln r score. It
must not be multiplied with `verdicts.log10_p`, and `flagged` never depends on it.
"""

SCORED = ("scored", "scored_in_part")
"""Values of `status` for a document that was tested, and has a p-value of its own."""

STAGES = ("read", "tokenise", "score", "prove", "write", "commit")
"""Stages of a scan's work, in their order."""

CORE_SECONDS = pa.struct([(stage, pa.float64()) for stage in STAGES])
"""Seconds by stage."""

SCANS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("started_at", TIME, nullable=False),
        pa.field("finished_at", TIME, nullable=False),
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
                        pa.field("admitted_by", pa.string()),  # id of the audit that the key passed; null: none
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
        pa.field("documents", pa.int64(), nullable=False),  # in verdicts and in quarantine, of this scan alone
        pa.field("too_short", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("files_quarantined", pa.int64(), nullable=False),  # whole files; not among the documents
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("audit", pa.string(), nullable=False),  # an AuditState
        pa.field("audited_scans", pa.list_(pa.string()), nullable=False),  # scans whose verdicts the audit covers
        pa.field("exit_code", pa.int64(), nullable=False),
        pa.field("scored_in_part", pa.int64()),  # documents; null, as the next: by a version that did not count them
        pa.field("values_not_read", pa.int64()),  # documents whose id, account or time cannot be read, and is null
        pa.field("labels", pa.list_(pa.string())),  # formats of the keys, in their order; null: written before labels
        # head of the users' hash chain when the scan began, as hex text; null: no users, or written before heads
        pa.field("users_head", pa.string()),
        pa.field("misnaming_rate", pa.float64()),  # null: none was stated, and it is the false-positive rate
        pa.field("text_bytes", pa.int64()),  # of the documents; null, as the rest: written before costs
        # of all work that came back, a worker having one core; commit: of the driver
        pa.field("core_seconds", CORE_SECONDS),
        pa.field("documents_a_core_hour", pa.float64()),  # null, as the rest: no work came back
        pa.field("bytes_a_core_hour", pa.float64()),
        pa.field("slowest_shard", pa.string()),  # the shard that took longest, or the first of a pack that did
        pa.field("slowest_path", pa.string()),  # its file
        pa.field("slowest_row", pa.int64()),  # its first row, within the file
        pa.field("slowest_seconds", pa.float64()),  # its core-seconds
        pa.field("skew", pa.float64()),  # these over the mean of all shards and packs
        # number/of, where the scan was of one of several parts of its input; null: of all of it
        pa.field("part", pa.string()),
        pa.field("filter_sha256", pa.string()),  # of the n-grams that were left out, as in FILTERS; null: no filter
        # date of the data: --date, else the date (UTC) on which the scan began
        pa.field("night", pa.string()),
        pa.field("trial", pa.bool_()),  # of a registry that was made for a trial: evidence against nobody
        pa.field("keys_left_out", pa.list_(pa.string())),  # keys without a law or an audit that supports them
        pa.field("night_stated", pa.string()),  # date that the scan stated, where `brickscan redate` corrected it
        pa.field("filtered", pa.int64()),  # documents of which the filter left too few n-grams to be scored
    ]
)
"""One row per scan: what replays its verdicts, what it did and how it ended."""

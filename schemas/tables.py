"""Define the Arrow schemas of all tables: of results, of the registry, and of a night's files. See also schemas.audit.

Delta has no unsigned integers, so ids that are hashes are binary or hex text.
"""

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")

DOCUMENTS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_binary()),  # as stored: may be null, may be invalid UTF-8
        pa.field("account_id", pa.string()),
        pa.field("created_at", TIME),
        pa.field("created_at_latest", TIME),  # the latest moment that created_at can mean: a date's last moment
        pa.field("unread", pa.bool_()),  # whether id, account or time exist but cannot be read: they are then null
    ]
)
"""Documents as they come from a file. Nothing in them is trusted."""

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
"""Messages that the rules of naming let through, the smallest corrected p first (SPEC_3 §4)."""

VERDICTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        # [f] marks fields that are null in `verdicts` and exact in `flags`
        pa.field("text_sha256", pa.binary()),  # [f]
        pa.field("account_id", pa.string()),
        pa.field("created_at", TIME),
        pa.field("status", pa.string(), nullable=False),  # scored | scored_in_part | too_short | filtered
        # under the key of `key_id`; if that is null, under the first key that scored the text as written
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("scored", pa.int64(), nullable=False),
        pa.field("key_id", pa.string()),  # null, as the next: not flagged
        pa.field("message", pa.int64()),
        pa.field("user_id", pa.string()),
        pa.field("naming", pa.string(), nullable=False),  # a Naming
        pa.field("score", pa.float64()),  # [f]
        pa.field("log10_p", pa.float64()),  # [f]; null, as the next: scored only under formats without a law
        pa.field("log10_p_global", pa.float64()),  # [f]
        pa.field("runner_up_log10_p", pa.float64()),  # [f]
        pa.field("messages_tested", pa.int64()),  # null, as the next: not flagged
        # factor by which p is corrected for keys and looks: 1 over the product of the weights of key, look and variant
        pa.field("correction", pa.float64()),
        pa.field("flagged", pa.bool_(), nullable=False),
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("reason", pa.string()),  # one of PART_REASONS: why only a part was scored; null: all was
        pa.field("basis", pa.string()),  # the reason why p holds: key | key-<bits>-bits | assumed; null: not flagged
        # [f]; rank among 999 decoy keys if basis is not key and p would flag; else null
        pa.field("p_rank", pa.float64()),
        # this and the next: for flagged rows of one message; null in others
        pa.field("first_seen_at", TIME),  # time by which the document existed; null: unknown before its scan
        pa.field("held_since", TIME),  # when a user got the message; null: none ever did
        pa.field("proof", pa.string()),  # a Proof, in flagged rows; null in others
        # normalised: of the text without characters that hide a mark; null: as written, or not flagged
        pa.field("variant", pa.string()),
        pa.field("runner_up_log10_p_global", pa.float64()),  # [f]; corrected as log10_p_global
        # every user once; the first is that of `message`; null: there is none, or the flag is unproved
        pa.field("named", NAMED),  # as the next, each log10_p_global in it: [f]
        pa.field("further_messages", NAMED),  # further messages of users in `named`, such as under a second key
        pa.field("text_id", pa.binary()),  # keyed digest, equal for equal texts
        # p, corrected, is at most 10^(-6·p_class); null: there is no p-value
        pa.field("p_class", pa.int64()),
        pa.field("sketch", pa.binary()),  # [f]; of flagged texts: 64 numbers by which near-duplicates are recognised
        # span: flagged by a part of the text; key, message and p are those of the part; levels: by the whole text, with
        # tokens weighed by how much they surprised a model; null: by the whole text, or not flagged
        pa.field("look", pa.string()),
        # text of a canary that was found and named correctly, so there is nothing to decide; null: not flagged
        pa.field("canary", pa.bool_()),
        # c2pa: the text had a C2PA manifest, which is cut off before scoring; its issuer is not verified
        pa.field("manifest", pa.string()),
        # positions besides `scored` that were left out because claims showed their seeds; if no key scored the text,
        # under the key that left out most; null: of a version that left out none
        pa.field("shown", pa.int64()),
    ]
)
"""One row per document that was read. A flagged row is for the key with the smallest corrected p-value.

A key can be learned from exact scores of a few texts, or from the best key and message of many texts. Rows therefore
contain only `flagged` and values that follow from it, a coarse class of p, and values that follow from the text
(scanner.detection.rows).
"""

NAMED_LISTS = ("named", "further_messages")
"""Columns of VERDICTS that list names, as NAMED."""

DECADES = 6
"""Powers of ten of p that share a class of the column `p_class`.

In a test on 24,000 unmarked texts under a key without a window, classes of one power of ten revealed 99 % of a green
list of 3,000 tokens, and classes of three revealed 68 % (half is chance). See tests/detection/test_published.py.
"""

FLAGS = pa.schema([pa.field("keys", pa.string(), nullable=False), *VERDICTS])
"""Flagged rows with exact scores, for people who may see them. keys: as in SHARDS."""

SHARDS = pa.schema(
    [
        pa.field("night", pa.string(), nullable=False),  # date of the data, as in SCANS
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),  # within the file
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("keys", pa.string(), nullable=False),  # digest of the keys' ids; then :levels if a model read
        pa.field("file", pa.string()),  # size and time of the last change
        pa.field("began_at", TIME, nullable=False),  # when its scan began
        pa.field("scanned_at", TIME, nullable=False),  # when it was finished
        pa.field("documents", pa.int64(), nullable=False),  # in verdicts and in quarantine
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("too_short", pa.int64(), nullable=False),
        pa.field("scored_in_part", pa.int64(), nullable=False),
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("dropped_at", TIME),  # when its rows left the other tables with their night; null: they are there
        pa.field("filtered", pa.int64()),  # documents with too few n-grams left by the filter to be scored
        pa.field("canaries", pa.int64()),  # flagged texts of canaries, named correctly; not in `flagged`
        pa.field("tests_sha256", pa.string()),  # digest of everything but the file that decided its verdicts
        pa.field("since", TIME),  # earliest time at which a row of its file can have been in its table; null: no table
        pa.field("moved_from", pa.list_(pa.string())),  # files in which its file's rows were scanned before
        pa.field("dedup", pa.string()),  # as in SCANS, also of scans that were killed
        pa.field("min_scored", pa.int64()),  # as dedup
        # shares of the false-positive rate of the looks at its texts, as JSON (scanner.error_shares.ErrorShares)
        pa.field("looks", pa.string()),
        # last event of its keys' shown seeds that its scan had read, number and head by key id, as JSON
        pa.field("events", pa.string()),
    ]
)
"""One row per range of rows of a file that a scan finished.

It has counts, and shows which rows of VERDICTS are newest.
"""

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
        pa.field("account_id", pa.string()),  # this and the next: null: it cannot be read
        pa.field("text_sha256", pa.binary()),  # digest of the text as it is stored
    ]
)
"""Documents and files that could not be scored, and why. One row per document, or per unreadable file (row is null)."""

SCORED = ("scored", "scored_in_part")
"""Values of `status` for a document that was tested and has a p-value of its own."""

STAGES = ("read", "tokenise", "score", "prove", "write", "commit")
"""Stages of a scan's work, in their order."""

CORE_SECONDS = pa.struct([(stage, pa.float64()) for stage in STAGES])
"""Seconds by stage."""

SNAPSHOTS = pa.list_(
    pa.struct([pa.field("table", pa.string()), pa.field("kind", pa.string()), pa.field("version", pa.int64())])
)
"""Tables of the input as a scan read them: folder, kind, and version or snapshot id."""

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
                        pa.field("label", pa.string()),  # the format with its parameters
                        pa.field("tokenizer_sha256", pa.string()),
                        pa.field("admitted_by", pa.string()),  # id of the audit that the key passed; null: none
                        # last event of the key's shown seeds that the scan had read, 0: nothing was shown; null: the
                        # key's seeds are
                        # never shown
                        pa.field("event", pa.int64()),
                        pa.field("events_head", pa.string()),  # SHA-256 of that event, as hex text
                        # positions of this scan's documents that the key scored, and that it left out because their
                        # seeds were
                        # shown; null: nothing was shown
                        pa.field("positions", pa.int64()),
                        pa.field("positions_shown", pa.int64()),
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
        pa.field("documents", pa.int64(), nullable=False),  # in verdicts and in quarantine, of this scan only
        pa.field("too_short", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("files_quarantined", pa.int64(), nullable=False),  # whole files; not among the documents
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("audit", pa.string(), nullable=False),  # an AuditState
        pa.field("audited_scans", pa.list_(pa.string()), nullable=False),  # scans whose verdicts the audit covers
        pa.field("exit_code", pa.int64(), nullable=False),
        pa.field("scored_in_part", pa.int64()),  # documents
        pa.field("values_not_read", pa.int64()),  # documents with an id, account or time that is unreadable, so null
        # head of the users' hash chain when the scan began, as hex text; null: no users
        pa.field("users_head", pa.string()),
        pa.field("misnaming_rate", pa.float64()),  # null: none was stated, and it is the false-positive rate
        pa.field("text_bytes", pa.int64()),  # of the documents
        # of all work that came back, a worker having one core; commit: of the driver
        pa.field("core_seconds", CORE_SECONDS),
        pa.field("documents_a_core_hour", pa.float64()),  # null, as all to `skew`: no work came back
        pa.field("bytes_a_core_hour", pa.float64()),
        pa.field("slowest_shard", pa.string()),  # the shard that took longest, or the first of a pack that did
        pa.field("slowest_path", pa.string()),  # its file
        pa.field("slowest_row", pa.int64()),  # its first row, within the file
        pa.field("slowest_seconds", pa.float64()),  # its core-seconds
        pa.field("skew", pa.float64()),  # slowest_seconds over the mean of all shards and packs
        # number/of, if the scan was of one of several parts of its input; null: of all of it
        pa.field("part", pa.string()),
        pa.field("filter_sha256", pa.string()),  # of the n-grams that were left out, as in FILTERS; null: no filter
        # date of the data: --date, else the date (UTC) on which the scan began
        pa.field("night", pa.string()),
        pa.field("trial", pa.bool_()),  # of a registry that was made for a trial: evidence against nobody
        pa.field("keys_left_out", pa.list_(pa.string())),  # keys without a law or an audit that supports them
        pa.field("night_stated", pa.string()),  # date that the scan stated, if `brickscan redate` corrected it
        pa.field("filtered", pa.int64()),  # documents with too few n-grams left by the filter to be scored
        pa.field("snapshots", SNAPSHOTS),  # tables of the input, each at the version that was read
        pa.field("keys_tested", pa.int64()),  # keys of the registry that gave p-values: 1 over the share of each
        # the posts that it tested together in ACCOUNTS, without the part; null, as the next: no account was finished
        pa.field("accounts_unit", pa.string()),
        pa.field("accounts_marked", pa.int64()),  # accounts tested together that have a row in ACCOUNTS
        # digest of files and precision of the model that read texts, as hex; null, as the next three: no model
        pa.field("reader_sha256", pa.string()),
        pa.field("level_texts", pa.int64()),  # texts that the model read in this scan
        pa.field("level_flags", pa.int64()),  # of these, flagged by their levels and not before
        pa.field("level_shards_left", pa.int64()),  # shards that it did not read; the night is final once this is 0
    ]
)
"""One row per scan: everything needed to replay its verdicts, its work and its end."""

FLAG_TEXTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),  # with shard_id, path and row: the flag of this text
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("text_sha256", pa.binary(), nullable=False),  # as in VERDICTS
        pa.field("user_ids", pa.list_(pa.string()), nullable=False),  # users it names; erasing one deletes the row
        pa.field("text", pa.large_binary(), nullable=False),  # as its file had it
        pa.field("scanned_at", TIME, nullable=False),
    ]
)
"""Texts of flags, if `[evidence] keep_text` is set. They explain a flag whose file is gone."""

FLAG_LEVELS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),  # with shard_id, path and row: the flag of this text
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("text_sha256", pa.binary(), nullable=False),  # as in VERDICTS
        pa.field("user_ids", pa.list_(pa.string()), nullable=False),  # users it names; erasing one deletes the row
        pa.field("reader_sha256", pa.string(), nullable=False),  # of the model's files and precision, as in SCANS
        # one byte for each character: how much it surprised the model, in sixteenths of −ln p
        # (scanner.watermark.level_laws)
        pa.field("surprise", pa.large_binary(), nullable=False),
        pa.field("scanned_at", TIME, nullable=False),
    ]
)
"""Surprise of a model at texts that are flagged by levels (`[levels]`). Proofs and replays then need no model."""

SPANS = pa.schema(
    [
        pa.field("keys", pa.string(), nullable=False),  # as in SHARDS
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("char_from", pa.int64(), nullable=False),  # first character of the text as written, from 0
        pa.field("char_to", pa.int64(), nullable=False),  # the character after the last
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("scored", pa.int64(), nullable=False),  # scored positions of these
        pa.field("quoted", pa.float64(), nullable=False),  # share of its characters that quote others, by their form
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64()),  # null if `naming` is undecided: the best message may be a stranger's
        pa.field("user_id", pa.string()),  # null: nobody is named, for the reason in `naming`
        pa.field("naming", pa.string(), nullable=False),  # a Naming
        pa.field("score", pa.float64(), nullable=False),
        pa.field("log10_p", pa.float64(), nullable=False),  # of only this part and message
        pa.field("log10_p_in_document", pa.float64(), nullable=False),  # corrected for all parts and messages
        pa.field("log10_p_global", pa.float64(), nullable=False),  # for all keys too: at most the false-positive rate
        pa.field("proof", pa.string()),  # a Proof; null: no proof was requested
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("form", pa.string()),  # window, paragraph or quotation; null: a window, of an earlier version
    ]
)
"""Parts of documents that are marked, each with its own evidence. Only for people who may see flags."""

TEXT_COUNTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # texts that were examined
        pa.field("missing", pa.int64(), nullable=False),  # documents without a text
        pa.field("blank", pa.int64(), nullable=False),  # texts without a visible character
        pa.field("hidden", pa.int64(), nullable=False),  # texts with invisible characters, besides those of emoji
        # texts with bytes that are no UTF-8, with U+FFFD, or with UTF-8 that was read in another encoding
        pa.field("garbled", pa.int64(), nullable=False),
        pa.field("without_account", pa.int64(), nullable=False),  # documents whose account is null or was not read
        # 256 registers, one byte each, to estimate the number of distinct accounts (HyperLogLog), under a secret
        pa.field("accounts", pa.binary(), nullable=False),
        # texts by the script of most of their letters; `none`: without a letter
        pa.field(
            "scripts",
            pa.list_(pa.struct([pa.field("script", pa.string()), pa.field("texts", pa.int64())])),
            nullable=False,
        ),
        # documents that were flagged, without those of canaries, by the best key of each
        pa.field(
            "flags",
            pa.list_(pa.struct([pa.field("key_id", pa.string()), pa.field("documents", pa.int64())])),
            nullable=False,
        ),
    ]
)
"""Signs in texts that something is wrong with their files. One row for a shard, or for each piece of it."""

DECISIONS = pa.schema(
    [
        pa.field("decision_id", pa.string(), nullable=False),  # 32 hexadecimal digits; no second row with it enters
        pa.field("decided_at", TIME, nullable=False),
        pa.field("decided_by", pa.string(), nullable=False),  # name of the reviewer
        pa.field("source", pa.string(), nullable=False),  # app | command | file
        pa.field("scan_id", pa.string(), nullable=False),  # with shard_id, path and row: the flag that was examined
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string()),
        pa.field("text_sha256", pa.binary(), nullable=False),  # digest of the text that was examined, as in `flags`
        pa.field("key_id", pa.string()),
        pa.field("user_ids", pa.list_(pa.string()), nullable=False),  # users whom the flag named; without erased names
        pa.field("decision", pa.string(), nullable=False),  # a ReviewDecision
        pa.field("note", pa.string()),  # the reason; null: none was given, or a name of this row was erased
    ]
)
"""Decisions of people on flags, append-only. The newest row of each decider on a document is current."""

ACCOUNT_POSTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("account", pa.int64(), nullable=False),  # keyed digest of account_id; a file's rows are sorted by it
        pa.field("account_id", pa.string(), nullable=False),
        pa.field("created_at", TIME),
        pa.field("text", pa.large_binary(), nullable=False),  # first 16 KiB of the text
        # digest of the n-grams that are left out of the post, as in FILTERS; null: none are
        pa.field("filter_sha256", pa.string()),
        pa.field("night", pa.string()),  # date of the data, as in SCANS
    ]
)
"""Posts of accounts, if `[accounts]` is set, until the window of their night is over."""

ACCOUNTS = pa.schema(
    [
        pa.field("keys", pa.string(), nullable=False),  # as in SHARDS
        pa.field("scan_id", pa.string(), nullable=False),
        # digest of everything that decides which posts are tested together, and the part in which the row was computed
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("night", pa.string(), nullable=False),  # date of the data, as in SCANS
        pa.field("nights", pa.int64(), nullable=False),  # nights of the window
        pa.field("account_id", pa.string(), nullable=False),
        pa.field("posts", pa.int64(), nullable=False),  # posts that were tested
        pa.field("texts", pa.int64(), nullable=False),  # distinct texts among them
        pa.field("tokens", pa.int64(), nullable=False),  # tokens of all posts
        pa.field("scored", pa.int64(), nullable=False),  # scored tokens; tokens that several posts repeat count once
        pa.field("first_post", TIME),  # this and the next: null if no post states its time
        pa.field("last_post", TIME),
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64()),  # null if `naming` is undecided: the best message may be a stranger's
        pa.field("user_id", pa.string()),
        pa.field("naming", pa.string(), nullable=False),  # a Naming
        pa.field("named", NAMED),  # as in VERDICTS
        pa.field("further_messages", NAMED),  # as in VERDICTS
        pa.field("score", pa.float64(), nullable=False),  # pooled score of all posts
        pa.field("log10_p", pa.float64(), nullable=False),  # of the pooled score of only this message
        pa.field("log10_p_global", pa.float64(), nullable=False),  # for all messages, keys and nights of the window
        pa.field("messages_tested", pa.int64(), nullable=False),
        # factor by which p is corrected for keys and looks: 1 over the product of the weights of key and look
        pa.field("correction", pa.float64(), nullable=False),
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("quoted_share", pa.float64()),  # share of the scored tokens that are only in quoted lines
        pa.field("proof", pa.string()),  # a Proof; unless it is `proved`, nobody is named
    ]
)
"""Accounts whose posts together are marked, one row per scan and set of keys. Only for people who may see flags."""

FILTER_SKETCHES = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("sample", pa.string(), nullable=False),  # digest of the shards that a sketch was learnt from
        pa.field("night", pa.string(), nullable=False),  # date of the input: --date
        pa.field("tokenizer_sha256", pa.string(), nullable=False),
        pa.field("reach", pa.int64(), nullable=False),  # tokens of an n-gram before its last token
        pa.field("hashed_under", pa.string(), nullable=False),  # digest of the key under which n-grams are hashed
        pa.field("texts", pa.int64(), nullable=False),  # texts that were learnt
        pa.field("ngrams", pa.int64(), nullable=False),  # n-grams of these
        pa.field("part", pa.int64(), nullable=False),  # number of this part of the cells
        pa.field("cells", pa.large_binary(), nullable=False),  # 64 bits each; a text sets one of them
        pa.field("learnt_at", TIME, nullable=False),
    ]
)
"""Sketches of the n-grams of a night, if `[filter]` is set, for as many nights as filters are learnt from."""

FILTERS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),  # the first scan of the night
        pa.field("night", pa.string(), nullable=False),  # date of the input: --date
        pa.field("filter_sha256", pa.string(), nullable=False),  # of the night's filter, as in SCANS
        pa.field("tokenizer_sha256", pa.string()),  # this and the next five: null if nothing was learnt before
        pa.field("reach", pa.int64()),  # tokens of an n-gram before its last token
        pa.field("hashed_under", pa.string()),  # digest of the key under which n-grams are hashed
        pa.field("learnt_texts", pa.int64()),  # texts that it was learnt from
        pa.field("common_share", pa.float64()),  # share of the cells that are common
        pa.field("common", pa.large_binary()),  # one bit for each cell, row by row
        pa.field("texts", pa.int64(), nullable=False),  # `texts` of [filter]
        pa.field("nights", pa.int64(), nullable=False),  # `nights` of [filter]
        pa.field("made_at", TIME, nullable=False),
    ]
)
"""Filters of nights, if `[filter]` is set. The first scan of a night fixes its filter for ever."""

USER_EVENTS = pa.schema(
    [
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("user_id", pa.string()),  # null once the name was erased
        pa.field("event", pa.string(), nullable=False),  # allocated | removed
        pa.field("at", TIME, nullable=False),
    ]
)
"""Events of users and their messages. One `allocated` and at most one `removed` per (key_id, message)."""

USERS = pa.schema(
    [
        *USER_EVENTS,
        # all null in events of a version that kept no chain (scanner.registry.chain)
        pa.field("seq", pa.int64()),  # number of the event in the chain, from 0
        pa.field("salt", pa.binary()),  # 16 random bytes; null once the name was erased
        pa.field("seal", pa.binary()),  # digest of salt and name, kept once both were erased; null before
        pa.field("head", pa.binary()),  # the chain's head after this event, if it is the last of its block; else null
    ]
)
"""The users table: events of USER_EVENTS, append-only, with the hash chain over them."""

VERIFIED_USERS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),  # the scan that verified it
        pa.field("verified_at", TIME, nullable=False),
        pa.field("events", pa.int64()),  # of a checkpoint of the chain, as the next; null in rows of files
        pa.field("head", pa.string()),  # the chain's head after so many events, as hex text
        pa.field("key_id", pa.string()),  # this and the rest: of a file that names are read from; null in checkpoints
        pa.field("kind", pa.string()),  # given | removed
        pa.field("file", pa.string()),  # its name, in the folder of the registry's index
        pa.field("rows", pa.int64()),
        pa.field("first", pa.int64()),  # smallest message in it
        pa.field("last", pa.int64()),  # largest message in it
        pa.field("sha256", pa.string()),  # of its bytes, as hex text
        pa.field("first_event", pa.int64()),  # smallest number of an event in it
    ]
)
"""Files from which users were named when a scan last verified the registry's chain, and the chain's heads then.

Before anybody is named, rows of the newest `verified_at`, of scans that ended and ran then, are compared with the
registry. The table contains no names.
"""

SIGNED_TABLES = pa.schema(
    [
        pa.field("location", pa.string(), nullable=False),  # folder or URI of the results, as the signer named it
        pa.field("table", pa.string(), nullable=False),
        pa.field("table_id", pa.string(), nullable=False),  # id of the Delta table; another in its place differs
        pa.field("results_id", pa.int64(), nullable=False),  # the same for all tables of the results
        pa.field("event", pa.string(), nullable=False),  # signed, signed anew, given up or left
        pa.field("number", pa.int64(), nullable=False),  # of the signature; it grows with time
        pa.field("earlier", pa.int64(), nullable=False),  # of the signature that it follows; -1: unknown, or none
        pa.field("signed_at", TIME, nullable=False),
    ]
)
"""Signatures of tables of results, kept with the registry. Older states have smaller numbers."""

USER_LIST = pa.schema(
    [
        pa.field("user_id", pa.string()),  # null once the name was erased
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("allocated_at", TIME, nullable=False),
        pa.field("removed_at", TIME),  # null while the user holds it
    ]
)
"""List of users: one row per message that was ever given."""

"""Arrow schemas of what stands beside verdicts: texts of flags, spans, accounts and decisions."""

import pyarrow as pa

from schemas.tables import NAMED, TIME

FLAG_TEXTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),  # with shard_id, path and row: the flag of this text
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("text_sha256", pa.binary(), nullable=False),  # as in VERDICTS
        pa.field("user_ids", pa.list_(pa.string()), nullable=False),  # whom the flag names; erasing one takes the row
        pa.field("text", pa.large_binary(), nullable=False),  # as its file held it
        pa.field("scanned_at", TIME, nullable=False),
    ]
)
"""Texts of flags, where `[evidence] keep_text` asks for them: they explain a flag whose file is gone."""

SPANS = pa.schema(
    [
        pa.field("keys", pa.string(), nullable=False),  # as in SHARDS
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("char_from", pa.int64(), nullable=False),  # first character of the text as it stands, from 0
        pa.field("char_to", pa.int64(), nullable=False),  # the character after the last
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("scored", pa.int64(), nullable=False),  # scored positions of these
        pa.field("quoted", pa.float64(), nullable=False),  # share of its characters that quote others, by their form
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64()),  # null where `naming` is undecided: the best may be a stranger there
        pa.field("user_id", pa.string()),  # null: nobody is named, for the reason in `naming`
        pa.field("naming", pa.string(), nullable=False),  # a Naming
        pa.field("score", pa.float64(), nullable=False),
        pa.field("log10_p", pa.float64(), nullable=False),  # of this part and message alone
        pa.field("log10_p_in_document", pa.float64(), nullable=False),  # corrected for all parts and messages
        pa.field("log10_p_global", pa.float64(), nullable=False),  # for all keys too: at most the false-positive rate
        pa.field("proof", pa.string()),  # a Proof; null: none was asked for
        pa.field("scanned_at", TIME, nullable=False),
        pa.field("form", pa.string()),  # window, paragraph or quotation; null: a window, of before there were others
    ]
)
"""Parts of documents that are marked, each with evidence of its own; for those alone who may see flags."""

DECISIONS = pa.schema(
    [
        pa.field("decision_id", pa.string(), nullable=False),  # 32 hexadecimal digits; a second row of it never enters
        pa.field("decided_at", TIME, nullable=False),
        pa.field("decided_by", pa.string(), nullable=False),  # name of the reviewer
        pa.field("source", pa.string(), nullable=False),  # app | command | webhook:<name>
        pa.field("scan_id", pa.string(), nullable=False),  # with shard_id, path and row: the flag that was looked at
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string()),
        pa.field("text_sha256", pa.binary(), nullable=False),  # digest of the text that was looked at, as in `flags`
        pa.field("key_id", pa.string()),
        pa.field("user_ids", pa.list_(pa.string()), nullable=False),  # users whom the flag named; without erased names
        pa.field("decision", pa.string(), nullable=False),  # a Decision
        pa.field("note", pa.string()),  # the reason; null: none was given, or a name of this row was erased
    ]
)
"""Decisions of people on flags, append-only: of each decider the newest row on a document stands."""

ACCOUNT_POSTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("account", pa.int64(), nullable=False),  # keyed digest of account_id, which orders the rows of a file
        pa.field("account_id", pa.string(), nullable=False),
        pa.field("created_at", TIME),
        pa.field("text", pa.large_binary(), nullable=False),  # first 16 KiB of the text
        # of the n-grams that are left out of the post, as in FILTERS; null: none are, or written before filters
        pa.field("filter_sha256", pa.string()),
        pa.field("night", pa.string()),  # date of the data, as in SCANS
    ]
)
"""Posts of accounts, where `[accounts]` asks for them, until the window of their night is over."""

ACCOUNTS = pa.schema(
    [
        pa.field("keys", pa.string(), nullable=False),  # as in SHARDS
        pa.field("scan_id", pa.string(), nullable=False),
        # what was looked at together, by a digest of all that decides it, and which part of it the row was computed in
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("night", pa.string(), nullable=False),  # date of the data, as in SCANS
        pa.field("nights", pa.int64(), nullable=False),  # nights of the window
        pa.field("account_id", pa.string(), nullable=False),
        pa.field("posts", pa.int64(), nullable=False),  # posts that were looked at
        pa.field("texts", pa.int64(), nullable=False),  # distinct texts among them
        pa.field("tokens", pa.int64(), nullable=False),  # tokens of all posts
        pa.field("scored", pa.int64(), nullable=False),  # scored tokens; tokens that several posts repeat count once
        pa.field("first_post", TIME),  # this and the next: null where no post states its time
        pa.field("last_post", TIME),
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64()),  # null where `naming` is undecided: the best may be a stranger there
        pa.field("user_id", pa.string()),
        pa.field("naming", pa.string(), nullable=False),  # a Naming
        pa.field("named", NAMED),  # as in VERDICTS
        pa.field("named_again", NAMED),  # as in VERDICTS
        pa.field("score", pa.float64(), nullable=False),  # pooled score of all posts
        pa.field("log10_p", pa.float64(), nullable=False),  # of the pooled score of this message alone
        pa.field("log10_e", pa.float64(), nullable=False),  # largest evidence so far, of this message alone
        pa.field("log10_p_global", pa.float64(), nullable=False),  # by the stronger, for all messages and keys
        pa.field("messages_tested", pa.int64(), nullable=False),
        pa.field("tests", pa.float64(), nullable=False),  # 1 over the product of the weights of key and unit
        pa.field("scanned_at", TIME, nullable=False),
        # whether the pooled score counts in log10_p_global, as in the night's first look under the key
        pa.field("first_look", pa.bool_()),
        pa.field("quoted_share", pa.float64()),  # share of the scored tokens that stands in quoted lines alone
    ]
)
"""Accounts whose posts together are marked, one row a scan and set of keys; for those alone who may see flags."""

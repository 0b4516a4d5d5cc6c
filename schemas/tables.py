"""The Arrow schema of every table. Delta has no unsigned integers, so ids that are hashes are binary or hex text."""

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")

USER_EVENTS = pa.schema(
    [
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("user_id", pa.string()),  # null once the name was erased
        pa.field("event", pa.string(), nullable=False),  # allocated | removed
        pa.field("at", _TIME, nullable=False),
    ]
)
"""What happened to users and their messages: one `allocated` and at most one `removed` per (key_id, message)."""

USERS = pa.schema(
    [
        *USER_EVENTS,
        # all null in events of a version that kept no chain (scanner.registry.chain)
        pa.field("seq", pa.int64()),  # number of the event in the chain, from 0
        pa.field("salt", pa.binary()),  # 16 random bytes; null once the name was erased
        pa.field("seal", pa.binary()),  # digest of salt and name, kept once both were erased; null before
        pa.field("head", pa.binary()),  # of the chain after this event, the last of its block; null for others
    ]
)
"""The users table: events of USER_EVENTS, append-only, and the hash chain over them."""

USER_LIST = pa.schema(
    [
        pa.field("user_id", pa.string()),  # null once the name was erased
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("allocated_at", _TIME, nullable=False),
        pa.field("removed_at", _TIME),  # null while it is held
    ]
)
"""What the events say, one row per message that was ever given."""

DOCUMENTS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_binary()),  # as it was stored: may be null, may be invalid UTF-8
        pa.field("account_id", pa.string()),
        pa.field("created_at", _TIME),
        pa.field("created_at_latest", _TIME),  # the latest moment that created_at can mean: of a date, its last
        pa.field("unread", pa.bool_()),  # whether id, account or time are there and cannot be read: they are null
    ]
)
"""What is scanned, as it comes from a file: nothing in it is trusted."""

NAMED = pa.list_(
    pa.struct(
        [
            pa.field("key_id", pa.string()),
            pa.field("message", pa.int64()),
            pa.field("user_id", pa.string()),  # null: nobody is named for it, for the reason that `naming` gives
            pa.field("naming", pa.string()),  # a Naming
            pa.field("log10_p_global", pa.float64()),
        ]
    )
)
"""Messages that the rules of naming let through, of smallest corrected p first (SPEC_2 §3)."""

VERDICTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the file
        pa.field("doc_id", pa.string()),
        # null in `verdicts`, as all that is marked [f]: exact in `flags`, and in rows of versions before `text_id`
        pa.field("text_sha256", pa.binary()),  # [f]
        pa.field("account_id", pa.string()),
        pa.field("created_at", _TIME),
        pa.field("status", pa.string(), nullable=False),  # scored | scored_in_part | too_short
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
        pa.field("scanned_at", _TIME, nullable=False),
        pa.field("reason", pa.string()),  # of PART_REASONS: why a part of the text alone was looked at; null: all of it
        pa.field(
            "basis", pa.string()
        ),  # over what p holds: key | key-<bits>-bits | assumed; null: not flagged, or of an older row, key
        # [f]; among 999 decoy keys, where basis is not key and p would flag; else null
        pa.field("p_rank", pa.float64()),
        # both for flagged rows of one message, null in others and in rows of older versions
        pa.field("first_seen_at", _TIME),  # by when the document existed; null: not before its scan, for all we know
        pa.field("held_since", _TIME),  # when a user got the message; null: none ever did
        pa.field("proof", pa.string()),  # a Proof, of flagged rows; null in others and in rows of older versions
        # normalised: of the text without what hides a mark; null: as it stands, or not flagged
        pa.field("variant", pa.string()),
        pa.field("runner_up_log10_p_global", pa.float64()),  # [f]; corrected as log10_p_global
        # every user once; the first is that of `message`; null: there is none, the flag is unproved, or the row is old
        pa.field("named", NAMED),  # as the next, each log10_p_global in it: [f]
        pa.field("named_again", NAMED),  # further messages of users that stand in `named`, as under a second key
        pa.field("text_id", pa.binary()),  # which texts are the same, told by a keyed digest; null: of an older row
        # p, corrected, is at most 10^(-DECADES·p_class); null where there is no p-value, and in older rows
        pa.field("p_class", pa.int64()),
        pa.field("sketch", pa.binary()),  # [f]; of flagged texts: by which near-duplicates are told
    ]
)
"""One row per document that was read. Where it is flagged, for the key with the smallest corrected p-value.

From exact scores of a few texts, or of many and which key and message was the best of each, a key can be learned. So
rows tell no more than what follows from `flagged`, a coarse class of p, and the text (scanner.detection.published).
"""

DECADES = 6
"""Of p that share a class.

Of 24,000 unmarked texts under a key without a window, classes of one decade tell 99 % of a green list of 3,000 tokens,
and of three decades 68 % (half is chance): see tests/detection/test_published.py.
"""

FLAGS = pa.schema([pa.field("keys", pa.string(), nullable=False), *VERDICTS])
"""The flagged rows with exact scores, for those alone who may see them. keys: as in SHARDS."""

SHARDS = pa.schema(
    [
        pa.field("night", pa.string(), nullable=False),  # date (UTC) on which the scan began, 2026-11-21
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),  # within the file
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("keys", pa.string(), nullable=False),  # digest of the ids of the keys under test
        pa.field("file", pa.string()),  # size and time of the last change; null: written before there was this table
        pa.field("began_at", _TIME, nullable=False),  # when its scan began
        pa.field("scanned_at", _TIME, nullable=False),  # when it was finished
        pa.field("documents", pa.int64(), nullable=False),  # in verdicts and in quarantine
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("too_short", pa.int64(), nullable=False),
        pa.field("scored_in_part", pa.int64(), nullable=False),
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("dropped_at", _TIME),  # when its rows left the other tables with their night; null: they are there
    ]
)
"""One row per range of rows of a file that a scan finished: what it held, and which rows of VERDICTS are the newest."""

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
        pa.field("account_id", pa.string()),  # this and the next: null where it cannot be read
        pa.field("text_sha256", pa.binary()),  # of the text as it is stored
    ]
)
"""What could not be scored, and why: one row per document, or one per file (row is null) that could not be read."""

SECOND_SCORES = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),  # with path and row: the verdict that this belongs to
        pa.field("path", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string()),
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),  # the verdict's, which the same draws chose
        pa.field("score_name", pa.string(), nullable=False),  # ln_r | neyman_pearson
        pa.field("settings", pa.string(), nullable=False),  # JSON: the section second_score of the configuration
        pa.field("scored", pa.int64()),  # null, as the next two, when there is a fault
        pa.field("score", pa.float64()),
        pa.field("log10_p_not_independent", pa.float64()),  # of the message alone, as if it were the only test
        pa.field("fault", pa.string()),  # why there is no score
        pa.field("scored_at", _TIME, nullable=False),
    ]
)
"""A second score of flagged documents under Gumbel keys, for those who look at them, one row each.

It is computed from the draws that flagged the document and named the message. So it is not independent evidence and no
confirmation: among null texts that the main score flags at 1e-3, about 40 % also have p <= 0.01 in the ln r score. It
must not be multiplied with `verdicts.log10_p`, and `flagged` never goes by it.
"""

SCORED = ("scored", "scored_in_part")
"""Values of `status` of a document that was tested, and has a p-value of its own."""

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
        pa.field("files_quarantined", pa.int64(), nullable=False),  # as a whole; not among the documents
        pa.field("flagged", pa.int64(), nullable=False),
        pa.field("audit", pa.string(), nullable=False),  # an AuditState
        pa.field("audited_scans", pa.list_(pa.string()), nullable=False),  # whose verdicts the audit covers
        pa.field("exit_code", pa.int64(), nullable=False),
        pa.field("scored_in_part", pa.int64()),  # documents; null, as the next: by a version that did not count them
        pa.field("values_not_read", pa.int64()),  # documents whose id, account or time cannot be read, and is null
        pa.field("labels", pa.list_(pa.string())),  # formats of the keys, in their order; null: written before labels
        # of the users' hash chain when the scan began, as hex text; null: no users, or written before there were heads
        pa.field("users_head", pa.string()),
        pa.field("misnaming_rate", pa.float64()),  # null: none was stated, and it is the false-positive rate
    ]
)
"""One row per scan: what makes its verdicts replayable, what it did and how it ended."""

AUDIT_COUNTS = pa.schema(
    [
        pa.field("scan_id", pa.string(), nullable=False),
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # those of LIVE_AUDIT_KINDS that begin with decoy
        pa.field("method", pa.string(), nullable=False),
        pa.field("gamma", pa.string()),
        pa.field("window", pa.int64(), nullable=False),
        pa.field("dedup", pa.string(), nullable=False),
        pa.field("messages", pa.int64(), nullable=False),  # that each p-value is corrected for
        pa.field("decoy", pa.int64()),  # which of the fixed decoy keys; null: a key for each document
        pa.field("threshold", pa.float64(), nullable=False),  # of p
        pa.field("texts", pa.int64(), nullable=False),  # distinct ones of the shard
        pa.field("tests", pa.int64(), nullable=False),  # one for each text, but for decoy_all one for each message
        pa.field("hits", pa.int64(), nullable=False),  # p at or below the threshold
        pa.field("expected", pa.float64(), nullable=False),  # of hits, if the law holds
        pa.field("hits_squared", pa.float64(), nullable=False),  # this and the next two: summed over texts
        pa.field("hits_times_expected", pa.float64(), nullable=False),
        pa.field("expected_squared", pa.float64(), nullable=False),
        pa.field("scanned_at", _TIME, nullable=False),
        pa.field("label", pa.string()),  # of the format; null: written before there were labels here
        # of rows of kind RESERVED_TEXT alone
        pa.field("key_id", pa.string()),
        pa.field("message", pa.int64()),
        pa.field("text", pa.binary()),  # a keyed digest, and not `text_id`
        pa.field("account_id", pa.string()),  # null also where p is above 1e-3
        pa.field("stratum", pa.string()),  # of rows whose kind is one of STRATA: which
    ]
)
"""What the decoys of each shard counted; rows enter with the shard, exactly once, and any group of them adds up.

And of each text whose best message is a reserved one at p ≤ 0.1 a row of kind RESERVED_TEXT, with the least threshold
that its corrected p is at or below: verdicts do not tell the message.
"""

RESERVED_TEXT = "reserved_text"

AUDITS = pa.schema(
    [
        pa.field("audit_id", pa.string(), nullable=False),
        pa.field("at", _TIME, nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("config_sha256", pa.string(), nullable=False),
        pa.field("corpus", pa.string(), nullable=False),  # paths
        pa.field("seed", pa.string(), nullable=False),  # of the keys that were drawn; marks nothing
        pa.field("kind", pa.string(), nullable=False),  # see AUDIT_KINDS
        pa.field("measure", pa.string(), nullable=False),  # rate | uniformity
        pa.field("test", pa.string(), nullable=False),  # exact | z; of names_wrong, whose texts
        pa.field("method", pa.string(), nullable=False),
        pa.field("key_id", pa.string()),  # null: keys that were drawn
        pa.field("commitment", pa.string()),  # of that key
        pa.field("gamma", pa.string()),
        pa.field("window", pa.int64()),  # null, as gamma and dedup: all of a method together
        pa.field("dedup", pa.string()),
        pa.field("messages", pa.int64(), nullable=False),  # that each p-value is corrected for
        pa.field("threshold", pa.float64()),  # of p; null for uniformity
        pa.field("tests", pa.int64(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),  # taken for independent: document | account | key | message
        pa.field("clusters", pa.int64(), nullable=False),
        pa.field("hits", pa.int64()),  # p at or below the threshold
        pa.field("expected", pa.float64()),  # of hits: the sum of the largest attainable p ≤ threshold
        pa.field("low", pa.float64()),  # limits of the mean of hits, simultaneous over the family
        pa.field("high", pa.float64()),
        pa.field("design_effect", pa.float64()),  # variance between clusters over the binomial one, at least 1
        pa.field("bound", pa.float64()),  # times the expectation: above it is too small
        pa.field("p_value", pa.float64(), nullable=False),  # of hits as many, or p-values as small; 0 below 1e-308
        pa.field("smallest_excess", pa.float64()),  # true over expected rate that would have been seen; null: none
        pa.field("family", pa.int64(), nullable=False),  # rows that are judged together
        pa.field("family_error", pa.float64(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),  # an AuditVerdict
        pa.field("label", pa.string()),  # of the format; null: all of a method together, or written before labels
        pa.field("stratum", pa.string()),  # of rows whose kind is one of STRATA: which
    ]
)
"""What audits of the false-positive rate found: one row per threshold, or per test of uniformity."""

NAMES_KINDS = ("names_unmarked", "names_group", "names_wrong")
AUDIT_KINDS = ("law", "law_total", "law_best_total", "figure", *NAMES_KINDS, "key", "key_messages")
CANARY_KINDS = ("canary_found", "canary_right", "canary_wrong")
STRATA = ("decoy_length", "decoy_host", "decoy_tokenizer", "decoy_script")
LIVE_AUDIT_KINDS = (
    *("decoy", "decoy_best", "decoy_all", "decoy_fixed", *STRATA, "reserved", "shadow", "unheld"),
    *CANARY_KINDS,
)
"""Law: keys drawn for every document, one case; all cases of a method; these, the best of all messages. Figure: the
paper's, a few keys over one corpus. Names: synthetic texts under keys with groups: unmarked ones, which are flagged;
those that fit a group and no user of it, whose best user is named; those of some users, where somebody else is named.
Key: one of the registry, the best of its messages; its messages one by one.

In a scan, whose id is then the audit's. Decoy: a key for each document, one message; the best of all messages; all
messages one by one; a few keys for all documents, which share n-grams. Reserved: verdicts for a message that is never
given to anybody. Shadow: messages beyond those of a key of one message, which has no reserved ones. Strata: decoys of
one message, by parts of the traffic. Unheld: flags for a message that no user held, reserved ones included. Canaries
(texts that are known to be marked): that were found; and named right; that are named for another user."""

TEXTS = pa.schema(
    [
        pa.field(
            "unit", pa.string(), nullable=False
        ),  # the batch it was written in, by a digest of all that decides it
        pa.field("row", pa.int64(), nullable=False),  # in the batch
        pa.field("model_sha256", pa.string(), nullable=False),  # of the files of the model's folder
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("method", pa.string()),  # null, as the next five: not marked
        pa.field("window", pa.int64()),
        pa.field("gamma", pa.string()),  # null for Gumbel, as delta
        pa.field("delta", pa.float64()),
        pa.field("commitment", pa.string()),  # of the key
        pa.field("message", pa.int64()),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("top_p", pa.float64(), nullable=False),
        pa.field("max_new_tokens", pa.int64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # that the model wrote; tokenising the text may give others
    ]
)
"""The texts of `brickscan evaluate`, as they are kept: one file a batch."""

FIGURES = pa.schema(
    [
        pa.field("experiment", pa.string(), nullable=False),  # robustness | identification | utility
        pa.field("task", pa.string()),  # of utility
        pa.field("method", pa.string()),  # null: unmarked text
        pa.field("window", pa.int64()),
        pa.field("gamma", pa.string()),
        pa.field("delta", pa.float64()),
        pa.field("temperature", pa.float64(), nullable=False),  # 0: greedy
        pa.field("measure", pa.string(), nullable=False),  # see MEASURES
        pa.field("attack", pa.string()),  # before detection; null: none
        pa.field("false_positive_rate", pa.float64()),  # at which texts are flagged; null: not about flags
        pa.field("messages", pa.int64()),  # that each text was searched for
        pa.field("least_scored", pa.int64()),  # scored tokens of the texts that are counted; null: all texts
        pa.field("most_scored", pa.int64()),
        pa.field("n", pa.int64(), nullable=False),  # texts
        pa.field("hits", pa.int64()),  # null: a mean
        pa.field("clusters", pa.string(), nullable=False),  # taken for independent, such as `48 prompts, 8 keys`
        pa.field("value", pa.float64()),  # a share or a mean; null, as the limits, where n is 0
        pa.field("low", pa.float64()),  # limits of the 95 % interval
        pa.field("high", pa.float64()),
        pa.field("p_value", pa.float64()),  # of utility: that the mark changes nothing, paired; null: no mark
        pa.field("label", pa.string()),  # of the format; null: unmarked text
    ]
)
"""What the experiments found: one figure a row."""

ANSWERS = pa.schema(
    [
        pa.field("exam", pa.string(), nullable=False),  # a digest of all that decides the answers
        pa.field("task", pa.string(), nullable=False),
        pa.field("document", pa.int64(), nullable=False),  # its number in the task
        pa.field("answer", pa.string(), nullable=False),  # as lm_eval's filters leave it
        pa.field("correct", pa.bool_(), nullable=False),
    ]
)
"""The answers of `brickscan evaluate`, as they are kept: one file an exam."""

MEASURES = ("similarity", "flagged", "scored", "tokens", "found", "wrong", "ambiguous", "correct")
"""Robustness: cosine of sentence embeddings with unmarked text of the same prompt; share flagged; mean scored tokens,
mean tokens that the model wrote. Identification: shares of texts whose user is named, for which somebody else is, for
which more than one message passes, so that nobody is. Utility: share of answers that are right."""

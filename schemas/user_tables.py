"""Arrow schemas of users and the messages that they hold."""

import pyarrow as pa

from schemas.tables import TIME

USER_EVENTS = pa.schema(
    [
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("user_id", pa.string()),  # null once the name was erased
        pa.field("event", pa.string(), nullable=False),  # allocated | removed
        pa.field("at", TIME, nullable=False),
    ]
)
"""Events of users and their messages: one `allocated` and at most one `removed` per (key_id, message)."""

USERS = pa.schema(
    [
        *USER_EVENTS,
        # all null in events of a version that kept no chain (scanner.registry.chain)
        pa.field("seq", pa.int64()),  # number of the event in the chain, from 0
        pa.field("salt", pa.binary()),  # 16 random bytes; null once the name was erased
        pa.field("seal", pa.binary()),  # digest of salt and name, kept once both were erased; null before
        pa.field("head", pa.binary()),  # the chain's head after this event, the last of its block; null for others
    ]
)
"""The users table: events of USER_EVENTS, append-only, and the hash chain over them."""

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
"""The files that users were named from when a scan last verified the registry's chain, and the chain's heads then. Rows
of the newest `verified_at`, of scans that ended and ran then, are held against the registry before anybody is named. No
names stand here.
"""

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

"""Replies that quote marked documents of the demo's sample: flags whose quoted lines alone carry the mark.

They are made from the sample whenever the demo is laid out, and stand in no table of truth: they quote what their
documents say, and their own words are written by people.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


class Reply(NamedTuple):
    """A reply; quoted: the id of the document that it quotes."""

    doc_id: str
    account_id: str
    quoted: str
    own_words: str


REPLIES = (
    Reply(
        "reply-1",
        "account-017",
        "doc-0331",
        "Somebody pasted this into our thread yesterday, and two of my friends got the same lines by mail today. "
        "Does anybody know who sends it? I have asked the people who run the list, but they are away until Monday.",
    ),
    Reply(
        "reply-2",
        "account-063",
        "doc-0671",
        "I do not agree with a word of it. We tried the very same thing in our village three winters ago, with more "
        "hands than you have, and all that came of it was a broken fence and a long quarrel with the neighbours.",
    ),
    Reply(
        "reply-3",
        "account-120",
        "doc-0242",
        "Please take this down: it reads as though a machine had written it, and nobody here asked for it. If you have "
        "a question of your own, put it in your own words and one of us will try to help you when there is time.",
    ),
)

POSTED_AT = datetime(2026, 11, 10, 9, tzinfo=UTC)
"""Time of all replies: after the last document of the sample."""


def write_replies(samples: Sequence[Path], out: Path) -> None:
    """Write the replies as a file of documents with the columns of the sample.

    Args:
        samples: files of the sample, in which the quoted documents stand.
        out: the file to write.
    """
    documents = pa.concat_tables(pq.read_table(path, columns=["doc_id", "text"]) for path in samples)
    wanted = documents.filter(pc.is_in(documents["doc_id"], pa.array([reply.quoted for reply in REPLIES])))
    text_of = dict(zip(*(wanted[name].to_pylist() for name in ("doc_id", "text")), strict=True))
    rows = [
        {
            "doc_id": reply.doc_id,
            "text": f"{_quoting(text_of[reply.quoted])}\n\n{reply.own_words}",
            "account_id": reply.account_id,
            "created_at": POSTED_AT,
        }
        for reply in REPLIES
    ]
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(samples[0])), out)


def _quoting(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())

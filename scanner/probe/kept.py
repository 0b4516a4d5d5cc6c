"""Keep answers as they come. A probe that was killed can then continue, and asks nothing twice.

Each answer is a line of JSON, on disk before its thread sends another request. If a kill cut a line off, its request is
sent again.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter, with_config

from scanner.errors import Refused
from scanner.probe.classes import Request
from scanner.probe.replies import Answer, Reply
from scanner.storage.locations import sync_to_disk

ANSWERS = pa.schema(
    [
        ("request", pa.string()),  # class and number of the request, and the number of the answer if there are several
        ("class", pa.string()),
        ("prompt", pa.string()),  # text before the answer as the model read it, if it is known
        ("prompt_ids", pa.list_(pa.uint32())),  # the same as tokens, if the server gives them
        ("text", pa.string()),  # as received
        ("ids", pa.list_(pa.uint32())),  # the server's own tokens of the text
        ("user_id", pa.string()),  # for whom it was marked
        ("finish", pa.string()),  # why the server stopped
        ("error", pa.string()),  # sentence in place of a missing text
        ("note", pa.string()),  # sentence that must be reported with the text
    ]
)
"""Columns of answers.parquet."""


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True)
class KeptReply:
    """The result of one request.

    Args:
        request_id: id of the request.
        digest: digest of the request. If its digest is different now, the request is sent again.
        asked_at: ISO 8601, UTC.
        attempts: number of times it was sent.
        cost: of all attempts, by the stated price. 0 without a price.
        final: whether it is not sent again. False after 401, 429, 5xx and lost connections.
        reply: the answers.
    """

    request_id: str
    digest: str
    asked_at: str
    attempts: int
    cost: float
    final: bool
    reply: Reply


_LINE = TypeAdapter(KeptReply)


class KeptAnswers:
    """The file of a running probe. As a context manager it keeps other probes from writing to the same file.

    Raises:
        Refused: another probe writes to it, it cannot be written, or it is not such a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600), "r+b")
        except OSError as error:
            raise Refused(f"{path}: cannot be written ({error.strerror}); name another `out`") from None
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise Refused(f"{path}: is not a regular file; move it away, or name another `out`")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise Refused(f"{path}: another probe is using this folder; wait for it, or name another `out`") from None
        if not path.exists() or not os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
            self._file.close()  # the other probe ended between open and lock, and deleted the file
            raise Refused(f"{path}: another probe in this folder has just finished; start this one again")
        self._replies = self._read()
        sync_to_disk(path.parent)

    def __enter__(self) -> "KeptAnswers":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self) -> dict[str, KeptReply]:
        """Read the complete lines, and remove a last line that is incomplete."""
        raw = self._file.read()
        whole = raw.rpartition(b"\n")[0]
        end = len(whole) + 1 if whole else 0
        self._file.truncate(end)
        self._file.seek(end)
        replies = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                kept = _LINE.validate_json(line)
            except ValueError:
                self._file.close()
                raise Refused(
                    f"{self.path}: line {number} is not a recorded answer; move the file away to start the probe over"
                ) from None
            replies[kept.request_id] = kept
        return replies

    @property
    def cost(self) -> float:
        """Return the cost of all requests of this file so far."""
        return sum(kept.cost for kept in self._replies.values())

    @property
    def oldest(self) -> str | None:
        """Return the time of the first request with an answer. None: there are no answers."""
        return min((kept.asked_at for kept in self._replies.values() if kept.final), default=None)

    def add(self, kept: KeptReply) -> None:
        """Keep the result of a request. It is on disk when this returns."""
        before = self._replies.get(kept.request_id)
        if before is not None:  # the cost of an earlier attempt still counts
            kept = KeptReply(
                **{**vars(kept), "cost": kept.cost + before.cost, "attempts": kept.attempts + before.attempts}
            )
        self._file.write(json.dumps(asdict(kept)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._replies[kept.request_id] = kept

    def reply_to(self, request: Request) -> KeptReply | None:
        """Return the result of a request. None: it was not sent, or it was sent with other contents than now."""
        kept = self._replies.get(request.request_id)
        return kept if kept is not None and kept.digest == request.digest else None

    def open_requests(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests that still must be sent, in their order."""
        found = ((request, self.reply_to(request)) for request in requests)
        return [request for request, kept in found if kept is None or not kept.final]

    def asked_otherwise(self, requests: Iterable[Request]) -> int:
        """Return how many requests have an answer from an earlier call that asked them with other contents."""
        kept = (self._replies.get(request.request_id) for request in requests if self.reply_to(request) is None)
        return sum(one is not None and one.final for one in kept)

    def table(self, requests: Iterable[Request]) -> pa.Table:
        """Return all answers to requests, one a row, with the columns `ANSWERS`."""
        rows = [
            _row(request, number, answer)
            for request in requests
            if (kept := self.reply_to(request)) is not None
            for number, answer in enumerate(kept.reply.answers)
        ]
        return pa.Table.from_pylist(rows, schema=ANSWERS)

    def discard(self) -> None:
        """Delete the file, once its answers are stored elsewhere."""
        self.path.unlink(missing_ok=True)


def _row(request: Request, number: int, answer: Answer) -> dict[str, object]:
    several = request.texts > 1
    return {
        "request": f"{request.request_id}/{number}" if several else request.request_id,
        "class": answer.class_name,
        "prompt": request.prompt,
        "prompt_ids": answer.prompt_ids,
        "text": answer.text,
        "ids": answer.ids,
        "user_id": request.user and request.user.id,
        "finish": answer.finish,
        "error": answer.error,
        "note": answer.note,
    }

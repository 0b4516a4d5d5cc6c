"""Answers that are kept as they come, so that a probe that was killed goes on, and asks nothing twice.

A line of JSON is on the disk before its thread sends another request. A line that a kill cut off is asked again.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from scanner.errors import Refused
from scanner.probe.classes import Request
from scanner.probe.replies import Answer, Reply
from scanner.storage.locations import sync_to_disk

ANSWERS = pa.schema(
    [
        ("request", pa.string()),  # its class and number, and of several answers which one
        ("class", pa.string()),
        ("prompt", pa.string()),  # text before the answer as the model read it, if it is known
        ("prompt_ids", pa.list_(pa.uint32())),  # the same as tokens, where the server tells them
        ("text", pa.string()),  # as received
        ("ids", pa.list_(pa.uint32())),  # the server's own tokens of the text
        ("user_id", pa.string()),  # for whom it was marked
        ("finish", pa.string()),  # why the server stopped
        ("error", pa.string()),  # what came in place of a text
        ("note", pa.string()),  # what must be told about a text
    ]
)
"""Columns of answers.parquet."""


@dataclass(frozen=True)
class KeptReply:
    """What one request got.

    Args:
        request_id, digest: of the request; one whose digest is another now is asked again.
        asked_at: ISO 8601, UTC.
        attempts: how often it was sent.
        cost: of all attempts, by the stated price; 0 without one.
        final: whether it is asked no more: false after 401, 429, 5xx and lost connections.
        reply: the answers.
    """

    request_id: str
    digest: str
    asked_at: str
    attempts: int
    cost: float
    final: bool
    reply: Reply


class KeptAnswers:
    """The file of a probe that is under way. A context: nobody else asks into the same file meanwhile.

    Raises:
        Refused: another probe writes it, it cannot be written, or it is not such a file.
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
            raise Refused(f"{path}: is no regular file; move it away, or name another `out`")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise Refused(
                f"{path}: another probe is asking into this folder; wait for it, or name another `out`"
            ) from None
        self._replies = self._read()
        sync_to_disk(path.parent)

    def __enter__(self) -> "KeptAnswers":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self) -> dict[str, KeptReply]:
        """Read the whole lines, and cut off one that was not written whole."""
        raw = self._file.read()
        whole = raw.rpartition(b"\n")[0]
        end = len(whole) + 1 if whole else 0
        self._file.truncate(end)
        self._file.seek(end)
        replies = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                kept = _from_json(json.loads(line))
            except (ValueError, TypeError, KeyError):
                self._file.close()
                raise Refused(
                    f"{self.path}: line {number} is no kept answer; move the file away, and the probe begins anew"
                ) from None
            replies[kept.request_id] = kept
        return replies

    @property
    def cost(self) -> float:
        """What all requests of this file cost so far."""
        return sum(kept.cost for kept in self._replies.values())

    @property
    def oldest(self) -> str | None:
        """When the first of the answers was asked for; None: there are none."""
        return min((kept.asked_at for kept in self._replies.values()), default=None)

    def add(self, kept: KeptReply) -> None:
        """Keep what a request got. It is on the disk when this returns."""
        before = self._replies.get(kept.request_id)
        if before is not None:  # what an earlier try cost stays counted
            kept = KeptReply(
                **{**vars(kept), "cost": kept.cost + before.cost, "attempts": kept.attempts + before.attempts}
            )
        self._file.write(json.dumps(asdict(kept)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._replies[kept.request_id] = kept

    def reply_to(self, request: Request) -> KeptReply | None:
        """Return what a request got; None: it was not asked, or asked otherwise than it would be now."""
        kept = self._replies.get(request.request_id)
        return kept if kept is not None and kept.digest == request.digest else None

    def open_requests(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests that are still to be sent, in their order."""
        found = ((request, self.reply_to(request)) for request in requests)
        return [request for request, kept in found if kept is None or not kept.final]

    def table(self, requests: Iterable[Request]) -> pa.Table:
        """Return all answers to requests, a row each, with the columns `ANSWERS`."""
        rows = [
            _row(request, number, answer)
            for request in requests
            if (kept := self.reply_to(request)) is not None
            for number, answer in enumerate(kept.reply.answers)
        ]
        return pa.Table.from_pylist(rows, schema=ANSWERS)

    def discard(self) -> None:
        """Delete the file: its answers are elsewhere now."""
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


def _from_json(read: Mapping[str, Any]) -> KeptReply:
    reply = read["reply"]
    answers = tuple(map(_answer, reply["answers"]))
    return KeptReply(**{**read, "reply": Reply(answers, reply["tokens_in"], reply["tokens_out"])})


def _answer(read: Mapping[str, Any]) -> Answer:
    ids = {name: None if read[name] is None else tuple(read[name]) for name in ("ids", "prompt_ids")}
    return Answer(**{**read, **ids})

"""Reports to receivers that a configuration names, each sent once.

Sends each report once: a row is recorded before it is sent, and another with its end after.

A process that is killed in between leaves a row `sending` without an end. Nobody can tell then whether the report
arrived. It is sent again only if the receiver drops repeats, as Ozone does by `externalId`; otherwise it is shown to
people as in doubt.

The receivers that a configuration names, and how their reports are made.
"""

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from scanner.detection.scan_plan import read_config
from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.exports.records import coop_report, ozone_event
from scanner.registry.secrets import read_token
from scanner.results.queries import ask
from scanner.results.tables import open_tables, read_whole
from scanner.results.transactions import TableEntry, commit, write_file
from scanner.storage.delta import table_uri
from scanner.watermark.stacks.shared import Held
from schemas.config import ExportConfig
from schemas.tables import SENT
from schemas.verdict import Verdict

_SECONDS = 30
_MOST_READ = 64 * 1024


class Receiver(NamedTuple):
    """Where reports go. headers: hold the token; drops_repeats: it takes an item once, however often it is sent."""

    name: str
    url: str
    headers: Held[dict[str, str]]
    drops_repeats: bool


class ReceiverAnswer(NamedTuple):
    """Answer of a receiver: HTTP status, and the body as JSON, empty where it is none."""

    status: int
    body: Mapping[str, Any]


def checked_url(field: str, url: str) -> str:
    """A URL to which a token may be sent.

    Raises:
        Refused: it is not encrypted, and not of this machine.
    """
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not (parts.scheme == "https" or local) or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise Refused(f"{field}: {url!r} is no address to send to; allowed: https://…, http:// of this machine alone")
    return url.rstrip("/")


def sent(results: str) -> pl.LazyFrame:
    """All reports that were sent or were to be sent, oldest first, as in schemas.tables.SENT."""
    if not DeltaTable.is_deltatable(table_uri(results, "sent")):
        return pl.LazyFrame(schema=pl.Schema(SENT))
    return read_whole(results, "sent").sort("at")


class Outbox:
    """Reports of one folder of results to one receiver.

    Args:
        results: folder or URI.
        receiver: where reports go.
        again: send also what a killed process may have sent, to a receiver that does not drop repeats.
        post: function that posts; tests give another one.
    """

    def __init__(
        self,
        results: str,
        receiver: Receiver,
        *,
        again: bool = False,
        post: "Callable[..., ReceiverAnswer] | None" = None,
    ) -> None:
        self._results, self._receiver = results, receiver
        self._again, self._post = again or receiver.drops_repeats, post or _post
        open_tables(results, ["sent"])
        local = (pl.col("receiver") == receiver.name) & (pl.col("url") == receiver.url)
        rows = ask(results, lambda: sent(results).filter(local).collect())
        self._states: dict[str, list[str]] = {}
        for item, state in rows.select("item_id", "state").iter_rows():
            self._states.setdefault(item, []).append(state)

    def send(self, item_id: str, row: Mapping[str, Any], body: Mapping[str, Any]) -> str:
        """Send a report: `sent`, `sent before`, `in doubt` (a killed process may have sent it), or `refused`.

        Raises:
            ScanFailed: the receiver cannot be reached, lets nobody in, or fails; reports sent before stay sent.
        """
        states = self._states.get(item_id, [])
        if "sent" in states:
            return "sent before"
        failed = states.count("refused")
        in_doubt = states.count("sending") > failed
        if in_doubt and not self._again:
            return "in doubt"
        if not in_doubt and not self._record(item_id, row, "sending", failed):
            return "in doubt"  # another process is sending it now
        answer = self._post(self._receiver.url, self._receiver.headers.value, body)
        if answer.status in (200, 201, 202, 204) or answer.body.get("error") == "DuplicateExternalId":
            self._record(item_id, row, "sent", failed)
            return "sent"
        if answer.status >= 500 or answer.status < 400:
            raise ScanFailed(f"{self._receiver.url}: answered {answer.status}; run this again later")
        self._record(item_id, row, "refused", failed)
        if answer.status in (401, 403, 429):
            why = "too many requests" if answer.status == 429 else "the token was not accepted"
            raise ScanFailed(f"{self._receiver.url}: {why} ({answer.status}); run this again when that is mended")
        return "refused"

    def _record(self, item_id: str, flag: Mapping[str, Any], state: str, attempt: int) -> bool:
        """Record a state of a report. Returns whether this process did, and no other one before."""
        row = {
            "at": datetime.now(UTC),
            "receiver": self._receiver.name,
            "url": self._receiver.url,
            "item_id": item_id,
            "state": state,
            **{name: flag[name] for name in ("scan_id", "shard_id", "path", "row", "text_sha256")},
        }
        to = hashlib.sha256(self._receiver.url.encode()).hexdigest()[:16]
        transaction = f"{state} {attempt} {self._receiver.name} {to} {item_id}"
        file = write_file(self._results, "sent", [pa.RecordBatch.from_pylist([row], SENT)])
        return transaction in commit(self._results, "sent", [TableEntry(transaction, (file,) if file else ())])


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, since the token must go to no other address."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        return None


def _post(url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ReceiverAnswer:
    all_headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), all_headers, method="POST")  # noqa: S310 - checked_url
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_SECONDS) as answer:
            return ReceiverAnswer(answer.status, _json(answer.read(_MOST_READ)))
    except urllib.error.HTTPError as error:
        with error:
            return ReceiverAnswer(error.code, _json(error.read(_MOST_READ)))
    except (OSError, ValueError) as error:
        raise ScanFailed(f"{url}: cannot be sent to ({in_a_line(error)}); run this again later") from None


def _json(raw: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        return {}
    return cast(dict[str, Any], answer) if isinstance(answer, dict) else {}


Body = Callable[[Verdict, str | None], dict[str, Any]]


def ozone_or_coop(config_file: Path, name: str) -> tuple[Body, Callable[[], Receiver]]:
    """The function that makes a report, and the one that opens its receiver, which alone reads the token.

    Raises:
        Refused: the configuration has no such receiver.
    """
    config = read_config(config_file).export or ExportConfig()
    base = config_file.absolute().parent
    if name == "coop" and (coop := config.coop) is not None:
        url = checked_url("export.coop.url", coop.url) + "/api/v1/report"

        def to_coop() -> Receiver:
            return Receiver("coop", url, Held({"X-API-KEY": read_token(coop.token, base)}), drops_repeats=False)

        return lambda verdict, text: coop_report(verdict, text, coop), to_coop
    if name == "ozone" and (ozone := config.ozone) is not None:
        where = checked_url("export.ozone.url", ozone.url) + "/xrpc/tools.ozone.moderation.emitEvent"

        def to_ozone() -> Receiver:
            headers = {"Authorization": f"Bearer {read_token(ozone.token, base)}"}
            if ozone.labeler is not None:
                headers["atproto-proxy"] = f"{ozone.labeler}#atproto_labeler"
            return Receiver("ozone", where, Held(headers), drops_repeats=True)

        return lambda verdict, _text: ozone_event(verdict, ozone), to_ozone
    raise Refused(f"{config_file}: has no section [export.{name}]; the guide “Give flags to other systems” shows one")

"""Exports of flags: one neutral record a flag, and the forms that other systems take, each sent once.

- ROOST Coop: `POST /api/v1/report` (docs/api/report.md of roostorg/coop);
- Ozone: `tools.ozone.moderation.emitEvent` (the lexicon of bluesky-social/atproto);
- Label Studio: tasks of its JSON import, with marked characters as predictions (labelstud.io/guide/predictions);
- a table for spreadsheets, in which no cell is a formula.

A row is recorded before a report is sent, and another with its end after. A process that is killed in between leaves a
row `sending` without an end. Nobody can tell then whether the report arrived. It is sent again only if the receiver
drops repeats, as Ozone does by `externalId`; otherwise it is shown to people as in doubt.
"""

import csv
import hashlib
import io
import json
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.evidence import account_explanation
from scanner.evidence.account_explanation import AccountExplanation
from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found
from scanner.printable import cell, safe
from scanner.registry.secrets import read_token
from scanner.results.decision_log import users_of
from scanner.results.false_discoveries import log10_p_shown
from scanner.results.flags import flag_id
from scanner.results.queries import ask
from scanner.results.transactions import TableEntry, commit, open_tables, read_whole
from scanner.scan_plan import read_config
from scanner.storage.data_files import write_file
from scanner.storage.locations import table_uri
from scanner.watermark.stacks.shared import HiddenValue
from schemas.config import CoopConfig, ExportConfig, OzoneConfig
from schemas.tables import SENT
from schemas.verdict import AccountVerdict, Verdict, VerdictDocument, VerdictKey, VerdictP, VerdictSpan


def verdict_of(explained: Explanation, config: str) -> Verdict:
    """The record of a flag; config: the file or folder that names its results, for the command that replays it."""
    row, scan = explained.row, explained.case.scan
    keys: list[dict[str, Any]] = (scan or {}).get("keys", [])
    key = next((one for one in keys if one["key_id"] == row["key_id"]), {})
    return Verdict(
        id=flag_id(row),
        document=VerdictDocument(**{name: row[name] for name in VerdictDocument.model_fields}),
        text_sha256=row["text_sha256"].hex(),
        key=VerdictKey(
            key_id=row["key_id"],
            commitment=key.get("commitment") or None,
            format=key.get("method"),
            tokenizer_sha256=key.get("tokenizer_sha256"),
        ),
        message=row["message"],
        user_id=row["user_id"],
        naming=row["naming"],
        named=tuple(users_of(row)),
        p=VerdictP(
            **{name: row[name] for name in ("log10_p", "log10_p_global", "messages_tested", "correction", "basis")},
            false_positive_rate=explained.rate,
            log10_p_shown=log10_p_shown(row),
            expected_by_chance_at_most=explained.expected,
        ),
        registry_agrees=explained.registry.agrees,
        proof=row["proof"],
        audit=row["audit"],
        spans=tuple(VerdictSpan(**{name: span[name] for name in VerdictSpan.model_fields}) for span in explained.spans),
        says=tuple(f"{heading}: {safe(sentence)}" for heading, sentence in what_was_found(explained)),
        does_not_say=DOES_NOT_SAY,
        scan_id=row["scan_id"],
        scanned_at=row["scanned_at"],
        scan_version=scan["version"] if scan else None,
        replay=shlex.join(["brickscan", "replay", config, explained.case.where]),
    )


def account_verdict_of(explained: AccountExplanation, config: str) -> AccountVerdict:
    """The record of a marked account; config: as of `verdict_of`."""
    row = explained.row
    identity = hashlib.sha256(f"{row['account_id']}\n{row['night']}\n{row['keys']}".encode()).hexdigest()[:32]
    same = AccountVerdict.model_fields.keys() & row.keys() - {"named"}
    return AccountVerdict(
        id=f"brickscan-account-{identity}",
        **{field: row[field] for field in same},
        named=tuple(account_explanation.users_named(row)),
        registry_agrees=explained.registry.agrees,
        says=tuple(
            f"{heading}: {safe(sentence)}" for heading, sentence in account_explanation.what_was_found(explained)
        ),
        does_not_say=DOES_NOT_SAY,
        explain=shlex.join(
            ["brickscan", "explain", config, "--date", row["night"], "--account", "--", row["account_id"]]
        ),
    )


VERDICT_COLUMNS = (
    *("id", "doc_id", "account_id", "created_at", "user_id", "naming", "key_id", "log10_p_global", "log10_p_shown"),
    *("messages_tested", "correction", "proof", "audit", "path", "row", "text_sha256", "scan_id", "scanned_at"),
    "replay",
)
ACCOUNT_COLUMNS = (
    *("id", "account_id", "night", "nights", "posts", "texts", "first_post", "last_post", "user_id", "naming"),
    *("key_id", "quoted_share", "log10_p_global", "messages_tested", "correction", "proof", "audit"),
    *("scan_id", "scanned_at", "explain"),
)


def coop_report(verdict: Verdict, text: str | None, config: CoopConfig) -> dict[str, Any]:
    """The body of a report. The item type needs the fields text, document, account and verdict, all strings."""
    document = verdict.document
    why = {"reason": reason(verdict)} | ({} if config.policy is None else {"policyId": config.policy})
    return {
        "reporter": {"kind": "user", "typeId": config.reporter_type, "id": config.reporter},
        "reportedAt": verdict.scanned_at.isoformat(),
        "reportedForReason": why,
        "reportedItem": {
            "id": verdict.id,
            "typeId": config.item_type,
            "data": {
                "text": text or "",
                "document": document.doc_id or f"{document.path}:{document.row}",
                "account": document.account_id or "",
                "verdict": verdict.model_dump_json(),
            },
        },
    }


def ozone_event(verdict: Verdict, config: OzoneConfig) -> dict[str, Any]:
    """The input of emitEvent: a report on the account that posted the document, which `externalId` keeps single.

    Raises:
        Refused: neither the account nor the document's id holds a DID.
    """
    document = verdict.document
    account = document.account_id or ""
    uri = document.doc_id or ""
    did = account if account.startswith("did:") else uri.removeprefix("at://").partition("/")[0]
    if not did.startswith("did:"):
        raise Refused(
            f"{document.path}:{document.row}: account {account[:60]!r} is no DID, nor is the id an at:// URI of one; "
            "Ozone knows accounts by DID: name the column of it as [input] account"
        )
    return {
        "event": {
            "$type": "tools.ozone.moderation.defs#modEventReport",
            "reportType": "com.atproto.moderation.defs#reasonOther",
            "comment": f"{uri} {reason(verdict)}".strip(),
        },
        "subject": {"$type": "com.atproto.admin.defs#repoRef", "did": did},
        "createdBy": config.created_by,
        "externalId": verdict.id,
        "modTool": {"name": "brickscan"},
    }


def reason(verdict: Verdict) -> str:
    """Why a document is reported, in sentences."""
    sentences = [sentence for sentence in verdict.says if sentence.startswith(("Marked for", "How seldom", "Audit"))]
    return f"{'. '.join(sentences)}. This does not say {verdict.does_not_say[0]}."


def label_studio_task(verdict: Verdict, text: str) -> dict[str, Any]:
    """A task whose labelling has `<Labels name="label" toName="text">` with a label `marked`, and `<Text name="text">`.

    Its predictions are the marked parts, or the whole text where no part was tested. They have no score, since a
    p-value is no probability that the label is right.
    """
    spans = [(span.char_from, span.char_to) for span in verdict.spans] or [(0, len(text))]
    regions = [
        {
            "id": f"{verdict.id}-{number}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": begin, "end": end, "text": text[begin:end], "labels": ["marked"]},
        }
        for number, (begin, end) in enumerate(spans)
    ]
    return {
        "data": {"text": text, "verdict": verdict.model_dump(mode="json")},
        "predictions": [{"model_version": f"brickscan {verdict.scan_version or ''}".strip(), "result": regions}],
    }


def csv_lines(verdicts: Iterable[Verdict]) -> Iterable[str]:
    """A table with a head, a line at a time, of which no cell is a formula."""
    return _lines((VERDICT_COLUMNS, *map(_row, verdicts)))


def account_csv_lines(accounts: Iterable[AccountVerdict]) -> Iterable[str]:
    """The same of marked accounts."""
    rows = ([cell(one.model_dump(mode="json")[name]) for name in ACCOUNT_COLUMNS] for one in accounts)
    return _lines((ACCOUNT_COLUMNS, *rows))


def _lines(rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for row in rows:
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(row)
        yield out.getvalue()


def _row(verdict: Verdict) -> list[str]:
    flat = verdict.model_dump(mode="json")
    flat |= flat["document"] | flat["p"] | {"key_id": flat["key"]["key_id"]}
    return [cell(flat[name]) for name in VERDICT_COLUMNS]


_SECONDS = 30
_MOST_READ = 64 * 1024


class Receiver(NamedTuple):
    """Where reports go. headers: hold the token; drops_repeats: it takes an item once, however often it is sent."""

    name: str
    url: str
    headers: HiddenValue[dict[str, str]]
    drops_repeats: bool


class ReceiverAnswer(NamedTuple):
    """Answer of a receiver: HTTP status, and the body as JSON, empty where it is none."""

    status: int
    body: Mapping[str, Any]


def checked_url(field: str, url: str) -> str:
    """A URL to which a token may be sent. Raises Refused: it is not encrypted, and not of this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not (parts.scheme == "https" or local) or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise Refused(f"{field}: {url!r} is no address to send to; allowed: https://…, http:// of this machine alone")
    return url.rstrip("/")


def sent_records(results: str) -> pl.LazyFrame:
    """All reports that were sent or were to be sent, oldest first, as in schemas.tables.SENT."""
    if not DeltaTable.is_deltatable(table_uri(results, "sent")):
        return pl.LazyFrame(schema=pl.Schema(SENT))
    return read_whole(results, "sent").sort("at")


class Outbox:
    """Reports of one folder of results to one receiver.

    resend: send also what a killed process may have sent, to a receiver that does not drop repeats. post: function that
    posts; tests give another one.
    """

    def __init__(
        self,
        results: str,
        receiver: Receiver,
        *,
        resend: bool = False,
        post: "Callable[..., ReceiverAnswer] | None" = None,
    ) -> None:
        self._results, self._receiver = results, receiver
        self._resend, self._post = resend or receiver.drops_repeats, post or _post
        open_tables(results, ["sent"])
        local = (pl.col("receiver") == receiver.name) & (pl.col("url") == receiver.url)
        rows = ask(results, lambda: sent_records(results).filter(local).collect())
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
        if in_doubt and not self._resend:
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
            return Receiver("coop", url, HiddenValue({"X-API-KEY": read_token(coop.token, base)}), drops_repeats=False)

        return lambda verdict, text: coop_report(verdict, text, coop), to_coop
    if name == "ozone" and (ozone := config.ozone) is not None:
        where = checked_url("export.ozone.url", ozone.url) + "/xrpc/tools.ozone.moderation.emitEvent"

        def to_ozone() -> Receiver:
            headers = {"Authorization": f"Bearer {read_token(ozone.token, base)}"}
            if ozone.labeler is not None:
                headers["atproto-proxy"] = f"{ozone.labeler}#atproto_labeler"
            return Receiver("ozone", where, HiddenValue(headers), drops_repeats=True)

        return lambda verdict, _text: ozone_event(verdict, ozone), to_ozone
    raise Refused(f"{config_file}: has no section [export.{name}]; the guide “Give flags to other systems” shows one")

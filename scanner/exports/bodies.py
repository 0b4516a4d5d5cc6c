"""Forms of a verdict that other systems take.

- ROOST Coop: `POST /api/v1/report` (docs/api/report.md of roostorg/coop);
- Ozone: `tools.ozone.moderation.emitEvent` (the lexicon of bluesky-social/atproto);
- Label Studio: tasks of its JSON import, with marked characters as predictions (labelstud.io/guide/predictions);
- a table for spreadsheets, in which no cell is a formula.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from scanner.errors import Refused
from scanner.printable import cell
from schemas.config import CoopConfig, OzoneConfig
from schemas.verdict import AccountVerdict, Verdict

COLUMNS = (
    *("id", "doc_id", "account_id", "created_at", "user_id", "naming", "key_id", "log10_p_global", "log10_p_shown"),
    *("messages_tested", "keys_tested", "proof", "audit", "path", "row", "text_sha256", "scan_id", "scanned_at"),
    "replay",
)
ACCOUNT_COLUMNS = (
    *(
        "id",
        "account_id",
        "night",
        "nights",
        "posts",
        "texts",
        "first_post",
        "last_post",
        "user_id",
        "naming",
        "key_id",
    ),
    *("quoted_share", "log10_p_global", "messages_tested", "tests", "audit", "scan_id", "scanned_at", "explain"),
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
    return _lines((COLUMNS, *map(_row, verdicts)))


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
    return [cell(flat[name]) for name in COLUMNS]

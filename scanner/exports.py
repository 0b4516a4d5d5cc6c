"""Export flags: one neutral record a flag, and forms that other systems read.

- Label Studio: tasks of its JSON import, with marked characters as predictions (labelstud.io/guide/predictions).
- A table for spreadsheets, in which no cell is a formula.
"""

import csv
import hashlib
import io
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found
from scanner.looks.marked_account import AccountExplanation
from scanner.looks.marked_accounts import account_look
from scanner.printable import cell, safe
from scanner.results.decision_log import users_of
from scanner.results.flags import flag_id
from scanner.results.shown_p_values import log10_p_shown
from schemas.verdict import AccountVerdict, Verdict, VerdictDocument, VerdictKey, VerdictP, VerdictSpan


def verdict_of(explained: Explanation, config: str) -> Verdict:
    """Return the record of a flag.

    config: the file or folder that names its results, for the command that replays it.
    """
    row, scan = explained.row, explained.case.scan
    keys: list[dict[str, Any]] = (scan or {}).get("keys", [])
    key = next((scan_key for scan_key in keys if scan_key["key_id"] == row["key_id"]), {})
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
        checked=explained.not_checked is None,
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
    """Return the record of a marked account.

    config: as for `verdict_of`.
    """
    row, look = explained.row, account_look()
    identity = hashlib.sha256(f"{row['account_id']}\n{row['night']}\n{row['keys']}".encode()).hexdigest()[:32]
    row_fields = AccountVerdict.model_fields.keys() & row.keys() - {"named"}
    return AccountVerdict(
        id=f"brickscan-account-{identity}",
        **{field: row[field] for field in row_fields},
        named=tuple(look.users_named(row)),
        checked=explained.not_checked is None,
        says=tuple(f"{heading}: {safe(sentence)}" for heading, sentence in look.what_was_found(explained)),
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


def label_studio_task(verdict: Verdict, text: str) -> dict[str, Any]:
    """Make a Label Studio task.

    Its labelling has `<Labels name="label" toName="text">` with a label `marked`, and `<Text name="text">`. Its
    predictions are the marked parts, or the whole text if no part was tested. They have no score, because a p-value is
    no probability that the label is right.
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
    """Write a table with a header, one line at a time. No cell is a formula."""
    return _lines((VERDICT_COLUMNS, *map(_row, verdicts)))


def account_csv_lines(accounts: Iterable[AccountVerdict]) -> Iterable[str]:
    """Write the same table of marked accounts."""
    rows = ([cell(verdict.model_dump(mode="json")[name]) for name in ACCOUNT_COLUMNS] for verdict in accounts)
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

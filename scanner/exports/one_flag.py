"""The neutral records of a flag and of a marked account (schemas.verdict)."""

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any

from scanner.evidence import account_page
from scanner.evidence.explanation import Explanation
from scanner.evidence.marked_accounts import AccountExplained
from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found
from scanner.printable import safe
from scanner.results.decided import users_of
from scanner.results.strength import log10_p_shown
from schemas.verdict import AccountVerdict, Verdict, VerdictDocument, VerdictKey, VerdictP, VerdictSpan


def item_id(row: Mapping[str, Any]) -> str:
    """Id of a flag in other systems, made from a document and its text: the same in every scan."""
    identity = f"{row['path']}\n{row['row']}\n{row['text_sha256'].hex()}"
    return f"brickscan-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def verdict_of(explained: Explanation, config: str) -> Verdict:
    """The record of a flag; config: the file or folder that names its results, for the command that replays it."""
    row, scan = explained.row, explained.case.scan
    keys: list[dict[str, Any]] = (scan or {}).get("keys", [])
    key = next((one for one in keys if one["key_id"] == row["key_id"]), {})
    return Verdict(
        id=item_id(row),
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
            **{name: row[name] for name in ("log10_p", "log10_p_global", "messages_tested", "keys_tested", "basis")},
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


def account_verdict_of(explained: AccountExplained, config: str) -> AccountVerdict:
    """The record of a marked account; config: as of `verdict_of`."""
    row = explained.row
    identity = hashlib.sha256(f"{row['account_id']}\n{row['night']}\n{row['keys']}".encode()).hexdigest()[:32]
    same = AccountVerdict.model_fields.keys() & row.keys() - {"named"}
    return AccountVerdict(
        id=f"brickscan-account-{identity}",
        **{field: row[field] for field in same},
        named=tuple(account_page.users_named(row)),
        registry_agrees=explained.registry.agrees,
        says=tuple(f"{heading}: {safe(sentence)}" for heading, sentence in account_page.what_was_found(explained)),
        does_not_say=DOES_NOT_SAY,
        explain=shlex.join(
            ["brickscan", "explain", config, "--date", row["night"], "--account", "--", row["account_id"]]
        ),
    )

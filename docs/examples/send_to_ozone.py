"""Report flagged accounts to Ozone, each flag once: python docs/examples/send_to_ozone.py VERDICTS

VERDICTS: what `brickscan export CONFIG` printed, a JSON object a line. The environment says where to and as whom:
OZONE_URL, of the server that takes its calls, such as https://pds.example; OZONE_TOKEN, an access token of the
moderator; OZONE_MODERATOR, their DID; and OZONE_LABELER, the DID of the Ozone behind a PDS (leave it out to call Ozone
itself).

Ozone drops an `externalId` that it has (tools.ozone.moderation.emitEvent in the lexicon of bluesky-social/atproto), so
the same file may be sent again. It knows accounts by DID: the document's account must be one, or its id an at:// URI of
one. Needs Python alone.
"""

import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def setting(name: str) -> str:
    """Read a variable of the environment. Exits: it is not set, or is no word of visible ASCII; says only its name."""
    value = os.environ.get(name, "").strip()
    if not re.fullmatch(r"[!-~]+", value):
        sys.exit(f"the environment variable {name} is not set, or is more than a word of visible ASCII")
    return value


def checked(url: str) -> str:
    """Read a URL to which a token may go. Exits: it is neither https nor of this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or not (parts.scheme == "https" or local):
        sys.exit(f"{url}: https://… is needed, or http:// of this machine")
    return url.rstrip("/")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could take the token elsewhere."""

    def redirect_request(self, *_arguments: object, **_named: object) -> None:
        """Return nothing: the redirect is an error then."""


def post(url: str, headers: dict[str, str], body: dict[str, Any]) -> str:
    """Say what became of a report: sent, sent before or refused. Exits: the server cannot be reached, or fails."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"} | headers)  # noqa: S310 - checked
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=30):
            return "sent"
    except urllib.error.HTTPError as error:
        if b"DuplicateExternalId" in error.read(64 * 1024):
            return "sent before"
        if 400 <= error.code < 500 and error.code not in (401, 403, 429):
            return "refused"
        sys.exit(f"{url}: answered {error.code}; run this again when that is mended")
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"{url}: cannot be reached ({error}); run this again later")


def event(verdict: dict[str, Any]) -> dict[str, Any] | None:
    """Return a report on the account that posted the document; None: neither the account nor the document has a DID."""
    account, uri = verdict["document"]["account_id"] or "", verdict["document"]["doc_id"] or ""
    did = account if account.startswith("did:") else uri.removeprefix("at://").partition("/")[0]
    if not did.startswith("did:"):
        return None
    sentences = [one for one in verdict["says"] if one.startswith(("Marked for", "How seldom", "Audit"))]
    why = f"{'. '.join(sentences)}. This does not say {verdict['does_not_say'][0]}."
    return {
        "event": {
            "$type": "tools.ozone.moderation.defs#modEventReport",
            "reportType": "com.atproto.moderation.defs#reasonOther",
            "comment": f"{uri} {why}".strip(),
        },
        "subject": {"$type": "com.atproto.admin.defs#repoRef", "did": did},
        "createdBy": setting("OZONE_MODERATOR"),
        "externalId": verdict["id"],
        "modTool": {"name": "brickscan"},
    }


def send(verdicts: Path) -> int:
    """Send all verdicts. Returns the exit code: 1 where one was refused or has no DID."""
    url = f"{checked(setting('OZONE_URL'))}/xrpc/tools.ozone.moderation.emitEvent"
    headers = {"Authorization": f"Bearer {setting('OZONE_TOKEN')}"}
    if labeler := os.environ.get("OZONE_LABELER"):
        headers["atproto-proxy"] = f"{labeler}#atproto_labeler"
    counts = dict.fromkeys(("sent", "sent before", "refused", "without a DID"), 0)
    for verdict in map(json.loads, verdicts.read_bytes().splitlines()):
        body = event(verdict)
        counts["without a DID" if body is None else post(url, headers, body)] += 1
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no flags")
    return int(counts["refused"] + counts["without a DID"] > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(send(Path(sys.argv[1])))

"""Report flags to ROOST Coop, each once: python docs/examples/send_to_coop.py VERDICTS LEDGER

VERDICTS: what `brickscan export CONFIG` printed, a JSON object a line. LEDGER: a file of what was sent; made when it
is missing. The environment says where to and as whom: COOP_URL, such as https://coop.example; COOP_API_KEY;
COOP_ITEM_TYPE, Coop's id of an item type whose fields document, account and verdict are strings; COOP_REPORTER_TYPE,
Coop's id of a user type.

Coop does not promise to drop repeats (docs/api/report.md of roostorg/coop), so a line `sending ID` goes to the disk
before each report, and `sent ID` or `refused ID` after it. Where a run was killed in between, nobody knows whether the
report arrived: it is not sent again. Look for the id in Coop, and delete its line if it is not there. Needs Python
alone.
"""

import fcntl
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


def post(url: str, headers: dict[str, str], body: dict[str, Any]) -> int:
    """Return the status that a server answers. Exits: it cannot be reached, or fails."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"} | headers)  # noqa: S310 - checked
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        if 400 <= error.code < 500:
            return error.code
        sys.exit(f"{url}: answered {error.code}; run this again when that is mended")
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"{url}: cannot be reached ({error}); run this again later")


def report(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a report. Coop shows the post by its document; add the text to `data` if its type has one."""
    document = verdict["document"]
    sentences = [one for one in verdict["says"] if one.startswith(("Marked for", "How seldom", "Audit"))]
    return {
        "reporter": {"kind": "user", "typeId": setting("COOP_REPORTER_TYPE"), "id": "brickscan"},
        "reportedAt": verdict["scanned_at"],
        "reportedForReason": {"reason": f"{'. '.join(sentences)}. This does not say {verdict['does_not_say'][0]}."},
        "reportedItem": {
            "id": verdict["id"],
            "typeId": setting("COOP_ITEM_TYPE"),
            "data": {
                "document": document["doc_id"] or f"{document['path']}:{document['row']}",
                "account": document["account_id"] or "",
                "verdict": json.dumps(verdict),
            },
        },
    }


def send(verdicts: Path, ledger: Path) -> int:
    """Send what the ledger does not have. Returns the exit code: 1 where a report was refused or is in doubt."""
    url, headers = f"{checked(setting('COOP_URL'))}/api/v1/report", {"X-API-KEY": setting("COOP_API_KEY")}
    counts = dict.fromkeys(("sent", "sent before", "refused", "in doubt"), 0)
    with ledger.open("a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # a second run waits, and then sees what this one sent
        file.seek(0)
        lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):  # the machine stopped in it, and so before that report
            file.write("\n")
            del lines[-1]
        states = {name: state for state, name in map(str.split, lines)}

        def record(state: str, name: str) -> None:
            states[name] = state
            file.write(f"{state} {name}\n")
            file.flush()
            os.fsync(file.fileno())

        for verdict in map(json.loads, verdicts.read_bytes().splitlines()):
            name = verdict["id"]
            if states.get(name) in ("sent", "sending"):
                counts["sent before" if states[name] == "sent" else "in doubt"] += 1
                continue
            body = report(verdict)
            record("sending", name)
            status = post(url, headers, body)
            state = "sent" if status < 300 else "refused"
            record(state, name)
            counts[state] += 1
            if status in (401, 403, 429):
                sys.exit(f"{url}: answered {status}; run this again when that is mended")
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no flags")
    return int(counts["refused"] + counts["in doubt"] > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(send(Path(sys.argv[1]), Path(sys.argv[2])))

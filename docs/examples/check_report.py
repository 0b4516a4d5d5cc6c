"""Check a report of a detector: python check_report.py REPORT TEXT SIGNPOST

REPORT: report.json as the page gives it, or the field `report` of an answer. TEXT: a file with the very bytes that were
asked about; of a file, the field `text` of the answer. SIGNPOST: the detector's /.well-known/ai-provenance, fetched
from the detector's address, or from a copy that you trust. Of `brickscan probe`, these are probe.report.json,
probe.json and probe.keys.json.
Needs Python and the package `cryptography`. Says what the report states, or why it states nothing.
"""

import base64
import hashlib
import json
import sys
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

TYPE = "brickscan detector report 1"
TYPE_OF_PROBES = "brickscan probe report 1"
RESULTS = ("found", "not found", "cannot tell", "too short")


def check(report: bytes, text: bytes, signpost: bytes) -> dict[str, object]:
    """Return the statement of a report about a text. Raises ValueError: why the report is not good."""
    signed = json.loads(report)
    if not isinstance(signed, dict) or set(signed) != {"statement", "signature"}:
        raise ValueError("a report has a statement and a signature, and nothing else: of an answer, its field `report`")
    statement = json.loads(signed["statement"])
    if not isinstance(statement, dict) or statement.get("type") not in (TYPE, TYPE_OF_PROBES):
        raise ValueError(f"this is no {TYPE!r}")
    if statement["type"] == TYPE and statement.get("result") not in RESULTS:
        raise ValueError(f"this is no {TYPE!r}")
    key = next((key for key in json.loads(signpost)["signingKeys"] if key["key_id"] == statement["signing_key"]), None)
    if key is None:
        raise ValueError("its signing key is none of the detector's")
    public = load_pem_public_key(key["public_key"].encode())
    if not isinstance(public, Ed25519PublicKey):
        raise ValueError("its signing key is not of Ed25519")
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    if hashlib.sha256(raw).hexdigest()[:32] != key["key_id"]:
        raise ValueError("the id of its signing key belongs to another key")
    try:
        signature = base64.b64decode(signed["signature"], validate=True)
        public.verify(signature, signed["statement"].encode())
    except (InvalidSignature, ValueError):
        raise ValueError("its signature is wrong: somebody changed or made it") from None
    if base64.b64encode(signature).decode() != signed["signature"]:
        raise ValueError("its signature is written in another way than the detector writes it")
    if key["revoked_at"] is not None:
        raise ValueError(f"its signing key was revoked on {key['revoked_at']}: anybody may have made it")
    signs_from, until = datetime.fromisoformat(key["signs_from"]), key["signs_until"]
    time = datetime.fromisoformat(statement["time"])
    if time < signs_from or (until is not None and time > datetime.fromisoformat(until)):
        raise ValueError("its signing key did not sign at its time")
    if hashlib.sha256(text).hexdigest() != statement["text_sha256"]:
        raise ValueError("it is about another text, or the text's bytes were changed (line ends, a byte-order mark)")
    return statement


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        found = check(*(Path(name).read_bytes() for name in sys.argv[1:4]))
    except OSError as error:
        sys.exit(f"{error.filename}: cannot be read ({error.strerror})")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        sys.exit(f"not good: {error}")
    print("good:", json.dumps(found, indent=1))

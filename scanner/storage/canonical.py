"""One text for a JSON value, whatever the order of its keys, and the digest of that text."""

import hashlib
import json


def canonical(value: object) -> str:
    """JSON with sorted keys."""
    return json.dumps(value, sort_keys=True)


def digest(value: object) -> str:
    """SHA-256 of the canonical text, as hexadecimal text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()

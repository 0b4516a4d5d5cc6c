"""One text for a value of JSON, whatever order its keys were written in, and its digest."""

import hashlib
import json


def canonical(value: object) -> str:
    """JSON with sorted keys."""
    return json.dumps(value, sort_keys=True)


def digest(value: object) -> str:
    """SHA-256 of the canonical text, as hexadecimal text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()

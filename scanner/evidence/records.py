"""A flag explained, as JSON holds it: the numbers, the sentences, and where in the text the evidence stands."""

import math
from typing import Any

from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found
from scanner.printable import safe

_FIELDS = (
    *("path", "row", "doc_id", "account_id", "key_id", "message", "user_id", "naming", "scan_id", "audit", "proof"),
    *("log10_p_global", "tokens", "scored", "messages_tested", "keys_tested"),
)


def record_of(explained: Explanation) -> dict[str, Any]:
    """What json.dumps takes; numbers that are none are null. begin and end count characters of the text."""
    row, weighed = explained.row, explained.weighed
    return {
        **{name: row[name] for name in _FIELDS},
        "text_sha256": row["text_sha256"].hex(),
        "expected_by_chance": explained.expected,
        "false_flags_expected": explained.false_flags,
        "carried_by": explained.carried_by,
        "parts": [{name: _plain(value) for name, value in part._asdict().items()} for part in explained.said_of_parts],
        "runs": [{"begin": one.begin, "end": one.end, "level": one.level} for one in weighed.runs] if weighed else [],
        "no_text": explained.no_text,
        "says": [{"heading": heading, "sentence": safe(sentence)} for heading, sentence in what_was_found(explained)],
        "does_not_say": list(DOES_NOT_SAY),
    }


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""A flag explained, in the form of JSON: the numbers, the sentences, and where in the text the evidence stands."""

import math
from typing import Any

from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found
from scanner.printable import safe
from scanner.results.strength import log10_p_shown

_FIELDS = (
    *("path", "row", "doc_id", "account_id", "key_id", "message", "user_id", "naming", "scan_id", "audit", "proof"),
    *("log10_p_global", "tokens", "scored", "messages_tested", "keys_tested", "unit"),
)


_OF_SPANS = (
    *("char_from", "char_to", "tokens", "scored", "quoted", "key_id", "message", "user_id", "naming", "proof"),
    *("form", "log10_p_in_document", "log10_p_global"),
)


def record_of(explained: Explanation) -> dict[str, Any]:
    """A record for json.dumps; missing numbers are null. begin and end count characters of the text."""
    row, weighed = explained.row, explained.weighed
    return {
        **{name: row[name] for name in _FIELDS},
        "text_sha256": row["text_sha256"].hex(),
        "generator": explained.generator,
        "held_by": explained.key.held_by if explained.key else None,
        "log10_p_shown": log10_p_shown(row),
        "expected_by_chance_at_most": explained.expected,
        "false_flags_expected_at_most": explained.false_flags,
        "registry_agrees": explained.registry.agrees,
        "name": None
        if explained.alone is None
        else explained.alone._asdict() | {"log10_p": _plain(explained.log10_p_own)},
        "carried_by": explained.carried_by,
        "parts": [{name: _plain(value) for name, value in part._asdict().items()} for part in explained.said_of_parts],
        "spans": [{name: span[name] for name in _OF_SPANS} for span in explained.spans],
        "copied": None if explained.copied is None else explained.copied._asdict(),
        "runs": [{"begin": one.begin, "end": one.end, "level": one.level} for one in weighed.runs] if weighed else [],
        "no_text": explained.no_text,
        "not_weighed": explained.not_weighed,
        "text_not_from_file": explained.not_from_file,
        "says": [{"heading": heading, "sentence": safe(sentence)} for heading, sentence in what_was_found(explained)],
        "does_not_say": list(DOES_NOT_SAY),
    }


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Read SynthID's configuration in transformers: its format, the parameters, and its keys.

Fields that decide only which tokens are marked, but no draw, are accepted and left out.
"""

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.stacks.stack import Configuration, Fields, StackKey, refuse_unknown, select, whole_number
from scanner.watermark.stacks.synthid.format import SynthIdTableFormat, not_drawn

_FIELDS = ("ngram_len", "sampling_table_size", "sampling_table_seed")
_MARKING = {"context_history_size", "skip_first_ngram_calls", "debug_mode"}


def _read(fields: Fields) -> StackKey:
    refuse_unknown(fields, "SynthID", {"keys", *_FIELDS} | _MARKING)
    keys = fields["keys"]
    if not isinstance(keys, list) or not keys:
        raise ValueError("field 'keys': a list of numbers is needed")
    parameters = select(fields, _FIELDS) | {"depth": len(keys)}
    secret = b"".join(whole_number(key, "keys") for key in keys)
    if not_drawn(keys):
        parameters["published"] = True
    return StackKey(SynthIdTableFormat.name, parameters, HiddenValue(secret))


CONFIGURATION = Configuration("'keys', of SynthID in transformers", lambda fields: "keys" in fields, _read)

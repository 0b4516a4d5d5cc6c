"""SBW's `vllm_xargs` of a request: the parameters of its format, and its hash key. `delta` decides no draw."""

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.stacks.sbw.format import SbwFormat, read_scheme
from scanner.watermark.stacks.stack import Configuration, Fields, StackKey, refuse_unknown, select, whole_number


def _read(fields: Fields) -> StackKey:
    refuse_unknown(fields, "SBW", {"hash_key", "seeding_scheme", "gamma", "delta"})
    try:
        parameters = read_scheme(fields.get("seeding_scheme", "gpu-fused-selfhash-fullvocab"))
    except ValueError as error:
        raise ValueError(f"field 'seeding_scheme': {error}") from None
    key = whole_number(fields["hash_key"], "hash_key")
    return StackKey(SbwFormat.name, parameters | select(fields, ("gamma",)), HiddenValue(key))


CONFIGURATION = Configuration("'hash_key', of SBW", lambda fields: "hash_key" in fields, _read)

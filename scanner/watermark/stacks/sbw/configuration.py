"""Read SBW's `vllm_xargs` of a request, and vLLM's `watermark_config` of algorithm `sbw`: parameters, and the hash key.

`delta` decides no draw, and neither do vLLM's fields on which tokens are marked.
"""

from typing import Any

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.stacks.sbw.format import SbwFormat, read_scheme
from scanner.watermark.stacks.stack import Configuration, Fields, StackKey, refuse_unknown, select, whole_number

_MARKING = {"deduplicate_contexts", "deduplicate_contexts_max_history", "allow_target_only_watermarking", "prf"}
_WITHIN_VLLM = {"selfhash": ("selfhash", 4), "lefthash": ("additive", 1)}
"""Our seeding, and the default width, for each value of the field `sbw_scheme`."""


def _read(fields: Fields) -> StackKey:
    if fields.get("algorithm") == "sbw":
        return _read_within_vllm(fields)
    refuse_unknown(fields, "SBW", {"hash_key", "seeding_scheme", "gamma", "delta"})
    try:
        parameters = read_scheme(fields.get("seeding_scheme", "gpu-fused-selfhash-fullvocab"))
    except ValueError as error:
        raise ValueError(f"field 'seeding_scheme': {error}") from None
    key = whole_number(fields["hash_key"], "hash_key")
    return StackKey(SbwFormat.name, parameters | select(fields, ("gamma",)), HiddenValue(key))


def _read_within_vllm(fields: Fields) -> StackKey:
    known = {"key", "algorithm", "context_width", "sbw_scheme", "sbw_gamma", "sbw_delta"}
    refuse_unknown(fields, "SBW within vLLM", known | _MARKING)
    scheme = fields.get("sbw_scheme", "selfhash")
    if scheme not in list(_WITHIN_VLLM):
        raise ValueError(f"field 'sbw_scheme': allowed are {', '.join(_WITHIN_VLLM)}")
    seeding, width = _WITHIN_VLLM[scheme]
    parameters: dict[str, Any] = {"seeding": seeding, "context_width": width} | select(fields, ("context_width",))
    if fields.get("sbw_gamma") is not None:
        parameters["gamma"] = fields["sbw_gamma"]
    return StackKey(SbwFormat.name, parameters, HiddenValue(whole_number(fields.get("key"), "key")))


CONFIGURATION = Configuration(
    "'hash_key', of SBW", lambda fields: "hash_key" in fields or fields.get("algorithm") == "sbw", _read
)

"""Read vLLM's `watermark_config`: its format, the parameters, and its key.

Fields that decide only which tokens are marked, but no draw, are accepted and left out. TensorRT-LLM also has a mark
named `gumbel`, whose draws were not compared with vLLM's. A configuration that may be either is refused.
"""

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.stacks.stack import Configuration, Fields, StackKey, refuse_unknown, select
from scanner.watermark.stacks.vllm.format import VllmDualKeyFormat, VllmGumbelFormat

_FORMATS = {"gumbel": VllmGumbelFormat.name, "dual_key_gumbel": VllmDualKeyFormat.name}
_FIELDS = {"key", "algorithm", "alpha", "context_width", "prf"}
_MARKING = {"deduplicate_contexts", "deduplicate_contexts_max_history", "allow_target_only_watermarking"}
_OF_VLLM_ALONE = _MARKING | {"prf"}


def _read(fields: Fields) -> StackKey:
    refuse_unknown(fields, "vLLM", _FIELDS | _MARKING)
    algorithm = fields.get("algorithm", "gumbel")
    if algorithm not in list(_FORMATS):  # `in` a list also works for values that cannot be hashed
        raise ValueError(f"field 'algorithm': allowed are {', '.join(_FORMATS)}")
    if fields.get("algorithm") == "gumbel" and not _OF_VLLM_ALONE & fields.keys():
        raise ValueError(
            "field 'algorithm': 'gumbel' may be vLLM's or TensorRT-LLM's, whose draws may differ; for vLLM's, add "
            '"prf": "philox", its default, or give --format vllm-gumbel and --secret; TensorRT-LLM\'s is not read'
        )
    if fields.get("prf", "philox") != "philox":
        raise ValueError("field 'prf': only philox is supported")
    key = fields["key"]
    if not 0 <= key < 2**64:
        raise ValueError("field 'key': does not fit in 64 bits")
    names = ("context_width", "alpha") if algorithm == "dual_key_gumbel" else ("context_width",)
    return StackKey(_FORMATS[algorithm], select(fields, names), HiddenValue(key.to_bytes(8, "big")))


def _fits(fields: Fields) -> bool:
    is_number = isinstance(fields.get("key"), int) and not isinstance(fields["key"], bool)
    return is_number and fields.get("algorithm") != "sbw"  # such a one is SBW's, also within vLLM


CONFIGURATION = Configuration("'key', a number, as vLLM writes it", _fits, _read)

"""vLLM's Gumbel marks, of one key and of two that are derived from it."""

from scanner.watermark.stacks.stack import CaseGroup, Stack
from scanner.watermark.stacks.vllm.configuration import CONFIGURATION
from scanner.watermark.stacks.vllm.format import VllmDualKeyFormat, VllmGumbelFormat

STACK = Stack(
    (VllmGumbelFormat, VllmDualKeyFormat),
    {
        "vllm_gumbel": CaseGroup(lambda case: case.get("algorithm") == "gumbel"),
        "vllm_dual_key": CaseGroup(lambda case: case.get("algorithm") == "dual_key_gumbel"),
        "vllm_words": CaseGroup(lambda case: {"contexts", "words"} <= case.keys() and "stream" not in case),
        "vllm_sub_keys": CaseGroup(lambda case: {"key_a", "key_b"} <= case.keys()),
    },
    CONFIGURATION,
)

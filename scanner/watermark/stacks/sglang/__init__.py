"""SGLang's marks: of one key, of two between which a coin chooses, and of a key for each user."""

from scanner.watermark.stacks.sglang.configuration import CONFIGURATION
from scanner.watermark.stacks.sglang.format import SglangOneKeyFormat, SglangTwoKeysFormat
from scanner.watermark.stacks.sglang.user_keys import SglangUserKeysFormat
from scanner.watermark.stacks.stack import CaseGroup, Stack

STACK = Stack(
    (SglangOneKeyFormat, SglangTwoKeysFormat, SglangUserKeysFormat),
    {
        "sglang_hashes": CaseGroup(lambda case: "token_hashes" in case),
        "sglang_coins": CaseGroup(lambda case: "coin" in case),
        "sglang_one_key": CaseGroup(lambda case: "context_window" in case and "key_b" not in case),
        # a maker's case has one key's scores, and the group is checked under both
        "sglang_two_keys": CaseGroup(lambda case: {"context_window", "key_b"} <= case.keys(), ("token_scores",)),
    },
    CONFIGURATION,
)

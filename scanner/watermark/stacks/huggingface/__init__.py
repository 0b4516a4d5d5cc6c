"""The green lists of transformers.

Their seeds come from the token before, or from the smallest hash of several tokens.
"""

from scanner.watermark.stacks.huggingface.configuration import CONFIGURATION
from scanner.watermark.stacks.huggingface.format import KgwLefthashFormat, KgwSelfhashFormat
from scanner.watermark.stacks.stack import CaseGroup, Stack

STACK = Stack(
    (KgwLefthashFormat, KgwSelfhashFormat),
    {
        "hf_lefthash": CaseGroup(lambda case: case.get("seeding_scheme") == "lefthash"),
        "hf_selfhash": CaseGroup(lambda case: case.get("seeding_scheme") == "selfhash"),
    },
    CONFIGURATION,
)

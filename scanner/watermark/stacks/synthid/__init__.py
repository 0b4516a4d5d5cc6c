"""SynthID-Text's marks, by the table of transformers and by the mixed bits of the published code."""

from scanner.watermark.stacks.stack import CaseGroup, Stack
from scanner.watermark.stacks.synthid.configuration import CONFIGURATION
from scanner.watermark.stacks.synthid.format import SynthIdMixedFormat, SynthIdTableFormat

STACK = Stack(
    (SynthIdTableFormat, SynthIdMixedFormat),
    {
        "synthid_table": CaseGroup(lambda case: case.get("variant") == "hf_table"),
        "synthid_mixed": CaseGroup(lambda case: case.get("variant") == "gdm_iv"),
    },
    CONFIGURATION,
)

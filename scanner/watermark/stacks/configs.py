"""Read the configuration of any stack: its format, the parameters, and its key."""

import json

from scanner.watermark.formats import STACKS
from scanner.watermark.stacks.stack import StackKey

_WITHIN = ("watermarking_config", "watermark_config")
"""Fields that hold the watermark in a generation_config.json of transformers, or in a whole configuration of vLLM."""


def read_config(text: str) -> StackKey:
    """Read the JSON of a vLLM `watermark_config`, an SGLang watermark file, or a configuration of transformers or SBW.

    A whole configuration that contains one of these, such as a generation_config.json, is read too.

    Raises:
        ValueError: it is none of these. The message names the field, and repeats no value of a key.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # also a number of thousands of digits, and JSON that is nested as deeply
        raise ValueError("is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    for name in _WITHIN:
        if name in fields:
            fields = fields[name]
            if not isinstance(fields, dict):
                raise ValueError(
                    f"field {name!r}: an object is needed, as the stack writes it; this value says that nothing is "
                    "marked"
                )
            break
    configurations = [stack.configuration for stack in STACKS if stack.configuration is not None]
    for configuration in configurations:
        if configuration.fits(fields):
            return configuration.read(fields)
    keys = "; ".join(configuration.key for configuration in configurations)
    raise ValueError(f"a field with the key is needed, one of these: {keys}")

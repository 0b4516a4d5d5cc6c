"""FORMATS: every watermark format that is read, one entry each."""

from collections.abc import Mapping
from typing import Any

from scanner.watermark.format import Format
from scanner.watermark.native.version1 import GreenListFormat, GumbelFormat
from scanner.watermark.native.version2 import GreenListFormat2, GumbelFormat2
from scanner.watermark.stacks.huggingface.format import KgwLefthashFormat, KgwSelfhashFormat
from scanner.watermark.stacks.sglang.format import SglangOneKeyFormat, SglangTwoKeysFormat
from scanner.watermark.stacks.sglang.user_keys import SglangUserKeysFormat
from scanner.watermark.stacks.synthid.format import SynthIdMixedFormat, SynthIdTableFormat
from scanner.watermark.stacks.three_bricks.format import ThreeBricksMarylandFormat, ThreeBricksOpenaiFormat
from scanner.watermark.stacks.vllm.format import VllmDualKeyFormat, VllmGumbelFormat
from schemas.registry import MasterKey

FORMATS: dict[str, type[Format]] = {
    entry.name: entry
    for entry in (
        GreenListFormat,
        GumbelFormat,
        GreenListFormat2,
        GumbelFormat2,
        VllmGumbelFormat,
        VllmDualKeyFormat,
        SglangOneKeyFormat,
        SglangTwoKeysFormat,
        SglangUserKeysFormat,
        KgwLefthashFormat,
        KgwSelfhashFormat,
        SynthIdTableFormat,
        SynthIdMixedFormat,
        ThreeBricksOpenaiFormat,
        ThreeBricksMarylandFormat,
    )
}
"""Every format by its name."""


def format_of(key: MasterKey) -> Format:
    """The format of a key on record, with its parameters.

    Raises:
        ValueError: as `make_format`.
    """
    return make_format(key.format, key.parameters)


def generator_of(name: str) -> str | None:
    """The stack's generator whose random numbers the named format reads; None where the device makes no difference."""
    return FORMATS[name].generator if name in FORMATS else None


def make_format(name: str, parameters: Mapping[str, Any]) -> Format:
    """Make a format from its name and parameters.

    Raises:
        ValueError: no format of that name; pydantic.ValidationError, which is one: a parameter that is not allowed.
    """
    if name not in FORMATS:
        # The name is not repeated: somebody may have pasted a secret in its place.
        raise ValueError(f"its format is unknown; allowed: {', '.join(FORMATS)}")
    return FORMATS[name].model_validate(dict(parameters))

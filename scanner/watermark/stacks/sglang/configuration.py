"""Read SGLang's watermark file: its format, the parameters, and its key or two.

Fields that decide only which tokens are marked, but no draw, are accepted and left out.
"""

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.stacks.sglang.format import SglangOneKeyFormat, SglangTwoKeysFormat, parse_key
from scanner.watermark.stacks.stack import Configuration, Fields, StackKey, refuse_unknown, select

_FIELDS = {"key", "key_b", "context_window", "mixing_probability"}
_MARKING = {"max_probability", "default_enabled", "enforce_all"}


def _read(fields: Fields) -> StackKey:
    refuse_unknown(fields, "SGLang", _FIELDS | _MARKING)
    two = fields.get("key_b") is not None
    secret = b""
    for name in ("key", "key_b")[: 1 + two]:
        try:
            secret += parse_key(fields[name]).to_bytes(8, "big")
        except (ValueError, AttributeError):
            raise ValueError(f"field {name!r}: is not 1 to 16 hexadecimal digits") from None
    names = ("context_window", "mixing_probability") if two else ("context_window",)
    form = SglangTwoKeysFormat if two else SglangOneKeyFormat
    return StackKey(form.name, select(fields, names), HiddenValue(secret))


CONFIGURATION = Configuration(
    "'key', hexadecimal text, as SGLang writes it", lambda fields: isinstance(fields.get("key"), str), _read
)

"""Read transformers' WatermarkingConfig: its format, the parameters, and its hashing key."""

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.stacks.huggingface.format import KgwLefthashFormat, KgwSelfhashFormat
from scanner.watermark.stacks.stack import Configuration, Fields, StackKey, refuse_unknown, select, whole_number

_FORMATS = {"lefthash": KgwLefthashFormat.name, "selfhash": KgwSelfhashFormat.name}
_FIELDS = ("greenlist_ratio", "context_width")


def _read(fields: Fields) -> StackKey:
    # `bias` decides how strong the mark is, but no draw
    refuse_unknown(fields, "transformers' WatermarkingConfig", {"hashing_key", "seeding_scheme", *_FIELDS, "bias"})
    scheme = fields.get("seeding_scheme", "lefthash")
    if scheme not in list(_FORMATS):
        raise ValueError(f"field 'seeding_scheme': allowed are {', '.join(_FORMATS)}")
    key = whole_number(fields["hashing_key"], "hashing_key")
    return StackKey(_FORMATS[scheme], select(fields, _FIELDS), HiddenValue(key))


CONFIGURATION = Configuration("'hashing_key', of transformers", lambda fields: "hashing_key" in fields, _read)

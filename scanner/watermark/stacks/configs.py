"""Configurations of vLLM, SGLang, transformers and SBW: which format they make, with which parameters, and their key.

Fields that decide only which tokens are marked, and no draw, are known and left out.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from scanner.errors import did_you_mean
from scanner.watermark.stacks.huggingface.format import KgwLefthashFormat, KgwSelfhashFormat
from scanner.watermark.stacks.sbw.format import SbwFormat, read_scheme
from scanner.watermark.stacks.sglang.format import SglangOneKeyFormat, SglangTwoKeysFormat, parse_key
from scanner.watermark.stacks.shared import HiddenValue
from scanner.watermark.stacks.synthid.format import SynthIdTableFormat, not_drawn
from scanner.watermark.stacks.vllm.format import VllmDualKeyFormat, VllmGumbelFormat

_VLLM = {"gumbel": VllmGumbelFormat.name, "dual_key_gumbel": VllmDualKeyFormat.name}
_VLLM_FIELDS = {"key", "algorithm", "alpha", "context_width", "prf"}
_VLLM_MARKS = {"deduplicate_contexts", "deduplicate_contexts_max_history", "allow_target_only_watermarking"}
_KGW = {"lefthash": KgwLefthashFormat.name, "selfhash": KgwSelfhashFormat.name}
_KGW_FIELDS = ("greenlist_ratio", "context_width")
_SYNTHID_FIELDS = ("ngram_len", "sampling_table_size", "sampling_table_seed")
_SYNTHID_MARKS = {"context_history_size", "skip_first_ngram_calls", "debug_mode"}
_WITHIN = ("watermarking_config", "watermark_config")
"""Fields that hold the watermark in a generation_config.json of transformers, or in a whole configuration of vLLM."""
_SGLANG_FIELDS = {"key", "key_b", "context_window", "mixing_probability"}
_SGLANG_MARKS = {"max_probability", "default_enabled", "enforce_all"}


class StackKey(NamedTuple):
    """A configuration as read; `secret` holds the key's bytes and shows nothing of them."""

    format: str
    parameters: dict[str, Any]
    secret: HiddenValue[bytes]


def read_config(text: str) -> StackKey:
    """Read the JSON of a vLLM `watermark_config`, an SGLang watermark file, or a configuration of transformers or SBW.

    vLLM writes a key as a number, SGLang as hexadecimal text; transformers has a `hashing_key` for green lists, and
    `keys` for SynthID; SBW's `vllm_xargs` of a request have a `hash_key`. A whole configuration that holds one of
    these, such as a generation_config.json, is read too.

    Raises:
        ValueError: it is none of these, with the field; no value of a key is repeated.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # also a number of thousands of digits, and what is nested as deeply
        raise ValueError("is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    for name in _WITHIN:
        if name in fields:
            fields = fields[name]
            if not isinstance(fields, dict):
                raise ValueError(
                    f"field {name!r}: an object is needed, as the stack writes it; it says that nothing is marked"
                )
            break
    if "hashing_key" in fields:
        return _green_lists(fields)
    if "keys" in fields:
        return _synthid(fields)
    if "hash_key" in fields:
        return _sbw(fields)
    key = fields.get("key")
    if isinstance(key, int) and not isinstance(key, bool):
        return _vllm(fields, key)
    if isinstance(key, str):
        return _sglang(fields)
    what = "a number, as vLLM writes it, or hexadecimal text, as SGLang does"
    raise ValueError(
        f"field 'key': {what}, or a 'hashing_key' or 'keys' of transformers, or a 'hash_key' of SBW, is needed"
    )


def _vllm(fields: Mapping[str, Any], key: int) -> StackKey:
    _known(fields, "vLLM", _VLLM_FIELDS | _VLLM_MARKS)
    algorithm = fields.get("algorithm", "gumbel")
    if algorithm not in list(_VLLM):  # which also takes what cannot be hashed
        raise ValueError(f"field 'algorithm': allowed are {', '.join(_VLLM)}")
    if fields.get("prf", "philox") != "philox":
        raise ValueError("field 'prf': philox alone is read")
    if not 0 <= key < 2**64:
        raise ValueError("field 'key': does not fit in 64 bits")
    names = ("context_width", "alpha") if algorithm == "dual_key_gumbel" else ("context_width",)
    return StackKey(_VLLM[algorithm], _given(fields, names), HiddenValue(key.to_bytes(8, "big")))


def _sglang(fields: Mapping[str, Any]) -> StackKey:
    _known(fields, "SGLang", _SGLANG_FIELDS | _SGLANG_MARKS)
    two = fields.get("key_b") is not None
    secret = b""
    for name in ("key", "key_b")[: 1 + two]:
        try:
            secret += parse_key(fields[name]).to_bytes(8, "big")
        except (ValueError, AttributeError):
            raise ValueError(f"field {name!r}: is not 1 to 16 hexadecimal digits") from None
    names = ("context_window", "mixing_probability") if two else ("context_window",)
    form = SglangTwoKeysFormat if two else SglangOneKeyFormat
    return StackKey(form.name, _given(fields, names), HiddenValue(secret))


def _green_lists(fields: Mapping[str, Any]) -> StackKey:
    _known(fields, "transformers' WatermarkingConfig", {"hashing_key", "seeding_scheme", *_KGW_FIELDS, "bias"})
    scheme = fields.get("seeding_scheme", "lefthash")
    if scheme not in list(_KGW):
        raise ValueError(f"field 'seeding_scheme': allowed are {', '.join(_KGW)}")
    key = _whole(fields["hashing_key"], "hashing_key")
    return StackKey(_KGW[scheme], _given(fields, _KGW_FIELDS), HiddenValue(key))


def _sbw(fields: Mapping[str, Any]) -> StackKey:
    _known(fields, "SBW", {"hash_key", "seeding_scheme", "gamma", "delta"})
    try:
        parameters = read_scheme(fields.get("seeding_scheme", "gpu-fused-selfhash-fullvocab"))
    except ValueError as error:
        raise ValueError(f"field 'seeding_scheme': {error}") from None
    key = _whole(fields["hash_key"], "hash_key")
    return StackKey(SbwFormat.name, parameters | _given(fields, ("gamma",)), HiddenValue(key))


def _synthid(fields: Mapping[str, Any]) -> StackKey:
    _known(fields, "SynthID", {"keys", *_SYNTHID_FIELDS} | _SYNTHID_MARKS)
    keys = fields["keys"]
    if not isinstance(keys, list) or not keys:
        raise ValueError("field 'keys': a list of numbers is needed")
    parameters = _given(fields, _SYNTHID_FIELDS) | {"depth": len(keys)}
    secret = b"".join(_whole(key, "keys") for key in keys)
    if not_drawn(keys):
        parameters["published"] = True
    return StackKey(SynthIdTableFormat.name, parameters, HiddenValue(secret))


def _whole(number: object, field: str) -> bytes:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
        raise ValueError(f"field {field!r}: a whole number from 0 on, below 2^63, is needed")
    return number.to_bytes(8, "big")


def _known(fields: Mapping[str, Any], stack: str, names: set[str]) -> None:
    unknown = sorted(set(fields) - names)
    if unknown:
        near = did_you_mean(unknown[0], names)
        raise ValueError(f"field {unknown[0]!r} is unknown to {stack}{near}; known: {', '.join(sorted(names))}")


def _given(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}

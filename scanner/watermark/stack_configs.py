"""Configurations as vLLM and SGLang read them: which format they make, with which parameters, and the key in them.

Fields that decide only which tokens are marked, and no draw, are known and left out.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from scanner.watermark.opened import Held
from scanner.watermark.sglang import SglangOneKeyFormat, SglangTwoKeysFormat, parse_key
from scanner.watermark.vllm import VllmDualKeyFormat, VllmGumbelFormat

_VLLM = {"gumbel": VllmGumbelFormat.name, "dual_key_gumbel": VllmDualKeyFormat.name}
_VLLM_FIELDS = {"key", "algorithm", "alpha", "context_width", "prf"}
_VLLM_MARKS = {"deduplicate_contexts", "deduplicate_contexts_max_history", "allow_target_only_watermarking"}
_SGLANG_FIELDS = {"key", "key_b", "context_window", "mixing_probability"}
_SGLANG_MARKS = {"max_probability", "default_enabled", "enforce_all"}


class StackKey(NamedTuple):
    """What a configuration says; `secret` holds the key's bytes and shows nothing of them."""

    format: str
    parameters: dict[str, Any]
    secret: Held[bytes]


def read_config(text: str) -> StackKey:
    """Read the JSON of a vLLM `watermark_config` or of an SGLang watermark file.

    vLLM writes a key as a number, SGLang as hexadecimal text.

    Raises:
        ValueError: it is neither, by field; no value of a key is repeated.
    """
    try:
        fields = json.loads(text)
    except json.JSONDecodeError:
        raise ValueError("is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    key = fields.get("key")
    if isinstance(key, int) and not isinstance(key, bool):
        return _vllm(fields, key)
    if isinstance(key, str):
        return _sglang(fields)
    raise ValueError("field 'key': a number, as vLLM writes it, or hexadecimal text, as SGLang does, is needed")


def _vllm(fields: Mapping[str, Any], key: int) -> StackKey:
    _known(fields, "vLLM", _VLLM_FIELDS | _VLLM_MARKS)
    algorithm = fields.get("algorithm", "gumbel")
    if algorithm not in _VLLM:
        raise ValueError(f"field 'algorithm': allowed are {', '.join(_VLLM)}")
    if fields.get("prf", "philox") != "philox":
        raise ValueError("field 'prf': philox alone is read")
    if not 0 <= key < 2**64:
        raise ValueError("field 'key': does not fit in 64 bits")
    names = ("context_width", "alpha") if algorithm == "dual_key_gumbel" else ("context_width",)
    return StackKey(_VLLM[algorithm], _given(fields, names), Held(key.to_bytes(8, "big")))


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
    return StackKey(form.name, _given(fields, names), Held(secret))


def _known(fields: Mapping[str, Any], stack: str, names: set[str]) -> None:
    unknown = sorted(set(fields) - names)
    if unknown:
        raise ValueError(f"field {unknown[0]!r} is unknown to {stack}; known: {', '.join(sorted(names))}")


def _given(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}

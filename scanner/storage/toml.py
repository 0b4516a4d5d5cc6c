"""TOML files read into the models of schemas, and one text of a JSON value for its digest."""

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scanner.errors import Refused, did_you_mean
from scanner.printable import cut
from scanner.storage.locations import read_named
from schemas.versions import MADE_BEFORE, VERSION

MOST_PARTS = 32
"""Most parts of a dotted key; tomllib takes quadratic time for more."""

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")
_LONGEST_VALUE = 200

Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path, model: type[Model]) -> Model:
    """Read a TOML file into a model.

    Raises:
        Refused: the file is missing, is not TOML, or holds a value that is not allowed.
    """
    try:
        text = read_named(path).decode()
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); name an existing TOML file") from None
    except UnicodeDecodeError:
        raise Refused(f"{path}: is not UTF-8 text; a TOML file is needed") from None
    return read_toml_text(str(path), text, model)


def read_toml_text(path: str, text: str, model: type[Model]) -> Model:
    """Read the text of a TOML file into a model. Raises Refused as `read_toml` does, naming `path`."""
    if long := _LONG_KEY.search(text):
        line = text.count("\n", 0, long.start()) + 1
        raise Refused(f"{path}: a key in line {line} has more than {MOST_PARTS} parts; no key needs more than three")
    try:
        return model.model_validate(_with_tuples(tomllib.loads(text.replace("\r\n", "\n"))))
    except ValidationError as error:
        raise Refused(f"{path}: {explain_error(error, model)}") from None
    except RecursionError:
        raise Refused(f"{path}: lists or sections are nested too deeply; at most four levels are needed") from None
    except (ValueError, OverflowError) as error:  # numbers of thousands of digits too
        raise Refused(f"{path}: is not valid TOML: {str(error).partition(';')[0]}") from None


def explain_error(error: ValidationError, model: type[BaseModel], within: str = "") -> str:
    """Say in a line what is wrong with the fields of a model. `within` says where the model is, such as `keys.0.`."""
    return "; ".join(_explain(model, item, within) for item in error.errors())


def _with_tuples(value: object) -> object:
    """Return TOML data with its lists made tuples: strict models take no list for a tuple."""
    if isinstance(value, dict):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _explain(model: type[BaseModel], item: ErrorDetails, within: str) -> str:
    where = (within + ".".join(str(part) for part in item["loc"])).removesuffix(".") or "the file as a whole"
    if item["type"] == "extra_forbidden":
        allowed = _fields_at(model, item["loc"])
        return f"field '{where}' is unknown{did_you_mean(str(item['loc'][-1]), allowed)}; allowed: {', '.join(allowed)}"
    if item["type"] == "missing" and where == "version":
        return f"{MADE_BEFORE}; if everything in it is still right, put the line `version = {VERSION}` at its top"
    if item["type"] == "missing":
        return f"field '{where}' is missing"
    hidden = model.model_config.get("hide_input_in_errors") or isinstance(item["input"], dict)
    value = "..." if hidden else _shown(item["input"])
    given = "" if hidden else f" = {value}"
    if item["type"] == "tuple_type":
        return f"field '{where}'{given}: a list is needed, such as [{value}]"
    if item["type"] == "too_short":
        return f"field '{where}'{given}: a list of at least {item['ctx']['min_length']} is needed"
    if item["type"] == "model_type":
        return f"field '{where}'{given}: a section of fields is needed"
    near = ""
    if item["type"] in ("enum", "literal_error") and isinstance(item["input"], str):
        near = did_you_mean(item["input"], re.findall(r"'([^']*)'", item["ctx"]["expected"]))
    return f"field '{where}'{given}: {str(item['msg']).removeprefix('Value error, ')}{near}"


def _shown(value: object) -> str:
    """Return a value as it is written in the file, unless it is long."""
    try:
        text = repr(_with_lists(value))
        return text if len(text) <= _LONGEST_VALUE else cut(text, _LONGEST_VALUE)
    except ValueError:  # Python writes no whole number of thousands of digits
        return "..."


def _with_lists(value: object) -> object:
    if isinstance(value, dict):
        return {name: _with_lists(inner) for name, inner in value.items()}
    return list(map(_with_lists, value)) if isinstance(value, tuple) else value


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        model = _model_in(field.annotation if field else None) or model
    return sorted(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def canonical(value: object) -> str:
    """Return a value as JSON with sorted keys."""
    return json.dumps(value, sort_keys=True)


def digest(value: object) -> str:
    """Return the SHA-256 of the canonical text, as hexadecimal text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()

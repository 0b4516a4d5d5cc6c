"""TOML files read into the models of schemas. An error names file, field, value and what is allowed."""

import tomllib
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scanner.errors import Refused

Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path, model: type[Model]) -> Model:
    """Read a TOML file into a model.

    Raises:
        Refused: the file is missing, is not TOML, or holds a value that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); name an existing TOML file") from None
    except UnicodeDecodeError:
        raise Refused(f"{path}: is not UTF-8 text; a TOML file is needed") from None
    return read_toml_text(str(path), text, model)


def read_toml_text(path: str, text: str, model: type[Model]) -> Model:
    """Read the text of a TOML file into a model; raises Refused as `read_toml` does, naming `path`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{path}: is not valid TOML: {error}") from None
    try:
        return model.model_validate(_with_tuples(data))
    except ValidationError as error:
        raise Refused(f"{path}: {explained(error, model)}") from None


def explained(error: ValidationError, model: type[BaseModel], within: str = "") -> str:
    """What is wrong with the fields of a model, in a line; `within` names where the model stands, such as `keys.0.`."""
    return "; ".join(_explain(model, item, within) for item in error.errors())


def _with_tuples(value: object) -> object:
    """TOML data with its lists made tuples: strict models take no list for a tuple."""
    if isinstance(value, dict):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _explain(model: type[BaseModel], item: ErrorDetails, within: str) -> str:
    where = (within + ".".join(str(part) for part in item["loc"])).removesuffix(".") or "the file as a whole"
    if item["type"] == "extra_forbidden":
        return f"field '{where}' is unknown; allowed: {', '.join(_fields_at(model, item['loc']))}"
    if item["type"] == "missing":
        return f"field '{where}' is missing"
    hidden = model.model_config.get("hide_input_in_errors") or isinstance(item["input"], dict)
    value = "..." if hidden else repr(_with_lists(item["input"]))
    given = "" if hidden else f" = {value}"
    if item["type"] == "tuple_type":
        return f"field '{where}'{given}: a list is needed, such as [{value}]"
    if item["type"] == "too_short":
        return f"field '{where}'{given}: a list of at least {item['ctx']['min_length']} is needed"
    if item["type"] == "model_type":
        return f"field '{where}'{given}: a section of fields is needed"
    return f"field '{where}'{given}: {str(item['msg']).removeprefix('Value error, ')}"


def _with_lists(value: object) -> object:
    """The data before `_with_tuples`, for the people who wrote it."""
    if isinstance(value, dict):
        return {name: _with_lists(inner) for name, inner in value.items()}
    return list(map(_with_lists, value)) if isinstance(value, tuple) else value


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        model = _model_in(field.annotation if field else None) or model
    return sorted(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model of a field, or of the items of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)

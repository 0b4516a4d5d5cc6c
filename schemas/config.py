"""What a scan is told: one TOML file, read into frozen models; an unknown or impossible value is refused by name."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from schemas.registry import KeyId

Dedup = Literal["ngram", "context", "none"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputConfig(_Frozen):
    """Where the documents are, and which columns hold what. Text is needed; the others may be left out."""

    paths: tuple[str, ...] = Field(min_length=1)  # Parquet files or folders; {date} is filled in by --date
    text: str = "text"
    id: str | None = None
    account: str | None = None
    time: str | None = None


class ClusterConfig(_Frozen):
    """Where the work runs: an existing Ray cluster, or one embedded in this process when no address is given."""

    address: str | None = None
    workers: int | None = Field(default=None, ge=1)  # None: one per CPU of the cluster


class ScanConfig(_Frozen):
    """One kind of scan. Relative paths start at the folder of the configuration file."""

    registry: str
    results: str
    false_positive_rate: Annotated[float, Field(gt=0, lt=1)]
    keys: tuple[KeyId, ...] | None = None  # None: every key of the registry
    dedup: Dedup = "ngram"
    min_scored: int = Field(default=16, ge=1)
    max_quarantined_share: Annotated[float, Field(ge=0, le=1)] | None = None
    input: InputConfig
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _keys_are_distinct(self) -> "ScanConfig":
        if self.keys is not None and (not self.keys or len(set(self.keys)) != len(self.keys)):
            raise ValueError("keys must name each key once, at least one; leave it out to test every key")
        return self


class ConfigError(ValueError):
    """A configuration that cannot be right: file, field, value and what is allowed."""


Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path, model: type[Model]) -> Model:
    """Read a TOML file into a model.

    Raises:
        ConfigError: the file is missing, is not TOML, or holds a value that is not allowed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name an existing TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; a TOML file is needed") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_explain(model, item) for item in error.errors())) from None


def _explain(model: type[BaseModel], item: ErrorDetails) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "the file as a whole"
    if item["type"] == "extra_forbidden":
        return f"field '{where}' is unknown; allowed: {', '.join(_fields_at(model, item['loc']))}"
    if item["type"] == "missing":
        return f"field '{where}' is missing"
    value = "" if "secret" in where or isinstance(item["input"], dict) else f" = {item['input']!r}"
    return f"field '{where}'{value}: {str(item['msg']).removeprefix('Value error, ')}"


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return sorted(model.model_fields)

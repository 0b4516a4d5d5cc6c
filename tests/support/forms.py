"""Forms of tables and files: what is frozen of a version. `python -m tests.support.forms` records those of today.

`tests/forms/VERSION.json` has the columns of each table, and the fields of keys.toml, scan.toml and detector.toml.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scanner.storage.data_files import SCHEMAS
from schemas.config import ScanConfig
from schemas.registry import Registry
from schemas.service import DetectorConfig
from schemas.tables import USERS
from schemas.versions import VERSION

FOLDER = Path(__file__).parents[1] / "forms"
FILES = {"keys.toml": Registry, "scan.toml": ScanConfig, "detector.toml": DetectorConfig}


def forms_now() -> dict[str, Any]:
    """The forms of this version: type of each column in order, and of each field whether it may be left out."""
    tables = {**SCHEMAS, "users of a registry": USERS}
    return {
        "tables": {
            name: {field.name: f"{field.type}" + ("" if field.nullable else ", never null") for field in schema}
            for name, schema in tables.items()
        },
        "files": {file: dict(fields(model.model_json_schema())) for file, model in FILES.items()},
    }


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Fields of a model, and of the models in it, each with `needed` or `optional`."""
    named = schema.get("$defs", {})
    for name, field in schema.get("properties", {}).items():
        yield f"{path}{name}", "needed" if name in schema.get("required", ()) else "optional"
        for inner in models(field):
            yield from fields(named[inner] | {"$defs": named}, f"{path}{name}.")


def models(value: Any) -> Iterator[str]:
    """Names of the models that a JSON Schema names."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for inner in value.values():
            yield from models(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from models(inner)


def recorded(version: int) -> dict[str, Any]:
    return json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    (FOLDER / f"{VERSION}.json").write_text(json.dumps(forms_now(), indent=1) + "\n", encoding="utf-8")

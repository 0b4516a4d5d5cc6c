"""`brickscan schema`: the fields of a configuration as JSON Schema, for editors and checks before a deployment."""

import json

import click

from jobs.text import tell

_OF = {
    "scan": "schemas.config:ScanConfig",
    "calibrate": "schemas.calibration:CalibrationConfig",
    "verdict": "schemas.verdict:Verdict",
    "account": "schemas.verdict:AccountVerdict",
    "evaluate": "schemas.evaluation:EvaluationConfig",
}
"""Models of the configurations that commands read, and of what `export` writes."""


@click.command()
@click.argument("command", type=click.Choice(list(_OF)))
def schema(command: str) -> None:
    """Print the JSON Schema of a command's configuration: every field, its type, limits and default.

    Editors complete and check a TOML file by it (Taplo, Even Better TOML: `#:schema scan.schema.json` as its first
    line). What one field asks of another is checked when the file is read.

    \b
    Example:
      brickscan schema scan > scan.schema.json
    """
    import importlib

    module, name = _OF[command].split(":")
    found = getattr(importlib.import_module(module), name).model_json_schema()
    written = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | found
    tell(*json.dumps(written, indent=2).splitlines())

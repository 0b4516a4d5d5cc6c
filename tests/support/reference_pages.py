"""The pages of docs/reference, made from the code: `python -m tests.support.reference_pages` writes them anew.

The meaning of a field or column stands in comments beside or above it. The pages take it from there, so that it is
written once. tests/test_reference_pages.py checks that the pages are current.
"""

import ast
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import brickscan as brickscan_package
import click
import pyarrow as pa
from pydantic import BaseModel

from jobs.cli import brickscan
from scanner import api, results
from scanner.cluster.scan import ExitCode
from scanner.probe import config as probe_config
from scanner.storage.data_files import SCHEMAS
from schemas import audit, config, evaluation, service, tables

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
WIDTH = 110
CONFIGURATIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("brickscan scan", config.ScanConfig),
    ("brickscan calibrate", audit.CalibrationConfig),
    ("brickscan evaluate", evaluation.EvaluationConfig),
    ("brickscan serve", service.DetectorConfig),
    ("brickscan probe", probe_config.ProbeConfig),
)
TABLES = (tables, audit, tables, tables, tables)
MADE = "<!-- made from the code by `make reference`; change it there -->"


class _Comments(NamedTuple):
    """Comments by line: those that have a line to themselves, and those beside code."""

    alone: dict[int, str]
    beside: dict[int, str]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Every page by its file name."""
    made = {
        "configuration.md": configuration(),
        "tables.md": all_tables(),
        "commands.md": commands(),
        "python.md": python_names(),
    }
    return {name: f"{MADE}\n\n{text.rstrip()}\n" for name, text in made.items()}


def configuration() -> str:
    """Every field of every configuration file."""
    parts = [
        "# Configuration\n\nEach file is TOML. An unknown field or an impossible value is refused by its name. "
        "Relative paths start at the folder of the file. `brickscan schema scan` prints the same as JSON Schema, for "
        "editors."
    ]
    for command, model in CONFIGURATIONS:
        parts.append(f"## `{command}`")
        parts += [_section(*found) for found in _models(model, "")]
    return "\n\n".join(parts)


def _models(model: type[BaseModel], path: str) -> Iterator[tuple[type[BaseModel], str]]:
    yield model, path
    for name, field in model.model_fields.items():
        for inner in _inner(field.annotation):
            yield from _models(inner, f"{path}.{name}" if path else name)


def _inner(annotation: Any) -> list[type[BaseModel]]:
    """Models that an annotation names."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _inner(part)]


def _section(model: type[BaseModel], path: str) -> str:
    meanings = dict(_meanings_of(model))
    schema = model.model_json_schema()
    rows = []
    for name, field in model.model_fields.items():
        if _inner(field.annotation):
            continue
        default = "needed" if field.is_required() else _toml(field.default)
        kind = _kind(schema["properties"][name], schema.get("$defs", {}))
        rows.append((f"`{name}`", kind, default, meanings.get(name, "")))
    title = f"### `[{path}]`\n\n" if path else ""
    return f"{title}{_doc(model)}\n\n{_table(('field', 'value', 'default', 'meaning'), rows)}"


def _toml(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(_toml(one) for one in value)
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _kind(schema: dict[str, Any], named: dict[str, Any]) -> str:
    """A field's type and limits, from its JSON Schema."""
    if "$ref" in schema:
        return _kind(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        return " or ".join(_kind(one, named) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema:
        return _toml(schema["const"])
    if "enum" in schema:
        return ", ".join(map(_toml, schema["enum"]))
    if schema.get("type") == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list: {_kind(items, named)}"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false"}
    bounds = [
        f"{sign} {schema[limit]:g}"
        for limit, sign in (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
        if limit in schema
    ]
    return " ".join([words.get(str(schema.get("type")), "table"), ", ".join(bounds)]).strip()


def _meanings_of(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            source = textwrap.dedent(inspect.getsource(kind))
            comments = _comments(source)
            for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id, _meaning(node, comments)


def all_tables() -> str:
    """Every column of every table of results."""
    parts = [
        "# Tables\n\nEach is a Delta table in a folder of its own under `results`. Columns marked [f] are null in "
        "`verdicts` and exact in `flags`. `brickscan flagged` and `scanner.results` ask them; any reader of Delta "
        "reads them as they are."
    ]
    for name, schema in SCHEMAS.items():
        module, constant = next(
            (module, key) for module in TABLES for key, value in vars(module).items() if value is schema
        )
        source = inspect.getsource(module)
        body, comments = ast.parse(source).body, _comments(source)
        place = next(k for k, node in enumerate(body) if _names(node, constant))
        about = body[place + 1]
        said = about.value.value if isinstance(about, ast.Expr) and isinstance(about.value, ast.Constant) else ""
        meanings = _columns(constant, body, comments)
        rows = [
            (f"`{field.name}`", _arrow(field.type), "" if field.nullable else "never null", meanings[field.name])
            for field in schema
        ]
        parts.append(
            f"## `{name}`\n\n{' '.join(str(said).split())}\n\n{_table(('column', 'type', '', 'meaning'), rows)}"
        )
    return "\n\n".join(parts)


def _target(node: ast.Assign) -> str:
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""


def _columns(constant: str, body: list[ast.stmt], comments: _Comments) -> dict[str, str]:
    """Meanings of a schema's columns, those that it takes over from other schemas included."""
    found: dict[str, str] = {}
    assigned = next(node for node in body if _names(node, constant))
    for node in ast.walk(assigned):
        if isinstance(node, ast.Name) and node.id != constant and any(_names(other, node.id) for other in body):
            found = _columns(node.id, body, comments) | found
    for call in ast.walk(assigned):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pa.field":
            found[ast.literal_eval(call.args[0])] = _meaning(call, comments)
    return found


def _names(node: ast.stmt, constant: str) -> bool:
    return isinstance(node, ast.Assign) and _target(node) == constant


def _arrow(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_arrow(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "(" + ", ".join(f"{field.name}: {_arrow(field.type)}" for field in kind) + ")"
    return "time, UTC" if pa.types.is_timestamp(kind) else str(kind)


def _comments(source: str) -> _Comments:
    found = _Comments({}, {})
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            kind = found.alone if token.line.lstrip().startswith("#") else found.beside
            kind[token.start[0]] = token.string.lstrip("# ")
    return found


def _meaning(node: ast.stmt | ast.expr, comments: _Comments) -> str:
    """Comments right above a node, then those in its lines."""
    first = node.lineno
    while first - 1 in comments.alone:
        first -= 1
    either = comments.alone | comments.beside
    said = [either[line] for line in range(first, (node.end_lineno or node.lineno) + 1) if line in either]
    return " ".join(said)


def commands() -> str:
    """Help of every command, and how a command ends."""
    parts = ["# Commands\n\n`brickscan COMMAND --help` prints the same."]
    source = textwrap.dedent(inspect.getsource(ExitCode))
    comments, body = _comments(source), ast.parse(source).body[0].body  # type: ignore[attr-defined]
    rows = [
        (f"`{ast.literal_eval(node.value)}`", _meaning(node, comments)) for node in body if isinstance(node, ast.Assign)
    ]
    first = "Of several at once the first of 1, 2, 3, 5 and 4 stands."
    parts.append(f"## Exit codes\n\n{first}\n\n{_table(('code', 'meaning'), rows)}")
    parts += [f"## `{path}`\n\n```\n{text}\n```" for path, text in _helps(brickscan, "brickscan", None)]
    return "\n\n".join(parts)


def _helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, **settings)
    yield path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _helps(inner, f"{path} {name}", context)


def python_names() -> str:
    """Names that `import brickscan` gives, but those that import torch, and queries of `scanner.results`."""
    parts = [f"# Python\n\n```\n{inspect.getdoc(brickscan_package)}\n```"]
    parts.append(
        "`brickscan.GreenListProcessor` and `brickscan.GumbelProcessor` are the logits processors of"
        " [marking](../guides/marking.md). Every error is a `brickscan.BrickscanError`; a `brickscan.Refused` came"
        " before any work, and a `brickscan.TableError` says that a table of results is not as brickscan signed it."
    )
    parts += map(_documented, (api.open, api.OpenedRegistry, api.TextVerdict, api.TextVerdicts))
    parts += map(_documented, (api.results, api.ResultTables, api.scan, api.explain))
    parts.append("# Queries\n\n`from scanner import results`: lazy polars frames of what is newest of each document.")
    for name in results.__all__:
        found = getattr(importlib.import_module("scanner.results"), name)
        parts.append(f"## `results.{name}{_signature(found)}`\n\n```\n{inspect.getdoc(found)}\n```")
    return "\n\n".join(parts)


def _documented(found: Callable[..., Any]) -> str:
    """A function, or a class with its public methods and properties."""
    shown = found.__name__ if isinstance(found, type) else f"{found.__name__}{_signature(found)}"
    parts = [f"## `brickscan.{shown}`\n\n```\n{inspect.getdoc(found)}\n```"]
    for name, member in vars(found).items() if isinstance(found, type) else ():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            call = _signature(member) if callable(member) else ""
            parts.append(f"### `.{name}{call}`\n\n```\n{inspect.getdoc(member)}\n```")
    return "\n\n".join(parts)


def _signature(function: Callable[..., Any]) -> str:
    """A signature as it is written, except for defaults whose repr is not source code."""
    shown = re.sub(r"<[^>]*>", "…", str(inspect.signature(function)))
    return re.sub(r"(?:[a-z]\w*\.)+(\w+)", r"\1", shown)


def _doc(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


if __name__ == "__main__":
    main()

"""Run `brickscan formats`, `selftest` and `schema`: list formats, test this installation, describe configurations."""

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import NamedPath
from jobs.text import columns, tell
from scanner.errors import Refused, in_a_line
from scanner.storage.locations import MOST_LIST, read_named

if TYPE_CHECKING:
    from scanner.watermark.format import Format
    from scanner.watermark.formats import GroupResult

_HEAD = ("format", "made by", "p-values hold over", "names users", "levels", "parameters")


@click.command()
def formats() -> None:
    """List the watermark formats that a registry may hold keys of.

    `key`: p-values are proven over a key that nobody can guess. `key-64-bits` and `key-32-bits`: the key is that short,
    so a flagged text must also beat 999 decoy keys, and p-values end at 1e-19 and 2e-10. `levels`: tokens can count by
    how much they surprise a model.

    \b
    Example:
      brickscan formats
    """
    from scanner.watermark.by_levels import lacks_for_levels
    from scanner.watermark.formats import FORMATS

    rows = [_HEAD]
    for name, entry in FORMATS.items():
        needed = {field for field, info in entry.model_fields.items() if info.is_required()} - set(entry.suggested)
        form = entry.model_validate({**dict.fromkeys(needed, _ANY_SIZE), **entry.suggested})
        many = not _one_message_only(form) and not form.basis().assumed
        values = {field: "(needed)" if field in needed else value for field, value in form.model_dump().items()}
        parameters = ", ".join(f"{field} = {value}" for field, value in values.items() if value is not None)
        lacking = [bool(lacks_for_levels(form, messages)) for messages in (1, 2 if many else 1)]
        levels = "no" if lacking[0] else "with one message" if lacking[1] else "yes"
        rows.append((name, entry.title, str(form.basis()), "yes" if many else "no", levels, parameters))
    tell(*columns(rows))


_ANY_SIZE = 1000  # size of a vocabulary, if a parameter must be one and no vocabulary is known


def _one_message_only(form: "Format") -> bool:
    try:
        form.check_messages(2)
    except ValueError:
        return True
    return False


@click.command()
@click.option(
    "--vectors",
    multiple=True,
    type=NamedPath(path_type=Path),
    help="File of known answers instead of the built-in ones",
)
def selftest(vectors: tuple[Path, ...]) -> int:
    """Check this installation against known answers. Exit code 1: one differs.

    Run it on every new type of machine. Integers must agree exactly, real numbers to 1e-9. Every GPU that torch finds
    is checked too.

    \b
    Example:
      brickscan selftest
      brickscan selftest --vectors vectors.json
    """
    from scanner.watermark.formats import check, shipped

    passed = failed = 0
    for source in vectors or shipped():
        try:
            if isinstance(source, Path):
                text = read_named(source, MOST_LIST).decode()
            else:
                text = source.read_text(encoding="utf-8")
            results = check(text)
        except (OSError, ValueError, RecursionError) as error:
            raise Refused(
                f"--vectors {source}: {in_a_line(error)}; a file in the form of the built-in ones is needed"
            ) from None
        for result in [*results, *_on_devices(text)]:
            if result.not_read:
                tell(f"{result.not_read} cases are {result.group} and were not checked")
                continue
            tell(f"{result.group}: {result.passed} passed, {len(result.failures)} failed")
            for failure in result.failures:
                tell(f"  {failure}")
            passed += result.passed
            failed += len(result.failures)
    tell(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _on_devices(text: str) -> "list[GroupResult]":
    """Check for the same answers on every GPU. Empty: torch or Triton is not installed."""
    try:
        from scanner.gpu.marks import check_device
        from scanner.gpu.runs import devices
    except ImportError:
        return []
    return [result for device in devices() for result in check_device(text, device)]


_OF = {
    "scan": "schemas.config:ScanConfig",
    "calibrate": "schemas.audit:CalibrationConfig",
    "verdict": "schemas.verdict:Verdict",
    "account": "schemas.verdict:AccountVerdict",
    "decision": "schemas.verdict:Decision",
    "evaluate": "schemas.evaluation:EvaluationConfig",
    "serve": "schemas.service:DetectorConfig",
    "probe": "scanner.probe.config:ProbeConfig",
}
"""Models of the configurations that commands read, of the output of `export`, and of the input of `decide --from`."""


@click.command()
@click.argument("command", type=click.Choice(list(_OF)))
def schema(command: str) -> None:
    """Print the JSON Schema of a configuration: each field, its type, limits and default.

    Editors complete and check a TOML file with it (Taplo, Even Better TOML: `#:schema scan.schema.json` as its first
    line).

    \b
    Example:
      brickscan schema scan > scan.schema.json
    """
    module, name = _OF[command].split(":")
    model_schema = getattr(importlib.import_module(module), name).model_json_schema()
    written = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model_schema
    tell(*json.dumps(written, indent=2).splitlines())

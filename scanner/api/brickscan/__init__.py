"""brickscan: finds watermarked language-model text, and names the user it was marked for.

The names below stay, and are all that a program needs to import; `scanner`, `schemas` and `jobs` are its insides.

Look at texts under the keys of a registry:

>>> import brickscan
>>> registry = brickscan.open("registry")
>>> verdict = registry.check("Hi")
>>> verdict.status, verdict.flagged, verdict.users
('too_short', False, ())
>>> verdicts = registry.check([marked, unmarked])
>>> [(verdict.flagged, verdict.users) for verdict in verdicts]
[(True, ('alice',)), (False, ())]
>>> verdicts.frame.select("row", "flagged", "key_id", "user_id").rows()
[(0, True, 'green', 'alice'), (1, False, 'gum', None)]

Scan a night, and ask its tables; every table is a lazy frame of polars:

>>> outcome = brickscan.scan("scan.toml")
>>> int(outcome.exit_code), outcome.totals.counts.documents
(0, 2)
>>> tables = brickscan.results("scan.toml")
>>> tables.flagged.select("doc_id", "user_id").collect().rows()
[('post-1', 'alice')]

Why a document is flagged:

>>> explanation = brickscan.explain("scan.toml", "post-1")
>>> explanation.row["user_id"], explanation.text == marked
('alice', True)

A flag says that a text contains text marked for a user, never who wrote or posted it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanner.api import OpenedRegistry, ResultTables, TextVerdict, TextVerdicts, explain, results, scan
    from scanner.api import open as open  # noqa: A004  # as gzip.open
    from scanner.errors import BrickscanError, Refused, TableError
    from scanner.generation import GreenListProcessor, GumbelProcessor
    from schemas.config import ScanConfig as Config

    __version__: str

_HOMES = {
    "BrickscanError": "scanner.errors.BrickscanError",
    "Config": "schemas.config.ScanConfig",
    "GreenListProcessor": "scanner.generation.GreenListProcessor",
    "GumbelProcessor": "scanner.generation.GumbelProcessor",
    "OpenedRegistry": "scanner.api.OpenedRegistry",
    "Refused": "scanner.errors.Refused",
    "ResultTables": "scanner.api.ResultTables",
    "TableError": "scanner.errors.TableError",
    "TextVerdict": "scanner.api.TextVerdict",
    "TextVerdicts": "scanner.api.TextVerdicts",
    "explain": "scanner.api.explain",
    "open": "scanner.api.open",
    "results": "scanner.api.results",
    "scan": "scanner.api.scan",
}
"""Homes of the names. Each is imported when it is first used, since torch, Ray and kernels take seconds."""

_OF_THE_EXTRA_MODEL = ("GreenListProcessor", "GumbelProcessor")
"""Names that stand on torch, which is in the extra `model`."""

__all__ = [
    "BrickscanError",
    "Config",
    "GreenListProcessor",
    "GumbelProcessor",
    "OpenedRegistry",
    "Refused",
    "ResultTables",
    "TableError",
    "TextVerdict",
    "TextVerdicts",
    "__version__",
    "explain",
    "open",
    "results",
    "scan",
]


if not TYPE_CHECKING:  # with it, type checkers would take every misspelt name for one that is there

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("brickscan")
        if name not in _HOMES:
            raise AttributeError(f"module 'brickscan' has no attribute {name!r}; it has {', '.join(__all__)}")
        module, _, attribute = _HOMES[name].rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            if name not in _OF_THE_EXTRA_MODEL:
                raise
            from scanner.errors import install_of

            words = f"brickscan.{name} needs {missing.name}; install it with {install_of('model')}"
            raise ModuleNotFoundError(words, name=missing.name) from None


def __dir__() -> list[str]:
    """Return the names that can be had: `help` takes each of them."""
    missing = () if importlib.util.find_spec("torch") else _OF_THE_EXTRA_MODEL
    return [name for name in __all__ if name not in missing]

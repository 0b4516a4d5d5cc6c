"""Public names stay: analysts import from `scanner.results`, inference teams from `scanner.generation`."""

import importlib
import pkgutil

import pytest

import scanner

PROMISED = {
    "scanner.results": {
        *("audit_counts", "audits", "exist", "flagged", "nights", "quarantine", "scans"),
        *("shards", "table_uri", "verdicts"),
    },
    "scanner.generation": {"GreenListProcessor", "GumbelProcessor", "Sampling", "complete", "load_model"},
    "scanner.registry": {"add_users", "find_key", "list_users", "load_registry", "new_key", "open_key"},
    "scanner.watermark": {"GreenList", "Gumbel", "Tokens", "batch_tokens", "scored_positions"},
    "scanner.errors": {"BrickscanError", "Refused", "SecretError", "TokenizerError", "ScanFailed"},
}
"""Names that somebody's notebook or server may import; to remove one or change its meaning needs its own issue."""

TYPES_ALONE = {"Dedup"}  # typing.Literal holds no docstring

TAKES_SECONDS = {"scanner.generation": pytest.mark.seconds}  # imports a library of models

PACKAGES = [f"scanner.{found.name}" for found in pkgutil.iter_modules(scanner.__path__) if found.ispkg]


@pytest.mark.parametrize("module", [pytest.param(name, marks=TAKES_SECONDS.get(name, ())) for name in PROMISED])
def test_what_is_promised_is_there(module):
    found = importlib.import_module(module)
    assert {name for name in PROMISED[module] if not hasattr(found, name)} == set()


@pytest.mark.seconds
def test_the_public_names_of_a_package_are_there_and_documented():
    seen = 0
    for package in PACKAGES:
        found = importlib.import_module(package)
        for name in set(getattr(found, "__all__", ())) - TYPES_ALONE:
            thing = getattr(found, name)
            assert not callable(thing) or getattr(thing, "__doc__", None), f"{package}.{name} has no docstring"
            seen += 1
    assert seen >= 60

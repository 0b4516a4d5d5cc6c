"""The scripts of docs/examples, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str) -> ModuleType:
    """Imports a script of docs/examples without running it."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

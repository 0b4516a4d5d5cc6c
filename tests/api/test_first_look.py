"""The notebook of docs/examples runs, and shows what it is kept with: small, and nothing of the machine that ran it."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs/examples/first_look.ipynb"


def shown(notebook) -> str:
    """All that the cells show in words."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(str(output.get("text") or output.get("data", {}).get("text/plain")) for output in outputs)


def check(notebook) -> None:
    words = shown(notebook)
    assert "exit code 0" in words
    assert "alice" in words
    assert "bob" not in words.replace("users add alice bob", "")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert "shape: (0," not in words


def test_the_notebook_is_kept_with_what_it_shows():
    notebook = nbformat.read(NOTEBOOK, 4)
    check(notebook)
    assert NOTEBOOK.stat().st_size < 100_000
    for name in ("/tmp", "/root", "/home", "127.0.0.1"):
        assert name not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.costly
def test_the_notebook_runs(tmp_path, monkeypatch):
    """Its random keys are new: what it shows differs in numbers, not in who is found."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, 4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    check(notebook)

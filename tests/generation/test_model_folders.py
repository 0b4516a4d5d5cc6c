"""Folders of models that somebody damaged or made: refused in a sentence, and no code of them runs."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from scanner.errors import Refused
from scanner.generation import load_model, prompt_lengths
from scanner.looks.levels.token_levels import reader_sha256
from scanner.research.robustness import SentenceModel

CODE = "import pathlib\npathlib.Path({mark!r}).touch()\n"


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def changed(name: str, **fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / name
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | fields))

    return change


def as_pickle(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def boundless(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")


def without_a_layer(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file({name: of for name, of in weights.items() if "layers.1" not in name}, file, {"format": "pt"})


def not_numbers(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({name: of * float("nan") for name, of in load_file(file).items()}, file, {"format": "pt"})


KERNEL = "kernels-community/flash-attn2"

BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickle": (as_pickle, r"pytorch_model\.bin is not supported; save the model as safetensors"),
    "cut weights": (cut, "cannot be used"),
    "weights without end": (boundless, "cannot be used"),
    "no layer": (without_a_layer, r"its weights lack (model\.)?layers\.1\."),
    "other sizes": (changed("config.json", hidden_size=32), "cannot be used"),
    "code": (changed("config.json", auto_map={"AutoConfig": "code.C", "AutoModelForCausalLM": "code.C"}), "never run"),
    "code of a hub": (changed("config.json", model_type="other", auto_map={"AutoConfig": "a/b--code.C"}), "never run"),
    "code of a tokenizer": (
        changed("tokenizer_config.json", auto_map={"AutoTokenizer": [None, "code.C"]}),
        "never run",
    ),
    "another type": (changed("config.json", model_type="other"), "model_type 'other', which transformers"),
    "no type": (changed("config.json", model_type=None), "model_type 'None', which transformers"),
    "a kernel": (changed("config.json", _attn_implementation=KERNEL), f"the kernel '{KERNEL}'"),
    "a kernel by its field": (changed("config.json", attn_implementation={"": KERNEL}), "which may come from a hub"),
    "a kernel within": (changed("config.json", text_config={"attn_implementation": KERNEL}), "may come from a hub"),
    "quantised": (changed("config.json", quantization_config={"quant_method": "mxfp4"}), "quantised weights"),
    "an adapter": (changed("adapter_config.json", base_model_name_or_path="a/b"), "has an adapter"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "not a JSON object"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
    "deep JSON": (lambda folder: (folder / "config.json").write_text('{"a":' * 100_000), "not a JSON object"),
    "text for a number": (changed("config.json", num_hidden_layers="two"), "cannot be used"),
    "too large": (changed("config.json", vocab_size=10**15), "cannot be used"),
    "heads": (changed("config.json", num_attention_heads=3), "cannot be used"),
}
"""Faults of a folder, and what the refusal says."""


@pytest.mark.parametrize("fault", BAD)
def test_bad_folders(folder: Path, fault: str, capfd: pytest.CaptureFixture[str], monkeypatch) -> None:
    """They ended in tracebacks, in torch's advice to set `weights_only=False`, and in questions whether to run code."""
    mark = folder.parent / "has run"
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    change, words = BAD[fault]
    change(folder)
    of_settings = words != "cannot be used" and "lack" not in words and "model_type" not in words
    doors = [load_model, SentenceModel, *[lambda one: reader_sha256(one, "float32")] * of_settings]
    for door in doors:
        with pytest.raises(Refused, match=words) as refused:
            door(folder)
        assert "\n" not in str(refused.value)
        assert not any(word in str(refused.value) for word in ("weights_only", "trust_remote", "http"))
    if of_settings:
        with pytest.raises(Refused, match=words):
            prompt_lengths(folder, ["w3"])
    assert not mark.exists()
    assert not any(word in "".join(capfd.readouterr()) for word in ("weights_only", "trust_remote", "REPORT"))


def test_weights_that_are_no_numbers(folder: Path) -> None:
    not_numbers(folder)
    with pytest.raises(Refused, match="gives no probabilities in float32"):
        load_model(folder)


@pytest.mark.parametrize("template", ["{{ messages[9].content }}", "{{ ''.__class__.__mro__ }}", "{% for", 7])
def test_chat_templates_that_write_nothing(folder: Path, template: object) -> None:
    changed("tokenizer_config.json", chat_template=template, tokenizer_class="PreTrainedTokenizerFast")(folder)
    with pytest.raises(Refused, match="cannot be used"):
        load_model(folder).encode(["w3"])

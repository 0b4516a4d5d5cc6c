"""Folders of language models, looked through before a library loads one: safetensors in the folder, and no code.

A model's files can name code, of the folder or of a hub, and weights as pickles, which are code too. Such folders are
refused before anything of them is loaded, so that no library asks whether to run it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scanner.errors import Refused
from scanner.printable import printable
from scanner.storage.locations import read_named

_SETTINGS = ("config.json", "tokenizer_config.json", "generation_config.json")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_ATTENTION = (None, "eager", "sdpa")
"""Ways to compute attention that torch itself has; others are kernels, which may come from a hub."""


def check_model_folder(folder: Path, named: str) -> None:
    """Refuse the folder of a model that is not read only from safetensors in it, or that brings code.

    Args:
        folder: of the model.
        named: how errors name the folder, such as "model 'models/smollm2'".

    Raises:
        Refused: it is so, it holds no model, or a file of settings cannot be read.
    """
    if not (folder / "config.json").is_file():
        raise Refused(f"{named}: no config.json in it; name a folder written by `save_pretrained`")
    if (folder / "adapter_config.json").is_file():
        raise Refused(
            f"{named}: has an adapter for a model that is elsewhere; merge the two and save the result in a separate "
            "folder"
        )
    settings = {name: _settings(folder / name, named) for name in _SETTINGS if (folder / name).is_file()}
    for name, fields in settings.items():
        for key, value in _fields(fields):
            if key == "auto_map" and value:
                raise Refused(f"{named}: {name} names code (auto_map), which is never run; use a model without it")
            if key == "quantization_config" and value:
                raise Refused(f"{named}: {name} has quantised weights, which are not supported; save it unquantised")
            if key.endswith(("_implementation", "_implementation_internal")) and not _is_torch_kernel(value):
                raise Refused(
                    f"{named}: {name} asks for the kernel {printable(str(value), 60)!r} ({printable(key, 40)}), which "
                    "may come from a hub; remove the field"
                )
    explicit = settings["config.json"].get("transformers_weights")
    indexes = {file.name: _settings(file, named) for file in sorted(folder.glob("*.index.json")) if file.is_file()}
    weights = [("config.json", explicit)] if explicit else []
    for name, index in indexes.items():
        files = index.get("weight_map", {})
        weights += [(name, file) for file in (files.values() if isinstance(files, dict) else [files])]
    for name, file in weights:
        if not isinstance(file, str):
            raise Refused(f"{named}: {name} does not say where weights are; save the model again")
        if Path(file).name != file:
            raise Refused(
                f"{named}: {name} names weights outside its folder, for example {printable(file)!r}; put all files of "
                "the model into one folder"
            )
    if not explicit and not any((folder / name).is_file() for name in _WEIGHTS):
        others = sorted(file.name for ends in ("bin", "pt", "pth", "ckpt", "gguf") for file in folder.glob(f"*.{ends}"))
        what = f"; {printable(others[0], 60)} is not supported" if others else ""
        raise Refused(f"{named}: no {_WEIGHTS[0]} in it{what}; save the model as safetensors (`save_pretrained`)")


def _settings(file: Path, named: str) -> dict[str, Any]:
    try:
        fields = json.loads(read_named(file))
    except OSError as error:
        raise Refused(f"{named}: {file.name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Refused(f"{named}: {file.name} is not a JSON object; save the model again")
    return fields


def _fields(value: object) -> Iterator[tuple[str, Any]]:
    """Yield every field of JSON, at any depth."""
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, dict):
            yield from inner.items()
            left += inner.values()
        elif isinstance(inner, list):
            left += inner


def _is_torch_kernel(value: object) -> bool:
    """Return whether a way to compute attention, or one of each part of a model, is torch's own."""
    return all(way in _ATTENTION for way in (value.values() if isinstance(value, dict) else [value]))

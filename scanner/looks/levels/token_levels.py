"""Weigh tokens by how much they surprised a model: the texts it reads, their levels, and keys that count so.

The plain sum has decided on every text before. A keyed digest of a text and, under keys of one message, the p-value of
the sum decide whether a model reads it. Both can only keep a text from a second look. The share of the rate for this
look is spent in any case (scanner.error_shares.ErrorShares), so p-values do not depend on the choice.
"""

import dataclasses
import hashlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scanner.detection.attribution import OpenedKey
from scanner.detection.left_out import counted_positions
from scanner.detection.rules import Rules
from scanner.errors import Refused, install_of
from scanner.scan_plan import Plan
from scanner.storage.model_folders import check_model_folder
from scanner.text import Tokenizer
from scanner.watermark import Tokens
from scanner.watermark.by_levels import ByLevels, ByLevelsProof, LevelsOf
from scanner.watermark.format import ProofPath
from scanner.watermark.formats import can_have_levels, format_of
from scanner.watermark.level_laws import levels_of
from scanner.watermark.rule import long_enough, passes, search
from schemas.config import LevelsConfig, ReaderDtype

if TYPE_CHECKING:
    from scanner.generation import TextReader

READER_FILES = ("config.json", "tokenizer.json")
"""Files without which a folder holds no model that can read."""


def model_pass_of(plan: Plan) -> Plan | None:
    """Return the plan of the pass in which a model reads texts: the keys that can be weighed, and the model's digest.

    None if no model is configured.

    Raises:
        Refused: no key can be weighed, torch is missing, or there is no model in the folder.
    """
    by = plan.levels
    if by is None:
        return None
    keys = tuple(key for key in plan.keys if can_have_levels(key))
    if not keys:
        raise Refused(
            "levels: none of the tested keys supports weights: greenlist-v3, gumbel-v3 and keys of vLLM's and "
            "SGLang's own marks do, as do greenlist and gumbel with one message; leave the section out"
        )
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise Refused(f"levels: {module} is missing; install it with {install_of('model')}")
    sha256 = reader_sha256(Path(by.model), by.dtype)
    return dataclasses.replace(plan, keys=keys, reader_sha256=sha256, pass_after=plan.key_set)


def reader_config(plan: Plan) -> LevelsConfig:
    """Return how the model of a pass reads.

    Raises:
        ValueError: the plan does not belong to such a pass.
    """
    if plan.levels is None:
        raise ValueError("the plan has no model that reads texts")
    return plan.levels


def reader_sha256(folder: Path, dtype: ReaderDtype) -> str:
    """Hash all files in a model's folder and the precision in which it reads, as hex.

    Raises:
        Refused: there is no model, a file cannot be read, or as check_model_folder.
    """
    for name in READER_FILES:
        if not (folder / name).is_file():
            raise Refused(f"levels.model: {str(folder)!r} has no {name}; name the folder of a model")
    check_model_folder(folder, f"levels.model: {str(folder)!r}")
    whole = hashlib.sha256(dtype.encode())
    try:
        for file in sorted(file for file in folder.iterdir() if file.is_file()):
            with file.open("rb") as opened:
                whole.update(file.name.encode() + b"\0" + hashlib.file_digest(opened, "sha256").digest())
    except OSError as error:
        raise Refused(f"levels.model: {file} cannot be read ({error.strerror})") from None
    return whole.hexdigest()


def pinned_reader(by: LevelsConfig, sha256: str | None, device: str = "cpu") -> "TextReader":
    """Open the model of a digest to read texts on a device.

    Its files are hashed before they are loaded and again after. So other files in their place meanwhile are noticed,
    unless the first ones are put back at once.

    Raises:
        Refused: the folder holds another model, or as TextReader.
        TokenizerError: as TextReader.
    """
    from scanner.generation import TextReader

    folder = Path(by.model)
    reader = TextReader(folder, device, by.dtype) if reader_sha256(folder, by.dtype) == sha256 else None
    if reader is None or reader_sha256(folder, by.dtype) != sha256:
        raise Refused(
            f"levels.model: the model in {str(folder)!r} changed since the scan began, or differs between this "
            "machine and the driver's; put the same files everywhere and run the scan again"
        )
    return reader


LevelsName = tuple[str, bytes]
"""Name of the levels of a text's tokens: the tokenizer by its SHA-256, and the tokens."""


class TextLevels:
    """Levels of the tokens of texts that were read. Tokens of all other texts do not count.

    Tokenizers that normalise may give two texts the same tokens. Such texts have one name, and are not read together.
    """

    def __init__(self, tokenizers: Mapping[str, Tokenizer]) -> None:
        self._tokenizers = tokenizers
        self._levels: dict[LevelsName, NDArray[np.uint8]] = {}

    @classmethod
    def of_keys(cls, opened_keys: Iterable[OpenedKey]) -> "TextLevels":
        """Create levels for the tokenizers of some keys, without texts yet."""
        return cls({opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in opened_keys})

    def names(self, texts: Sequence[str]) -> list[tuple[LevelsName, ...]]:
        """Return the names under which the levels of each text are stored: for each text, one name a tokenizer."""
        of_tokenizers = [
            [(sha256, ids.tobytes()) for ids in _each(tokenizer.encode(texts))]
            for sha256, tokenizer in self._tokenizers.items()
        ]
        return [*zip(*of_tokenizers, strict=True)]

    def put(self, texts: Sequence[str], steps: Sequence[NDArray[np.uint8]]) -> None:
        """Store the steps of surprise of the characters of texts, uint8[C] each.

        They replace those of the texts before.
        """
        self._levels.clear()
        for text, of_text, names in zip(texts, steps, self.names(texts), strict=True):
            for name, tokenizer in zip(names, self._tokenizers.values(), strict=True):
                self._levels[name] = levels_of(of_text, tokenizer.reference.begins(text))

    def of(self, tokenizer: str) -> LevelsOf:
        """Return the levels of tokens of a tokenizer, by its SHA-256."""
        return partial(self._of, tokenizer)

    def _of(self, tokenizer: str, tokens: Tokens) -> NDArray[np.uint8]:
        none = np.zeros(0, np.uint8)
        found = [self._levels.get((tokenizer, ids.tobytes()), np.zeros(len(ids), np.uint8)) for ids in _each(tokens)]
        return np.concatenate([none, *found])


def _each(tokens: Tokens) -> list[NDArray[np.uint32]]:
    return [tokens.ids[begin:end] for begin, end in pairwise(tokens.offsets.tolist())]


def keys_with_levels(opened_keys: Iterable[OpenedKey], levels: TextLevels) -> list[OpenedKey]:
    """Return keys under which tokens count by levels, also on whatever device they are opened."""
    return [
        dataclasses.replace(opened_key, watermark=of_key(opened_key.watermark), to_device=of_key)
        for opened_key in opened_keys
        for of_key in [partial(ByLevels, levels_of=levels.of(opened_key.key.tokenizer.sha256))]
    ]


class LevelPaths:
    """Opens slow paths on which tokens count by levels."""

    def __init__(self, levels: TextLevels) -> None:
        self._levels = levels

    def __call__(self, path: ProofPath, opened_key: OpenedKey) -> ProofPath:
        """Return the slow path of a key by levels. path: its own slow path."""
        key = opened_key.key
        return ByLevelsProof(path, self._levels.of(key.tokenizer.sha256), format_of(key))


def worth_reading(
    opened_keys: Iterable[OpenedKey], rules: Rules, by: LevelsConfig, texts: Sequence[str]
) -> NDArray[np.bool_]:
    """Return which of D texts pass the cut of a key: bool[D].

    Under a key of one message the plain sum's own p must be small. Under a key of several messages the best p is always
    small, so a text must be long enough instead.
    """
    passing, tokens = np.zeros(len(texts), np.bool_), dict[str, Tokens]()
    for opened_key in opened_keys if texts else ():
        name, mark = opened_key.key.tokenizer.sha256, opened_key.watermark
        if name not in tokens:
            tokens[name] = opened_key.tokenizer.encode(texts)
        positions = counted_positions(rules.ngram_filter, name, mark.rule, tokens[name], rules.dedup)
        documents, kept = long_enough(positions, rules.min_scored)
        if opened_key.key.messages == 1:
            documents = documents[passes(search(mark, tokens[name], kept, 1).log10_p[:, 0], by.cut)]
        passing[documents] = True
    return passing

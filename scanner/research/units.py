"""Write texts of an evaluation in units, which are batches of prompts, and keep the written texts in files.

A unit is one Parquet file. It is kept for good, so a second run does not write it again.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import ScanFailed
from scanner.storage.locations import write_whole
from scanner.storage.toml import canonical, digest
from scanner.watermark import Format, Watermark
from scanner.watermark.format import Commits
from schemas.evaluation import TEXTS

if TYPE_CHECKING:
    from scanner.generation import Completion, LocalModel


@dataclass(frozen=True)
class Setting:
    """How texts are written: everything except prompts, keys, messages and seed.

    format: None: the texts are not marked.
    delta: δ of a mark that shifts logits. None for other marks.
    """

    format: Format | None
    delta: float | None
    temperature: float
    top_p: float
    max_new_tokens: int

    def columns(self) -> dict[str, object]:
        """Return values for the columns of tables. They are null if nothing is marked."""
        mark: dict[str, object] = dict.fromkeys(("method", "window", "gamma"))
        if self.format is not None:
            gamma = self.format.model_dump(mode="json").get("gamma")
            mark = {"method": self.format.name, "window": self.format.rule().context, "gamma": gamma}
        return mark | {"delta": self.delta, "temperature": self.temperature}

    def digest_fields(self) -> dict[str, object]:
        """Return the values that decide the texts, for digests: the columns, and for newer formats the label."""
        mark = {} if self.format is None else self.format.digest_fields()
        return self.columns() | mark | {"top_p": self.top_p, "max_new_tokens": self.max_new_tokens}

    def commitment(self, secret: bytes) -> str | None:
        """Return the commitment of a key, in hex. None: nothing is marked, or the format has no commitment."""
        return self.format.commitment(secret).hex() if isinstance(self.format, Commits) else None

    @property
    def strength(self) -> float:
        """Return the parameter that the paper varies: δ if the mark has one, otherwise the temperature."""
        return self.temperature if self.delta is None else self.delta

    def watermark(self, secret: bytes) -> Watermark | None:
        """Return the mark under one key. None: nothing is marked."""
        return None if self.format is None else self.format.open(secret)


@dataclass(frozen=True)
class WritingUnit:
    """A batch that is written together: prompts and, if it is marked, the key's number and the message for each prompt.

    A sampled text depends on its whole batch. Files therefore keep whole batches.
    """

    setting: Setting
    seed: int
    prompts: tuple[str, ...]
    key_seed: str = field(repr=False)
    keys: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()

    @property
    def commitments(self) -> list[str | None]:
        """Return the commitment of each row's key, in hex."""
        return [self.setting.commitment(key_secret(self.key_seed, key)) for key in self.keys]

    def watermarks(self) -> list[Watermark]:
        """Return the mark of each row. Rows with the same key share it."""
        how = self.setting.format
        opened = {key: how.open(key_secret(self.key_seed, key)) for key in set(self.keys)} if how else {}
        return [opened[key] for key in self.keys]

    def digest(self, model_sha256: str) -> str:
        """Return the hex digest of everything that decides the texts: model, setting, seed and rows.

        It contains no key.
        """
        digest_fields = {
            "model": model_sha256,
            "setting": self.setting.digest_fields(),
            "seed": self.seed,
            "prompts": self.prompts,
            "commitments": self.commitments,
            "messages": self.messages,
        }
        return digest(digest_fields)


def write_texts(model: "LocalModel", unit: WritingUnit) -> "list[Completion]":
    """Complete the prompts of a unit. All tokens of the vocabulary are allowed, within top-p (top-k is off).

    Raises:
        Refused: a prompt has no tokens, or is too long for the model.
    """
    from scanner.generation import Sampling, complete  # late: imports torch, which workers that only count do not need

    setting = unit.setting
    sampling = Sampling(
        max_new_tokens=setting.max_new_tokens,
        temperature=setting.temperature,
        top_k=0,
        top_p=setting.top_p,
        delta=Sampling.delta if setting.delta is None else setting.delta,
    )
    return complete(model, unit.prompts, sampling, unit.seed, unit.watermarks() or None, unit.messages)


def key_secret(seed: str, number: int) -> bytes:
    """Draw a 32-byte master key for experiments from a public seed. Never use it for anything else."""
    return hashlib.blake2b(
        number.to_bytes(8, "little"), key=seed.encode("ascii"), digest_size=32, person=b"evaluate-v1"
    ).digest()


def batches(
    setting: Setting, seed: str, rows: Sequence[tuple[str, int, int]], size: int, *, sample: int = 0
) -> list[WritingUnit]:
    """Cut the rows of one setting into units.

    Args:
        setting: the setting of the texts.
        seed: configured seed of keys and sampling.
        rows: prompt, number of the key, message. Without a mark, the last two are ignored.
        size: rows of a unit. The last unit may have fewer.
        sample: number of the sample. Each number gives another sample of the same rows.
    """
    units = []
    for begin in range(0, len(rows), size):
        prompts, keys, messages = zip(*rows[begin : begin + size], strict=True)
        what = canonical([seed, setting.digest_fields(), sample, begin]).encode()
        number = int.from_bytes(hashlib.blake2b(what, digest_size=7).digest(), "little")
        marked = (keys, messages) if setting.format else ((), ())
        units.append(WritingUnit(setting, number, prompts, seed, *marked))
    return units


def folder_sha256(folder: Path, precision: str = "") -> str:
    """Compute the hex digest of a folder, from the names and contents of its files, and of a model's precision.

    Hidden files and folders are left out.
    """
    whole = hashlib.sha256(precision.encode())
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        with path.open("rb") as file:
            whole.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


class Digested(Protocol):
    """Work of a model, identified by a digest of everything that decides its result."""

    def digest(self, model_sha256: str) -> str:
        """Return the hex digest of the work and of the model."""


Work = TypeVar("Work", bound=Digested)


class WorkFiles(Generic[Work]):
    """Work that one model has done, kept for good in a folder, one Parquet file each.

    Args:
        folder: made if it does not exist.
        model_sha256: digest of the model and its precision.

    Raises:
        ScanFailed: the folder cannot be made.
    """

    def __init__(self, folder: Path, model_sha256: str) -> None:
        self._folder, self.model_sha256 = folder, model_sha256
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ScanFailed(f"results: the folder {folder} cannot be made: {error}") from None

    def file_of(self, work: Work) -> Path:
        """Return the path of the file for a piece of work."""
        return self._folder / f"{work.digest(self.model_sha256)[:40]}.parquet"

    def missing(self, works: Sequence[Work]) -> list[Work]:
        """Return the work that is not done yet, in order and without repeats."""
        return [work for work in dict.fromkeys(works) if not self.file_of(work).exists()]


class WrittenTexts(WorkFiles[WritingUnit]):
    """Units that were written."""

    def read(self, unit: WritingUnit) -> list[str]:
        """Read the texts of a unit, row by row.

        Raises:
            ScanFailed: the file is missing or incomplete.
        """
        path = self.file_of(unit)
        table = read_whole(path, TEXTS)
        if table["prompt"].to_pylist() != list(unit.prompts):
            raise ScanFailed(f"results: {path} does not have the expected rows; delete it and run again")
        texts: list[str] = table["text"].to_pylist()
        return texts

    def lengths(self, unit: WritingUnit) -> list[int]:
        """Return the number of tokens that the model wrote for each row."""
        token_counts: list[int] = pq.read_table(self.file_of(unit), columns=["tokens"])["tokens"].to_pylist()
        return token_counts

    def write(self, unit: WritingUnit, completions: Sequence[tuple[str, int]]) -> None:
        """Keep a unit: text and number of tokens of each row. An interruption never leaves an incomplete file.

        Raises:
            ScanFailed: the file cannot be written.
        """
        setting, path = unit.setting, self.file_of(unit)
        same = {
            "unit": path.stem,
            "model_sha256": self.model_sha256,
            **setting.columns(),
            "top_p": setting.top_p,
            "max_new_tokens": setting.max_new_tokens,
            "seed": unit.seed,
        }
        nothing = [None] * len(unit.prompts)
        rows = [
            same | {"row": row, "prompt": prompt, "commitment": key, "message": message, "text": text, "tokens": tokens}
            for row, (prompt, key, message, (text, tokens)) in enumerate(
                zip(unit.prompts, unit.commitments or nothing, unit.messages or nothing, completions, strict=True)
            )
        ]
        write_rows(path, pa.Table.from_pylist(rows, TEXTS))


def read_whole(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a file that `write_rows` wrote. Raises ScanFailed: it is missing or incomplete."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ScanFailed(f"results: {path} cannot be read ({error}); delete it and run again") from None
    if not table.schema.equals(schema):
        raise ScanFailed(f"results: {path} does not have the expected columns; delete it and run again")
    return table


def write_rows(path: Path, table: pa.Table) -> None:
    """Write a Parquet file in one step, so it is never incomplete. Raises ScanFailed: it cannot be written."""
    try:
        write_whole(path, lambda file: pq.write_table(table, file, compression="zstd"))
    except OSError as error:
        raise ScanFailed(f"results: {path} cannot be written: {error}") from None

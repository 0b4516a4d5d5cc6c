"""Texts that are to be written: batches of prompts under one setting, each with a digest of what decides its texts."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scanner.storage.canonical import canonical, digest
from scanner.watermark import Format, Watermark
from scanner.watermark.abilities import Commits
from scanner.watermark.format import Columns


@dataclass(frozen=True)
class Setting:
    """How texts are written: everything but prompts, keys, messages and seed.

    format None: not marked; delta: δ of a mark that shifts logits, None for others.
    """

    format: Format | None
    delta: float | None
    temperature: float
    top_p: float
    max_new_tokens: int

    def columns(self) -> dict[str, object]:
        """Values for the columns of tables; null where nothing is marked."""
        none: dict[str, object] = dict.fromkeys(Columns._fields)
        mark = none if self.format is None else self.format.columns()._asdict()
        return mark | {"delta": self.delta, "temperature": self.temperature}

    def decides(self) -> dict[str, object]:
        """Everything that decides the texts, for digests: the columns, and the label of formats newer than these."""
        mark = {} if self.format is None else self.format.decides()
        return self.columns() | mark | {"top_p": self.top_p, "max_new_tokens": self.max_new_tokens}

    def commitment(self, secret: bytes) -> str | None:
        """Commitment of a key, in hex; None where nothing is marked, or nothing committed to."""
        return self.format.commitment(secret).hex() if isinstance(self.format, Commits) else None

    @property
    def strength(self) -> float:
        """The parameter that the paper varies: δ of a mark that has one, else the temperature."""
        return self.temperature if self.delta is None else self.delta

    def watermark(self, secret: bytes) -> Watermark | None:
        """The mark under one key; None where nothing is marked."""
        return None if self.format is None else self.format.open(secret)


@dataclass(frozen=True)
class Unit:
    """A batch that is written in one go: prompts and, when it is marked, the number of the key and message of each.

    A sampled text depends on its whole batch, so batches are what is kept and looked up.
    """

    setting: Setting
    seed: int
    prompts: tuple[str, ...]
    key_seed: str = field(repr=False)
    keys: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()

    @property
    def commitments(self) -> list[str | None]:
        """Commitment of each row's key, in hex."""
        return [self.setting.commitment(key_secret(self.key_seed, key)) for key in self.keys]

    def watermarks(self) -> list[Watermark]:
        """The mark of each row; rows of one key share it."""
        how = self.setting.format
        opened = {key: how.open(key_secret(self.key_seed, key)) for key in set(self.keys)} if how else {}
        return [opened[key] for key in self.keys]

    def digest(self, model_sha256: str) -> str:
        """Hex digest of all that decides the texts: the model, the setting, the seed and every row. No key."""
        decides = {
            "model": model_sha256,
            "setting": self.setting.decides(),
            "seed": self.seed,
            "prompts": self.prompts,
            "commitments": self.commitments,
            "messages": self.messages,
        }
        return digest(decides)


def key_secret(seed: str, number: int) -> bytes:
    """A master key of the experiments, 32 bytes: drawn from a seed that anyone may know, and fit for nothing else."""
    return hashlib.blake2b(
        number.to_bytes(8, "little"), key=seed.encode("ascii"), digest_size=32, person=b"evaluate-v1"
    ).digest()


def batches(
    setting: Setting,
    seed: str,
    rows: Sequence[tuple[str, int, int]],
    size: int,
    *,
    sample: int = 0,
) -> list[Unit]:
    """Cut the rows of one setting into units.

    Args:
        setting: how they are written.
        seed: configured seed of keys and sampling.
        rows: prompt, number of the key, message; without a mark, the last two mean nothing.
        size: rows of a unit; the last one may have fewer.
        sample: number of the sample; each gives another sample of the same rows.
    """
    units = []
    for begin in range(0, len(rows), size):
        prompts, keys, messages = zip(*rows[begin : begin + size], strict=True)
        what = canonical([seed, setting.decides(), sample, begin]).encode()
        number = int.from_bytes(hashlib.blake2b(what, digest_size=7).digest(), "little")
        marked = (keys, messages) if setting.format else ((), ())
        units.append(Unit(setting, number, prompts, seed, *marked))
    return units


def folder_sha256(folder: Path) -> str:
    """Hex digest of a model's folder: of the names and contents of its files, hidden ones and folders left out."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        with path.open("rb") as file:
            whole.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()

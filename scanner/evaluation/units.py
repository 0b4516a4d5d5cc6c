"""What is to be written: batches of prompts under one setting, each with a digest of all that decides its texts."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scanner.watermark import GreenList, Gumbel, Watermark, commitment, label
from schemas.registry import Method, parse_gamma


@dataclass(frozen=True)
class Setting:
    """How texts are written: everything but prompts, keys, messages and seed.

    method None: not marked, and then window, gamma and delta are None too; Gumbel has neither gamma nor delta.
    """

    method: Method | None
    window: int | None
    gamma: str | None
    delta: float | None
    temperature: float
    top_p: float
    max_new_tokens: int

    @property
    def label(self) -> str:
        """The label of its streams (SPEC §1)."""
        assert self.method is not None and self.window is not None  # noqa: S101, PT018
        return label(self.method, self.window, None if self.gamma is None else parse_gamma(self.gamma))

    @property
    def strength(self) -> float:
        """What the paper varies: δ of the green list, the temperature of Gumbel."""
        return self.temperature if self.delta is None else self.delta

    def watermark(self, secret: bytes) -> Watermark:
        """The mark under one key."""
        assert self.window is not None  # noqa: S101
        if self.method == "gumbel":
            return Gumbel(secret, self.window)
        assert self.gamma is not None  # noqa: S101
        return GreenList(secret, self.window, parse_gamma(self.gamma))


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
    def commitments(self) -> list[str]:
        """Commitment of each row's key, in hex."""
        return [commitment(key_secret(self.key_seed, key), self.setting.label).hex() for key in self.keys]

    def watermarks(self) -> list[Watermark]:
        """The mark of each row; rows of one key share it."""
        opened = {key: self.setting.watermark(key_secret(self.key_seed, key)) for key in set(self.keys)}
        return [opened[key] for key in self.keys]

    def digest(self, model_sha256: str) -> str:
        """Hex digest of all that decides the texts: the model, the setting, the seed and every row. No key."""
        decides = {
            "model": model_sha256,
            "setting": asdict(self.setting),
            "seed": self.seed,
            "prompts": self.prompts,
            "commitments": self.commitments,
            "messages": self.messages,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def key_secret(seed: str, number: int) -> bytes:
    """A master key of the experiments, 32 bytes: drawn from a seed that anyone may know, fit for nothing else."""
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
        seed: of keys and sampling, as configured.
        rows: prompt, number of the key, message; without a method, the last two say nothing.
        size: rows of a unit; the last one may have fewer.
        sample: another number, another sample of the same rows.
    """
    units = []
    for begin in range(0, len(rows), size):
        prompts, keys, messages = zip(*rows[begin : begin + size], strict=True)
        what = json.dumps([seed, asdict(setting), sample, begin], sort_keys=True).encode()
        number = int.from_bytes(hashlib.blake2b(what, digest_size=7).digest(), "little")
        marked = (keys, messages) if setting.method else ((), ())
        units.append(Unit(setting, number, prompts, seed, *marked))
    return units


def folder_sha256(folder: Path) -> str:
    """Hex digest of a model's folder: of the names and contents of its files, hidden ones and folders left out."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()

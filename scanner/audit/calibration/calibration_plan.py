"""An audit before it begins: its whole plan, with paths made absolute, and with every check that can refuse it."""

import datetime
import hashlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.calibration.admission import LawCase, cases
from scanner.audit.calibration.names import NamesCase, names_cases
from scanner.errors import Refused
from scanner.input.documents import Columns
from scanner.input.files import resolve
from scanner.registry import find_key, load_registry, open_key, tokenizer_path
from scanner.storage.locations import refuse_password
from scanner.storage.toml import digest, read_toml
from scanner.text import load_tokenizer
from scanner.watermark import Format
from scanner.watermark.native.version2 import of_the_paper
from schemas.audit import CalibrationConfig, RegistryAuditConfig
from schemas.registry import MasterKey

KEY_STRIDE = 2**32
"""Distance between the documents' numbers of two cases, which decide their keys, so that no number comes twice."""


class AuditedKeys(NamedTuple):
    """The audited keys, how they are audited, and the folder of their registry. No secrets."""

    config: RegistryAuditConfig
    registry: str
    keys: tuple[MasterKey, ...]


@dataclass(frozen=True)
class CalibrationPlan:
    """The whole plan of an audit. No secrets.

    results: folder or URI; locations: the corpus, resolved; tokenizer: path; audited: None when no keys are.
    """

    config: CalibrationConfig
    results: str
    locations: tuple[str, ...]
    tokenizer: str
    audited: AuditedKeys | None

    @property
    def columns(self) -> Columns:
        """Names of the corpus's columns."""
        return Columns.of(self.config.input)

    @property
    def seed(self) -> bytes:
        """Seed of all keys that are drawn."""
        return self.config.seed.encode("ascii")

    @property
    def config_sha256(self) -> str:
        """Digest of the configuration as it was read, as hex text."""
        return digest(self.config.model_dump(mode="json"))

    def law_cases(self) -> list[LawCase]:
        """All cases of the law."""
        law = self.config.law
        if law is None:
            return []
        return cases(of_the_paper(law.gammas, law.windows, law.version), law.dedups, law.messages)

    def names_cases(self) -> list[NamesCase]:
        """All kinds of marked text."""
        requested = self.config.names
        if requested is None:
            return []
        return names_cases(
            of_the_paper([requested.gamma], [requested.window], 2, requested.groups),
            requested.groups,
            requested.users,
            requested.tokens,
        )

    def piece_formats(self) -> list[Format]:
        """Formats of the keys under which disjoint pieces are tested."""
        requested = self.config.figure
        return [] if requested is None else of_the_paper([requested.gamma], requested.windows, requested.version)

    def piece_secrets(self) -> list[bytes]:
        """The master keys for disjoint pieces, 32 bytes each, drawn from the seed and fit for nothing else."""
        count = self.config.figure.keys if self.config.figure else 0
        return [
            hashlib.blake2b(number.to_bytes(8, "little"), key=self.seed, digest_size=32, person=b"figure-v1").digest()
            for number in range(count)
        ]


def plan_calibration(
    config_file: Path, date: datetime.date | None = None, law_tests: int | None = None
) -> CalibrationPlan:
    """Read a configuration, and open once every file that it names. Relative paths start at the configuration's folder.

    Args:
        config_file: TOML, see schemas.audit.CalibrationConfig.
        date: fills {date} in the corpus's paths.
        law_tests: null p-values of each format, in place of the configured number.

    Raises:
        Refused: something cannot be right; names file, field, value and what is allowed.
    """
    config = read_toml(config_file, CalibrationConfig)
    if law_tests is not None:
        if config.law is None:
            raise Refused(f"--tests {law_tests}: {config_file} has no section [law]; add it, or leave the option out")
        config = config.model_copy(update={"law": config.law.model_copy(update={"tests": law_tests})})
    base = config_file.absolute().parent
    refuse_password("results", config.results)
    results = config.results if "://" in config.results else str(base / config.results)
    tokenizer = base / config.tokenizer.file
    load_tokenizer(tokenizer, config.tokenizer.sha256)
    return CalibrationPlan(
        config=config,
        results=results,
        locations=tuple(resolve(path, base, date) for path in config.input.paths),
        tokenizer=str(tokenizer),
        audited=None if config.keys is None else _audited(config.keys, str(base / config.keys.registry)),
    )


def _audited(config: RegistryAuditConfig, registry: str) -> AuditedKeys:
    record, wanted = load_registry(registry), config.keys
    keys = record.keys if wanted is None else tuple(find_key(record, key_id) for key_id in wanted)
    if not keys:
        raise Refused(f"keys.registry: {registry} has no keys; make one with `brickscan keys new`")
    for key in keys:
        open_key(registry, key)
        load_tokenizer(tokenizer_path(registry, key), key.tokenizer.sha256)
    return AuditedKeys(config, registry, keys)


def distinct_documents(digests: list[NDArray[np.uint64]]) -> list[NDArray[np.int64]]:
    """For each part, the documents whose text stands in no earlier place: int64 places within the part."""
    if not digests:
        return []
    _, first = np.unique(np.concatenate(digests), return_index=True)
    bounds = np.cumsum([0, *map(len, digests)])
    first.sort()
    return [first[(first >= a) & (first < b)] - a for a, b in pairwise(bounds)]


def draw_documents(
    available: list[NDArray[np.int64]], count: int, seed: bytes, case: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Draw documents for one case of the law: for each part, which ones, and the numbers that decide their keys.

    Without replacement while they last; then all over again, since a further key makes a further independent draw.
    """
    part = np.repeat(np.arange(len(available)), [len(places) for places in available])
    place = np.concatenate(available)
    generator = np.random.default_rng([*seed, case])
    rounds = -(-count // len(place))
    order = np.concatenate([generator.permutation(len(place)) for _ in range(rounds)])[:count]
    numbers = case * KEY_STRIDE + np.arange(count, dtype=np.int64)
    return [(place[order[part[order] == p]], numbers[part[order] == p]) for p in range(len(available))]


def draw_pieces(
    lengths: list[NDArray[np.int64]], available: list[NDArray[np.int64]], count: int, tokens: int, seed: bytes
) -> list[NDArray[np.int64]]:
    """How many disjoint pieces of so many tokens to take of each document of each part: `count` in all, if there are.

    Documents come in random order, each with all of its pieces.
    """
    offered = [np.zeros(len(part), np.int64) for part in lengths]
    for pieces, part, places in zip(offered, lengths, available, strict=True):
        pieces[places] = part[places] // tokens
    flat = np.concatenate(offered)
    order = np.random.default_rng([*seed, len(flat)]).permutation(len(flat))
    before = np.cumsum(flat[order]) - flat[order]
    taken = np.zeros(len(flat), np.int64)
    taken[order] = np.clip(count - before, 0, flat[order])
    return list(np.split(taken, np.cumsum([len(part) for part in lengths])[:-1]))

"""A registry with two keys and two tokenizers, texts that are really marked, and one Ray cluster for all tests."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from scanner import results
from scanner.cluster import Outcome, run_scan
from scanner.cluster.connect import cluster
from scanner.detection.scan_plan import Plan, make_plan
from scanner.registry import add_users, list_users, load_registry, new_key, open_key
from scanner.results.tables import open_tables
from scanner.watermark import GreenList
from schemas.config import ClusterConfig
from tests.fixed import fix_secrets
from tests.scan.faulty_scan import POISON, SLOW
from tests.scan.submitted import Submitted, mount, secrets_of, start_head, submit

TOKENIZER = Path(__file__).parents[2] / "jobs" / "demo" / "tokenizer.json"
MESSAGES = {"green": 2000, "gum": 500}


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory) -> Path:
    """A second tokenizer: one token a byte, and a control token."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train_from_iterator([], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "bytes.json"
    inner.save(str(path))
    return path


@pytest.fixture(scope="session")
def registry(tmp_path_factory, byte_tokenizer) -> Path:
    """Keys `green` (SmolLM2's tokenizer) and `gum` (one token a byte); alice and bob hold a message of each."""
    folder = tmp_path_factory.mktemp("registry")
    fix_secrets(folder, *MESSAGES)
    new_key(folder, "green", format="greenlist", window=2, gamma="1/4", messages=MESSAGES["green"], tokenizer=TOKENIZER)
    new_key(folder, "gum", format="gumbel", window=4, messages=MESSAGES["gum"], tokenizer=byte_tokenizer)
    add_users(folder, None, ["alice", "bob"])
    return folder


def message_of(registry: Path, key_id: str, user: str) -> int:
    held = list_users(registry, [key_id]).filter(pl.col("user_id") == user)
    return int(held["message"][0])


class Words(NamedTuple):
    """Words that SmolLM2's tokenizer turns into one token each, wherever they stand, with that token."""

    tokens: np.ndarray
    words: list[str]


@pytest.fixture(scope="session")
def words() -> Words:
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    found = {token: i for token, i in inner.get_vocab().items() if token[0] == "Ġ" and token[1:].isascii()}
    found = {token[1:]: i for token, i in found.items() if token[1:].isalpha() and token[1:].islower()}
    names = sorted(found)[::7]
    encoded = inner.encode_batch([" " + name for name in names], add_special_tokens=False)
    kept = [(found[name], name) for name, e in zip(names, encoded, strict=True) if e.ids == [found[name]]]
    return Words(np.array([i for i, _ in kept]), [name for _, name in kept])


@pytest.fixture(scope="session")
def plain(words) -> Callable[..., str]:
    """Random text of so many words."""

    def make(length: int, seed: int) -> str:
        return "".join(
            " " + words.words[i] for i in np.random.default_rng(seed).integers(len(words.words), size=length)
        )

    return make


@pytest.fixture(scope="session")
def marked(registry, words) -> Callable[..., str]:
    """Text of so many words, marked under the green-list key for a message: each word green where one of 20 is."""
    key = next(key for key in load_registry(registry).keys if key.key_id == "green")
    mark = open_key(registry, key)
    assert isinstance(mark, GreenList)

    def make(message: int, length: int, seed: int) -> str:
        generator = np.random.default_rng(seed)
        chosen = list(generator.integers(len(words.words), size=mark.window))
        while len(chosen) < length:
            window = words.tokens[chosen[-mark.window :]].astype(np.uint32)
            nonces = mark.window_nonces(window[None, :])
            green = mark.green(nonces, np.array([message]), int(words.tokens.max()) + 1)[0]
            candidates = generator.integers(len(words.words), size=20)
            chosen.append(next((c for c in candidates if green[words.tokens[c]]), candidates[0]))
        return "".join(" " + words.words[i] for i in chosen)

    return make


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """An embedded cluster for two workers, which every scan of the tests joins."""
    with cluster(ClusterConfig(workers=2)):
        yield


CONFIG = """\
registry = "{registry}"
results = "results"
false_positive_rate = {rate}
{more}
[input]
paths = {paths}
text = "text"
id = "doc_id"
{columns}
[audit]
family_error = 1e-6
{audit}
[cluster]
workers = 2
"""


class Night:
    """A folder with input, configuration and results, and what a test does with them."""

    def __init__(self, folder: Path, registry: Path) -> None:
        self.folder = folder
        self.registry = registry
        self.input = folder / "in"
        self.input.mkdir()
        self.results = str(folder / "results")
        self.configure()

    def configure(
        self, rate: float = 1e-6, more: str = "", columns: str = "", audit: str = "", paths: Sequence[str] = ("in",)
    ) -> Path:
        quoted = "[" + ", ".join(f'"{path}"' for path in paths) + "]"
        text = CONFIG.format(registry=self.registry, rate=rate, more=more, columns=columns, audit=audit, paths=quoted)
        self.config = self.folder / "scan.toml"
        self.config.write_text(text)
        return self.config

    def write(self, name: str, texts: Sequence[Any], row_group: int = 1000, **columns: Any) -> Path:
        """Write a file of texts (str or bytes); ids are name:0, name:1, … unless given."""
        raw = [text.encode() if isinstance(text, str) else text for text in texts]
        columns.setdefault("doc_id", [f"{name}:{i}" for i in range(len(raw))])
        stored = pa.Array.from_buffers(pa.string(), len(raw), pa.array(raw, pa.binary()).buffers())
        path = self.input / f"{name}.parquet"
        pq.write_table(pa.table({"text": stored, **columns}), path, row_group_size=row_group)
        return path

    def plan(self) -> Plan:
        return make_plan(self.config)

    def scan(self, **options: Any) -> Outcome:
        return run_scan(self.plan(), lambda work, totals: None, **options)

    def verdicts(self) -> pl.DataFrame:
        """All rows, older ones included, so that nothing that was written twice is hidden."""
        return pl.read_delta(results.table_uri(self.results, "verdicts")).sort("path", "row")

    def quarantine(self) -> pl.DataFrame:
        return results.quarantine(self.results).collect().sort("path", "row")

    def last_scan(self) -> dict[str, Any]:
        return results.scans(self.results).collect().row(-1, named=True)


@pytest.fixture
def night(tmp_path, registry) -> Night:
    return Night(tmp_path, registry)


@pytest.fixture
def own_registry(night, registry) -> Path:
    """A copy that a test may spoil."""
    night.registry = Path(shutil.copytree(registry, night.folder / "registry"))
    night.configure()
    return night.registry


@pytest.fixture(scope="session")
def submitted(tmp_path_factory, registry, marked, plain) -> Iterator[tuple[Submitted, Night, dict[str, bytes]]]:
    """A scan that ran as a job of a real cluster, one document of which failed; its night, and its keys' bytes."""
    folder = tmp_path_factory.mktemp("submitted")
    own = Path(shutil.copytree(registry, folder / "registry"))
    secrets = secrets_of(own)
    night = Night(folder, own)
    environment = mount(own, folder / "mounted")
    alice = message_of(registry, "green", "alice")
    night.write("a", [marked(alice, 60, 1), *(plain(60, i) for i in range(7))])
    night.write("b", [*(plain(60, 100 + i) for i in range(7)), POISON])
    night.write("c", [*(plain(60, 200 + i) for i in range(7)), SLOW])
    for head in start_head(environment):
        yield submit(head, night), night, secrets | {"token": bytes.fromhex(head.token)}


@pytest.fixture
def folder(tmp_path) -> str:
    open_tables(str(tmp_path / "some" / "results"))
    return str(tmp_path / "some" / "results")

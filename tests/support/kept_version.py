"""Makes what tests/data keeps of a version, for later ones to read: python -m tests.support.kept_version FOLDER

A registry, a scanned night with everything that makes a table turned on, a claim, and a detector's signed report.
Everything is made in one place, since rows name the paths of their files. Made once for each version, and never again.
"""

import gzip
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tokenizers import Tokenizer

from scanner.registry import (
    add_users,
    erase_users,
    find_key,
    list_users,
    load_registry,
    new_key,
    open_key,
    remove_users,
)
from scanner.service.signing import new_signing_key
from schemas.words import VERSION
from tests.bench.wrong_names import CHOICES_A_STEP, choose_favourites
from tests.fixed import fix_secrets
from tests.golden.night import LOOKS
from tests.support.command_line import call
from tests.support.detecting import ask, detecting, request
from tests.support.two_keys import message_of, write_byte_tokenizer
from tests.support.without_ray import open_once, put_in_the_place_of_ray

PLACE = Path("/tmp/brickscan-kept")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,;"
BOILERPLATE = " This post was sent from my telephone, please forgive what it says."
NIGHT = "2026-02-01"
KEYS = {
    "green": {"format": "greenlist", "window": 2, "gamma": "1/4", "messages": 2000},
    "groups": {"format": "gumbel-v2", "window": 2, "groups": 40, "messages": 1600},
}
SCAN = f"""\
version = {VERSION}
registry = "registry"
results = "results"
false_positive_rate = 1e-6
{LOOKS}[evidence]
keep_text = true
[cluster]
workers = 1
"""
DETECTOR = f'version = {VERSION}\nname = "https://detector.example"\nfactor = 10\nworkers = 1\n'


def make(folder: Path) -> None:
    """Make everything in PLACE, and copy what is kept to a folder that is not there yet."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "registry").mkdir(parents=True, mode=0o700)
    _make_registry(PLACE / "registry")
    texts = _write_posts(PLACE)
    (PLACE / "scan.toml").write_text(SCAN)
    (PLACE / "detector.toml").write_text(DETECTOR)
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        open_once(patch)
        patch.chdir(PLACE)
        _call("scan", "scan.toml", "--date", NIGHT)
        _call("decide", "scan.toml", "green alice", "confirmed", "--note", "as marked", "--by", "kept")
        _call("keys", "publish", "commitments.txt", "--registry", "registry")
        _call("replay", "scan.toml", "groups alice", "--proof", "claim")
    _sign_report(PLACE, texts["green alice"])
    _shorten(PLACE / "results" / "filter_sketches")
    rows = json.dumps(dict(rows_of(PLACE / "results"))).encode()
    (PLACE / "rows.json.gz").write_bytes(gzip.compress(rows, mtime=0))
    users = plain_rows(list_users(PLACE / "registry").to_dicts())
    (PLACE / "users.json").write_text(json.dumps(users, indent=0, ensure_ascii=False) + "\n")
    shutil.copytree(PLACE, folder, ignore=shutil.ignore_patterns("*.pem", "secret", "*.lock", "log*", "budget*"))


def _make_registry(registry: Path) -> None:
    fix_secrets(registry, *KEYS)
    write_byte_tokenizer(registry / "tokenizer.json")
    for key_id, about in KEYS.items():
        new_key(registry, key_id, tokenizer="tokenizer.json", active_from=LONG_AGO, **about)
    add_users(registry, None, ["alice", "bob", "carol", "dave"], LONG_AGO)
    remove_users(registry, ["carol", "dave"], LONG_AGO)
    erase_users(registry, ["dave"])


def _write_posts(folder: Path) -> dict[str, str]:
    """Write a night: marked texts of each key, a quotation, a part, short posts of an account, and what has no mark."""
    write = Letters(folder / "registry")
    texts = {f"{key} {user}": write(key, user, 300, 1) for key in KEYS for user in ("alice", "bob")}
    texts["quoted"] = "> " + texts["green bob"] + "\nI do not think so."
    texts["a part"] = write(None, "", 400, 2) + texts["groups bob"] + write(None, "", 400, 3)
    texts |= {f"short {i}": write("green", "bob", 60, 10 + i) for i in range(12)}
    texts |= {f"plain {i}": write(None, "", 200, 50 + i) + BOILERPLATE for i in range(10)}
    accounts = ["bob's" if name.startswith("short") else f"account of {name}" for name in texts]
    stored: list[str | None] = [*texts.values(), None]
    (folder / "in" / NIGHT).mkdir(parents=True)
    posted = [datetime.fromisoformat(f"{NIGHT}T12:00:00+00:00")] * len(stored)
    about = {"doc_id": [*texts, "no text"], "account": [*accounts, "nobody's"]}
    table = pa.table({"text": stored, **about, "posted": pa.array(posted, pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, folder / "in" / NIGHT / "posts.parquet", compression="zstd")
    return texts


class Letters:
    """Writes letters that are marked for a user of a key, each the mark's favourite of eight; None: without a mark."""

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        codes = Tokenizer.from_file(str(registry / "tokenizer.json"))
        self._tokens = np.array([codes.encode(letter).ids[0] for letter in LETTERS])

    def __call__(self, key_id: str | None, user: str, length: int, seed: int) -> str:
        """So many letters."""
        random = np.random.default_rng(seed)
        chosen = random.integers(len(LETTERS), size=(1, length))
        if key_id is not None:
            mark = open_key(self._registry, find_key(load_registry(self._registry), key_id))
            message = np.array([message_of(self._registry, key_id, user)])
            for step in range(mark.rule.context, length):
                some = random.integers(len(LETTERS), size=(1, CHOICES_A_STEP))
                before = self._tokens[chosen[:, step - mark.rule.context : step]]
                chosen[:, step] = some[0, choose_favourites(mark, before, self._tokens[some], message)]
        return "".join(LETTERS[number] for number in chosen[0])


def _call(*arguments: str) -> None:
    code, out, err = call(*arguments)
    assert code == 0, out + err


def _sign_report(folder: Path, text: str) -> None:
    """Ask a detector about a text; keep its report, the text, and the signpost that has the public key."""
    new_signing_key(folder / "detector")
    with detecting(folder / "detector.toml") as server:
        report = ask(server, text)["report"]
        signpost = request(server, "GET", "/.well-known/ai-provenance")[2]
    kept = folder / "report"
    kept.mkdir()
    (kept / "report.json").write_text(json.dumps(report))
    (kept / "text.txt").write_text(text)
    (kept / "signpost.json").write_bytes(signpost)


def _shorten(sketches: Path) -> None:
    """Leave four of the 256 parts of a sketch, which are half of all bytes."""
    table = DeltaTable(sketches)
    table.delete("part >= 4")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def rows_of(results: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every table of a folder of results by name: its rows as JSON has them, sorted."""
    for log in sorted(results.glob("*/_delta_log")):
        yield log.parent.name, plain_rows(DeltaTable(log.parent).to_pyarrow_table().to_pylist())


def plain_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as JSON has them, sorted: bytes as hex or, of many, a digest; times as text; numbers keep every digit."""
    return [json.loads(line) for line in sorted(json.dumps(row, default=_plain) for row in rows)]


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 64 else hashlib.sha256(value).hexdigest()
    return str(value)


if __name__ == "__main__":
    make(Path(sys.argv[1]))

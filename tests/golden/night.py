"""Makes the golden night: two dates under keys of all formats, with everything turned on.

All that decides a result is fixed: secrets, messages, texts, times of files and of users, and the folder itself, since
ids of shards and names of pages hash the paths of files. So two runs cannot have a folder each: the second one waits.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from scanner.registry import admit_key, load_registry, new_key, open_key, restore_users, set_canaries
from scanner.watermark import Watermark
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.hidden_value import HiddenValue
from schemas.registry import Admission, Canaries, Canary
from schemas.tables import USER_EVENTS
from tests.bench.wrong_names import CHOICES_A_STEP, choose_favourites
from tests.fixed import fix_secrets
from tests.support.two_keys import TOKENIZER, Words, words_of_one_token, write_byte_tokenizer

FOLDER = Path("/tmp/brickscan-golden")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
NIGHTS = ("2026-02-01", "2026-02-02")
LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,;"
NATIVE = {
    "greenlist": {"window": 2, "gamma": "1/4"},
    "gumbel": {"window": 4},
    "greenlist-v3": {"window": 2, "gamma": "1/4", "groups": 40, "seeds": 8},
    "gumbel-v3": {"window": 2, "groups": 40, "seeds": 8},
}
STACKS = {
    "vllm-gumbel": {},
    "vllm-dual-key": {},
    "sglang-one-key": {},
    "sglang-two-keys": {},
    "sglang-user-keys": {},
    "hf-lefthash": {"vocab_size": 300},
    "hf-selfhash": {"vocab_size": 300, "context_width": 4},
    "synthid-table": {},
    "synthid-mixed": {},
    "three-bricks-openai": {"vocab_size": 300, "window": 2},
    "three-bricks-maryland": {"vocab_size": 300, "window": 2},
    "sbw": {},
}
MESSAGES = dict.fromkeys(NATIVE, 1600) | {"three-bricks-openai": 20, "sglang-user-keys": 20}
USERS = ("alice", "bob", "carol", "<b>dora & co</b>", "erased")
CANARIES = ("canary-one", "canary-two")
BOILERPLATE = " This post was sent from my telephone, please forgive what it says and how it was written, many thanks."
LOOKS = """\
[input]
paths = ["in/{date}"]
text = "text"
id = "doc_id"
account = "account"
time = "posted"
[variants]
normalised = true
[spans]
windows = true
segments = true
[accounts]
nights = 7
[filter]
texts = 8
"""
"""Sections of scan.toml that turn every look at a text on."""

CONFIG = f"""\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-5
misnaming_rate = 1e-4
{LOOKS}[audit]
share = 1.0
all_messages_share = 0.5
decisions_share = 0.5
[evidence]
keep_text = true
[cluster]
workers = 1
"""


def make_golden_registry(folder: Path) -> None:
    """Make a registry with a key of every format, the same users of each that tells users apart, and two canaries."""
    if missing := set(FORMATS) - set(NATIVE) - set(STACKS):
        raise AssertionError(f"formats that the golden night lacks: {', '.join(sorted(missing))}")
    fix_secrets(folder, *NATIVE)
    letters = write_byte_tokenizer(folder.parent / "bytes.json")
    for name, parameters in NATIVE.items():
        new_key(
            folder, name, format=name, messages=MESSAGES[name], tokenizer=TOKENIZER, active_from=LONG_AGO, **parameters
        )
    for name, parameters in STACKS.items():
        secret = HiddenValue(make_format(name, parameters).decoy_key(hashlib.sha256(name.encode()).digest()))
        count = MESSAGES.get(name, 1)
        new_key(
            folder,
            name,
            format=name,
            messages=count,
            tokenizer=letters,
            secret_value=secret,
            active_from=LONG_AGO,
            **parameters,
        )
        if make_format(name, parameters).basis() != "key":
            admit_key(folder, name, Admission(
                audit_id="golden", audited_at=LONG_AGO, holds_down_to=1e-8, candidates=1, messages=count
            ))  # fmt: skip
    restore_users(folder, pa.Table.from_pylist([*_allocations()], USER_EVENTS))
    made = [
        Canary(account_id=name, key_id=key, message=message_of(key, name), names=True)
        for name in CANARIES
        for key in NATIVE
    ]
    set_canaries(folder, Canaries(power=0.9, made=tuple(made)))


def message_of(key_id: str, user: str) -> int:
    """The message that a user or canary holds; none is reserved."""
    return 1 + [*USERS, *CANARIES].index(user) * (40 if key_id in NATIVE else 2)


def _allocations() -> Iterator[dict[str, object]]:
    for key_id in MESSAGES:
        for user in (*USERS, *(CANARIES if key_id in NATIVE else ())):
            held = {"key_id": key_id, "event": "allocated", "at": LONG_AGO}
            yield held | {"message": message_of(key_id, user), "user_id": user}


class Writer:
    """Writes text that is marked under the keys of a registry, and text of the same kind that is not."""

    def __init__(self, registry: Path) -> None:
        self._marks: dict[str, Watermark] = {
            key.key_id: open_key(registry, key) for key in load_registry(registry).keys
        }
        self._words: Words = words_of_one_token()
        codes = Tokenizer.from_file(str(registry.parent / "bytes.json"))
        ids = np.array([codes.encode(letter).ids[0] for letter in LETTERS])
        self._letters = Words(ids, list(LETTERS))

    def write(self, key_id: str | None, length: int, seed: int, *messages: int) -> list[str]:
        """Write a text for each message: so many words, or letters under keys of other stacks; None: without a mark.

        Each word is the mark's favourite among eight.
        """
        units = self._letters if key_id in STACKS else self._words
        random = np.random.default_rng(seed)
        chosen = random.integers(len(units.words), size=(len(messages), length))
        if key_id is not None:
            mark = self._marks[key_id]
            behind = mark.rule.context
            for step in range(behind, length):
                some = random.integers(len(units.words), size=(len(messages), CHOICES_A_STEP))
                before = units.tokens[chosen[:, step - behind : step]]
                best = choose_favourites(mark, before, units.tokens[some], np.array(messages))
                chosen[:, step] = some[np.arange(len(messages)), best]
        blank = " " if units is self._words else ""
        return ["".join(blank + units.words[number] for number in text) for text in chosen]


Post = tuple[str | bytes | None, str, str]
"""A text, its id and the account that posted it."""


def write_first_night(writer: Writer) -> Iterator[Post]:
    """Write a text under each key, posts of people with a line that all share, and posts that cannot be read."""
    for number, key_id in enumerate((*NATIVE, *STACKS)):
        message = message_of(key_id, "alice") if key_id in MESSAGES else 0
        (text,) = writer.write(key_id, 240 if key_id in STACKS else 120, number, message)
        yield text, f"marked {key_id}", "poster"
    yield from _posts_of_people(writer, 1000)
    yield None, "no text", "account 1"
    yield b"caf\xe9", "no UTF-8", "account 2"
    yield "short", "short", "account 3"


def write_second_night(writer: Writer) -> Iterator[Post]:
    """Write what a night can pose: copies, quotations, two users, look-alikes, erased users, canaries, short posts."""
    for key_id in NATIVE:
        held = [message_of(key_id, user) for user in ("alice", "bob", "erased", *CANARIES)]
        alice, bob, erased, *canaries, reserved, nobodys = writer.write(key_id, 140, 1, *held, 19, 777)
        before, behind = writer.write(None, 200, 2, 0, 0)
        yield alice, f"alice {key_id}", "poster"
        yield alice, f"copied {key_id}", "copier"
        yield alice.replace("a", "а").replace("o", "о"), f"look-alikes {key_id}", "poster"
        yield "".join(f"\n> {line}" for line in alice.split(" s")) + "\nI agree.", f"quoted {key_id}", "quoter"
        yield before + alice + behind, f"part {key_id}", "poster"
        yield alice + bob, f"two users {key_id}", "poster"
        yield erased, f"erased {key_id}", "poster"
        yield reserved, f"reserved {key_id}", "poster"
        yield nobodys, f"nobody's {key_id}", "poster"
        for text, canary in zip(canaries, CANARIES, strict=True):
            yield text, f"{canary} {key_id}", canary
        for number, text in enumerate(writer.write(key_id, 36, 3, *[message_of(key_id, "carol")] * 12)):
            yield text, f"short post {key_id} {number}", "carol's account"
    yield from _posts_of_people(writer, 2000)


def _posts_of_people(writer: Writer, seed: int) -> Iterator[Post]:
    for number, text in enumerate(writer.write(None, 60, seed, *[0] * 40)):
        yield text + BOILERPLATE, f"plain {number}", f"account {number}"


def write_input(folder: Path) -> None:
    """Write the Parquet files of both dates, with fixed times of change; a file of the second one is broken."""
    writer = Writer(folder / "registry")
    for night, rows in zip(NIGHTS, (write_first_night(writer), write_second_night(writer)), strict=True):
        texts, ids, accounts = zip(*rows, strict=True)
        raw = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
        stored = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
        posted = pa.array([datetime.fromisoformat(f"{night}T12:00:00+00:00")] * len(raw), pa.timestamp("us", tz="UTC"))
        (folder / "in" / night).mkdir(parents=True)
        table = pa.table({"text": stored, "doc_id": ids, "account": accounts, "posted": posted})
        pq.write_table(table, folder / "in" / night / "posts.parquet", row_group_size=50)
    (folder / "in" / NIGHTS[1] / "broken.parquet").write_bytes(b"PAR1 and no more")
    for path in sorted((folder / "in").rglob("*.parquet")):
        os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))


@contextlib.contextmanager
def golden_folder() -> Iterator[Path]:
    """Make the folder of the golden night, anew: registry, input and scan.toml. Other runs wait until it is left."""
    with FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(mode=0o700)
        make_golden_registry(FOLDER / "registry")
        write_input(FOLDER)
        (FOLDER / "scan.toml").write_text(CONFIG)
        yield FOLDER

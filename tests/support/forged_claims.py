"""Claims that somebody writes who knows check_claim.py: all numbers follow from each other, whatever they say."""

import contextlib
import functools
import hashlib
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from tokenizers import Tokenizer

from scanner.evidence import check_claim
from scanner.evidence.check_claim import Mark
from scanner.registry import load_registry
from scanner.registry.key_records import record_path
from scanner.watermark.formats import format_of
from tests.support.command_line import call
from tests.support.two_keys import TOKENIZER, Words


@functools.cache
def encode(tokenizer: Path, text: str) -> list[int]:
    return list(_of_forgers(tokenizer.read_bytes()).encode(text, add_special_tokens=False).ids)


@functools.cache
def _of_forgers(
    data: bytes,
) -> Tokenizer:  # one of their own, since the script changes how the one that it opened reads
    return Tokenizer.from_buffer(data)


@functools.cache
def _opened(data: bytes) -> Tokenizer:
    return Tokenizer.from_buffer(data)


LIBRARY = SimpleNamespace(__version__=tokenizers.__version__, Tokenizer=SimpleNamespace(from_buffer=_opened))
"""What check_claim.py needs of the library `tokenizers`; it opens the tokenizer of all claims once."""

SALT = bytes(range(16))

_MADE: dict[tuple[object, ...], str] = {}


def event_after(events: Sequence[str], leaves: Iterable[str], text: str) -> str:
    """The line of events.jsonl that comes after these: a claim about a text shows these leaves."""
    before = hashlib.sha256(events[-1].encode()).hexdigest() if events else "0" * 64
    digest = hashlib.sha256(SALT + text.encode()).hexdigest()
    event = {"before": before, "leaves": sorted(leaves), "number": len(events) + 1, "text": digest}
    event["line"] = hashlib.sha256(SALT).hexdigest()
    return json.dumps(event, sort_keys=True, separators=(",", ":"))


def leaves_of(events: Iterable[str]) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(leaf) for line in events for leaf in json.loads(line)["leaves"])


class Forger:
    """A folder of a claim under the key `green` of a registry, and whoever writes it.

    events: lines of events.jsonl. Without any, the folder does not have it.
    """

    def __init__(self, folder: Path, registry: Path, text: str, message: int) -> None:
        self.folder, self.text, self.tokenizer = folder, text, TOKENIZER
        self.key = next(key for key in load_registry(registry).keys if key.key_id == "green")
        self.secret = registry / "secrets" / "green.key"
        self.label = format_of(self.key).label()
        self.record = None if self.key.record is None else record_path(registry, "green").read_bytes()
        self.value = self.key.beacon_value
        self.numbers = {"message": message, "messages": self.key.messages, "correction": 4.0}
        self.events: list[str] = []
        self.listed = folder.parent / "list.txt"
        call("keys", "publish", self.listed, "--registry", registry)
        folder.mkdir()

    def mark(self) -> Mark:
        """The mark of the label, under R of record and value, and of the leaves that events showed."""
        beacon = None
        if self.record is not None:
            digest = hashlib.sha256(self.record).digest()
            beacon = hashlib.sha256(b"brickscan-beacon-v3" + digest + bytes.fromhex(self.value or "")).digest()
        mark = Mark(self.label, bytes.fromhex(self.secret.read_text()), beacon)
        mark.known = leaves_of(self.events)
        return mark

    def rows(self, text: str) -> list[tuple[int, str]]:
        """The rows of tokens.csv that a text has."""
        ids, window = encode(self.tokenizer, text), self.mark().window
        met, rows = set(), [(token, "window") for token in ids[:window]]
        for place in range(window, len(ids)):
            ngram = tuple(ids[place - window : place + 1])
            rows.append((ids[place], "repeat" if ngram in met else "scored"))
            met.add(ngram)
        return rows

    def claim(self, rows: list[tuple[int, str]] | None = None, **fields: object) -> tuple[int, str]:
        """The script's exit code and words on a claim of these rows; fields stand in it whatever follows from them."""
        rows = self.rows(self.text) if rows is None else rows
        ids, numbers, mark = [token for token, _ in rows], self.numbers, self.mark()
        scored = [place for place, (_, why) in enumerate(rows) if why == "scored"]
        ngrams = [tuple(ids[place - mark.window : place + 1]) for place in scored]
        score = mark.score(ngrams, numbers["message"])
        log10_p = mark.log10_p(score, len(ngrams))
        follows = {"label": self.label, "commitment": mark.commitment, "scored": len(ngrams), "score": score}
        follows |= {"tokenizer_sha256": self.key.tokenizer.sha256, "log10_p": log10_p, "variant": None, "look": None}
        follows |= {"parts": 1, "beacon_value": self.value, **numbers}
        follows["text_sha256"] = hashlib.sha256(self.text.encode()).hexdigest()
        follows["log10_p_global"] = math.nan
        with contextlib.suppress(ArithmeticError):
            follows["log10_p_global"] = check_claim.any_of(
                check_claim.any_of(check_claim.any_of(log10_p, numbers["messages"]), numbers.get("parts", 1)),
                numbers["correction"],
            )
        (self.folder / "claim.json").write_text(json.dumps(follows | fields))
        (self.folder / "tokens.csv").write_text("".join(f"{token},{why}\n" for token, why in rows))
        (self.folder / "text.txt").write_text(self.text)
        (self.folder / "tokenizer.json").write_bytes(self.tokenizer.read_bytes())
        if self.record is not None:
            (self.folder / "record.json").write_bytes(self.record)
        if self.events:
            (self.folder / "events.jsonl").write_text("".join(f"{line}\n" for line in self.events))
        return self.checked()

    def checked(self, *, library: bool = True, published: Sequence[object] | None = None) -> tuple[int, str]:
        """Exit code and words of the script, in this process: as a court checks that has a list and a head."""
        paths = published if published is not None else (self.listed, self.listed.read_text().split()[-1])
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            patch.setattr(sys, "argv", ["check_claim.py", *map(str, (self.folder, self.secret, *paths))])
            patch.setitem(sys.modules, "tokenizers", LIBRARY if library else None)
            return check_claim.main(), out.getvalue()

    def mark_words(self, words: Words, message: int, length: int, seed: int) -> str:
        """Text of so many words, each the one of twelve that speaks most for a message."""
        asked = self.label, self.secret.read_text(), self.record, self.value, message, length, seed
        if asked not in _MADE:
            generator, mark = np.random.default_rng(seed), self.mark()
            chosen = list(generator.integers(len(words.words), size=mark.window))
            while len(chosen) < length:
                window = tuple(int(words.tokens[word]) for word in chosen[len(chosen) - mark.window :])
                candidates = generator.integers(len(words.words), size=12)
                chosen.append(max(candidates, key=lambda c: mark.term((*window, int(words.tokens[c])), message)))
            _MADE[asked] = "".join(f" {words.words[word]}" for word in chosen)
        return _MADE[asked]

    def publish(self, *fields: object, shown: str = "-") -> None:
        """Write a list of one line: day, key, commitment, messages, tokenizer, record, shown; nothing was given."""
        body = " ".join(map(str, (1, *fields, shown, "-")))
        head = hashlib.sha256(f"brickscan commitments 5\n{'0' * 64}\n{body}".encode()).hexdigest()
        self.listed.write_text(f"{body} {head}\n")


def check(case: Path, *others: object, library: bool = False) -> tuple[int, str]:
    """Run the script by an interpreter that finds none of our modules, and `tokenizers` where a test says so.

    others: its arguments after the folder: the file of a secret, list and head.
    """
    options = ["-I"] if library else ["-I", "-S"]
    command = [sys.executable, *options, check_claim.__file__, case, *others]
    found = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert found.stderr == ""
    return found.returncode, found.stdout

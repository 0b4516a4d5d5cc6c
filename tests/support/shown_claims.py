"""Claims that show seeds, by somebody who knows check_claim.py and makes tree, record and events at will."""

import contextlib
import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanner.evidence import check_claim
from scanner.evidence.check_claim import Mark, any_of, chosen_of, leaf_of, places_in, windows_of
from tests.support.forged_claims import LIBRARY, SALT, encode, event_after, leaves_of
from tests.support.two_keys import TOKENIZER, Words

SEEDS = 10

_MADE: dict[tuple[object, ...], str] = {}


class Unit:
    """The positions of a unit, and what a mark adds to a message's score there."""

    def __init__(self, mark: Mark, tokens: Sequence[int], begin: int, end: int) -> None:
        self.mark, self.tokens, self.begin, self.end = mark, list(tokens), begin, end
        self.places = places_in(mark, self.tokens, begin, end)
        self.scored = chosen_of(mark, self.tokens, self.places)
        self.ngrams = [tuple(self.tokens[at - mark.window : at + 1]) for at in self.scored]
        self.own = [ngram for ngram in self.ngrams if not mark.is_shared(ngram)]
        self.buckets = {mark.bucket(ngram) for ngram in self.ngrams}

    def statuses(self) -> list[str]:
        first = self.begin + self.mark.window
        return [
            "outside the part"
            if not self.begin <= at < self.end
            else "window"
            if at < first
            else "scored"
            if at in self.scored
            else "not chosen"
            if at in self.places
            else "repeat"
            for at in range(len(self.tokens))
        ]


class ShownForger:
    """A folder of a claim that shows seeds. The forger has chosen all seeds, and so root and record.

    events: lines of the key's events, without the claim's own.
    share: of the rate, by look.
    """

    def __init__(self, folder: Path, method: str = "greenlist", groups: int | None = 50, value: str | None = None):
        self.folder, self.value, self.message = folder, value, 1203
        gamma = ";gamma=1/4" if method == "greenlist" else ""
        self.label = f"{method}-v3;h=3{gamma}" + (f";groups={groups}" if groups else "") + f";seeds={SEEDS}"
        self.seeds = [hashlib.sha256(f"{method} {bucket}".encode()).digest() for bucket in range(2**SEEDS)]
        self.commitment, self.tokenizer = "c0" * 32, TOKENIZER
        self.messages = groups**2 if groups else 2000
        self.looks = {"as written/1": 0.5, "parts/1": 0.25, "normalised/1": 0.25}
        self.earlier: list[str] = []
        self.events: list[str] = []
        self.text, self.unit, self.correction = "", (0, None), 2.0
        self.parts: int | None = None
        folder.mkdir()

    def nodes(self) -> list[list[bytes]]:
        """The levels of the tree, the leaves first."""
        levels = [[leaf_of(seed) for seed in self.seeds]]
        while len(levels[-1]) > 1:
            below = levels[-1]
            level = [hashlib.sha256(b"\1" + below[i] + below[i + 1]).digest() for i in range(0, len(below), 2)]
            levels.append(level)
        return levels

    def record(self) -> bytes:
        fields = {"version": 3, "label": self.label, "root": self.nodes()[-1][0].hex(), "commitment": self.commitment}
        fields |= {"tokenizer_sha256": hashlib.sha256(self.tokenizer.read_bytes()).hexdigest()}
        fields |= {"messages": self.messages, "normal_form": None, "looks": self.looks, "earlier": self.earlier}
        fields["beacon"] = None if self.value is None else {"source": "drand", "round": "4711"}
        return json.dumps(fields).encode()

    def mark(self) -> Mark:
        """The mark of all seeds, and of the leaves that events showed."""
        digest = hashlib.sha256(self.record()).digest()
        beacon = hashlib.sha256(b"brickscan-beacon-v3" + digest + bytes.fromhex(self.value or "")).digest()
        mark = Mark(self.label, dict(enumerate(self.seeds)), beacon)
        mark.known = leaves_of(self.events)
        return mark

    def tokens(self) -> list[int]:
        return encode(self.tokenizer, self.text)

    def mark_words(self, words: Words, length: int, seed: int = 1) -> str:
        """Text of so many words, each the one of eight that speaks most for the message."""
        asked = self.record(), self.value, self.message, length, seed
        if asked not in _MADE:
            generator, mark = np.random.default_rng(seed), self.mark()
            chosen = list(generator.integers(len(words.words), size=3))
            while len(chosen) < length:
                window = tuple(int(words.tokens[word]) for word in chosen[-3:])
                candidates = generator.integers(len(words.words), size=8)
                chosen.append(max(candidates, key=lambda c: mark.term((*window, int(words.tokens[c])), self.message)))
            _MADE[asked] = "".join(f" {words.words[word]}" for word in chosen)
        return _MADE[asked]

    def show(self, buckets: Iterable[int], text: str = "another text") -> None:
        """Append an event of another claim that shows these buckets, or those of them that are new."""
        new = {leaf_of(self.seeds[bucket]) for bucket in buckets} - self.mark().known
        self.events.append(event_after(self.events, {leaf.hex() for leaf in new}, text))

    def claimed(self) -> Unit:
        tokens = self.tokens()
        begin, end = self.unit
        return Unit(self.mark(), tokens, begin, len(tokens) if end is None else end)

    def take_window(self) -> None:
        """Claim the window of the text for which the message's p is smallest."""
        whole = self.claimed()
        mark, terms = whole.mark, [whole.mark.term(ngram, self.message) for ngram in whole.ngrams]
        windows = windows_of(len(terms))
        begin, end = min(windows, key=lambda one: mark.log10_p(math.fsum(terms[slice(*one)]), one[1] - one[0]))
        self.unit = whole.scored[begin] - mark.window, whole.scored[end - 1] + 1
        self.parts = len(windows)

    def claim(self, **fields: object) -> tuple[int, str]:
        """The script's exit code and words on a claim from which all follows; fields stand in it whatever follows."""
        unit = self.claimed()
        mark, numbers = unit.mark, {"parts": self.parts or 1, "correction": self.correction}
        score, own = mark.score(unit.ngrams, self.message), mark.score(unit.own, self.message)
        log10_p, log10_p_user = mark.log10_p(score, len(unit.ngrams)), mark.log10_p(own, len(unit.own))
        claim: dict[str, object] = {"label": self.label, "commitment": self.commitment, "message": self.message}
        claim |= {"messages": self.messages, **numbers, "scored": len(unit.ngrams), "score": score, "log10_p": log10_p}
        claim |= {"scored_user": len(unit.own), "score_user": own, "log10_p_user": log10_p_user, "variant": None}
        claim |= {"look": None if self.parts is None else "span", "begin": unit.begin, "end": unit.end}
        claim |= {"beacon_value": self.value, "event": len(self.events) + 1, "salt": SALT.hex()}
        claim["tokenizer_sha256"] = hashlib.sha256(self.tokenizer.read_bytes()).hexdigest()
        claim["text_sha256"] = hashlib.sha256(self.text.encode()).hexdigest()
        claim["log10_p_global"] = self._corrected(log10_p, self.messages)
        claim["log10_p_user_global"] = self._corrected(log10_p_user, mark.groups or self.messages)
        self.write("claim.json", json.dumps(claim | fields))
        self.write("text.txt", self.text)
        self.write("tokens.csv", "".join(f"{t},{s}\n" for t, s in zip(unit.tokens, unit.statuses(), strict=True)))
        self.write("seeds.json", json.dumps(self.shown(unit.buckets)))
        new = {leaf_of(self.seeds[bucket]) for bucket in unit.buckets} - mark.known
        lines = [*self.events, event_after(self.events, {leaf.hex() for leaf in new}, self.text)]
        self.write("events.jsonl", "".join(f"{line}\n" for line in lines))
        (self.folder / "record.json").write_bytes(self.record())
        (self.folder / "tokenizer.json").write_bytes(self.tokenizer.read_bytes())
        return self.checked()

    def _corrected(self, log10_p: float, messages: int) -> float:
        return any_of(any_of(any_of(log10_p, messages), self.parts or 1), self.correction)

    def shown(self, buckets: Iterable[int]) -> dict[str, Any]:
        """The seeds of buckets with their paths, as they stand in seeds.json."""
        levels = self.nodes()[:-1]
        return {
            str(bucket): {
                "seed": self.seeds[bucket].hex(),
                "path": [level[(bucket >> height) ^ 1].hex() for height, level in enumerate(levels)],
            }
            for bucket in sorted(buckets)
        }

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_bytes(text.encode())

    def held(self, name: str) -> str:
        """What a file of the folder holds."""
        return (self.folder / name).read_text()

    def record_sha256(self) -> str:
        return hashlib.sha256(self.record()).hexdigest()

    def publish(
        self, *shown: tuple[str, ...], commitment: str | None = None, lines: Sequence[tuple[str, int]] = ()
    ) -> tuple[Path, str]:
        """Write a list, and return it and its last head.

        shown: of each line record, events and names.
        lines: of each line commitment and messages, where they are not the same in all.
        """
        head, written, tokenizer = "0" * 64, [], hashlib.sha256(self.tokenizer.read_bytes()).hexdigest()
        for number, fields in enumerate(shown, start=1):
            of_line = lines[number - 1] if lines else (commitment or self.commitment, self.messages)
            own = *of_line, tokenizer, *(*fields, "-")[:3]
            body = " ".join(map(str, (number, "2026-01-01", "green", *own)))
            head = hashlib.sha256(f"brickscan commitments 5\n{head}\n{body}".encode()).hexdigest()
            written.append(f"{body} {head}\n")
        path = self.folder.parent / "list.txt"
        path.write_text("".join(written))
        return path, head

    def edit(self, name: str, change: Callable[[Any], object]) -> tuple[int, str]:
        """Change what a file of JSON holds, in place or by what the function returns, and check."""
        held = json.loads((self.folder / name).read_text())
        changed = change(held)
        self.write(name, json.dumps(held if changed is None else changed))
        return self.checked()

    def checked(self, *published: object, library: bool = True) -> tuple[int, str]:
        """Exit code and words of the script, in this process."""
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            patch.setattr(sys, "argv", ["check_claim.py", *map(str, (self.folder, *published))])
            patch.setitem(sys.modules, "tokenizers", LIBRARY if library else None)
            return check_claim.main(), out.getvalue()

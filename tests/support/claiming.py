"""A platform of one key that scans a night and makes claims about its flags."""

import json
from pathlib import Path

import pytest

from scanner.registry import find_key, load_registry, new_key
from scanner.registry.key_records import RecordTerms
from scanner.registry.shown_seeds import read_shown
from tests.fixed import fix_secrets
from tests.support.command_line import call
from tests.support.forged_claims import Forger, check
from tests.support.night import Night
from tests.support.two_keys import TOKENIZER

MESSAGE = 1203
LOOKS = {"as written/1": 0.25, "normalised/1": 0.25, "parts/1": 0.5}


def make_registry(
    folder: Path, method: str = "greenlist-v3", window: int = 3, looks: dict[str, float] = LOOKS, seeds: int = 10
) -> Path:
    fix_secrets(folder, "green")
    own = {"gamma": "1/4"} if method.startswith("greenlist") else {}
    own |= {"seeds": seeds, "groups": 50} if method.endswith("-v3") else {}
    terms = {"terms": RecordTerms(looks)} if method.endswith("-v3") else {}
    new_key(folder, "green", format=method, window=window, messages=2500, tokenizer=TOKENIZER, **own, **terms)
    return folder


class Platform:
    """A registry of one key, one night of marked texts, and what a claim made of them."""

    def __init__(self, folder: Path, words, **registry: object) -> None:
        self.folder, self.registry = folder, make_registry(folder / "registry", **registry)
        self.night = Night(folder, self.registry)
        self.forger = Forger(folder / "forged", self.registry, "", MESSAGE)
        self.words, self.case = words, folder / "case"

    def text(self, length: int = 130, seed: int = 1) -> str:
        return self.forger.mark_words(self.words, MESSAGE, length, seed)

    def scan(self, *texts: str) -> None:
        self.night.write("a", texts)
        self.night.scan()

    def scan_and_be_killed(self, monkeypatch, *texts: str) -> None:
        """Scan texts, and die once their rows are committed."""

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            for name in ("_judge", "_record", "_keep_signatures"):
                patch.setattr(f"scanner.cluster.scan._Scan.{name}", die)
            with pytest.raises(KeyboardInterrupt):
                self.scan(*texts)

    def claim(self, *options: object, document: str = "a:0", out: str = "case") -> tuple[int, str]:
        code, said, err = call("claim", self.night.config, document, "--out", self.folder / out, *options)
        return code, said + err

    def read(self, name: str, out: str = "case") -> dict:
        return json.loads((self.folder / out / name).read_text())

    def shown(self):
        return read_shown(self.registry, find_key(load_registry(self.registry), "green"))

    def checked(self, *published: object, out: str = "case") -> tuple[int, str]:
        return check(self.folder / out, *published, library=True)

"""A detector in a thread of this process, whose texts are scored here or in processes of its own."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from scanner.service import scoring
from scanner.service.answering import Answers
from scanner.service.detector_app import DetectorServer
from scanner.service.processes import Unavailable
from scanner.service.scoring import Costs, Scorer, ServedScan
from scanner.service.scoring_pool import ScoringFailed
from scanner.service.signing import new_signing_key, signing_keys
from scanner.storage.toml import read_toml
from schemas.service import DetectorConfig
from tests.support.reviewing import running

SCAN = """\
version = 2
registry = "{registry}"
results = "results"
false_positive_rate = {rate}
{more}
[input]
paths = ["in"]
"""


def configured(folder: Path, registry: Path, *, rate: float = 1e-6, more: str = "", detector: str = "") -> Path:
    """Write scan.toml and detector.toml, and make a signing key; returns detector.toml."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "scan.toml").write_text(SCAN.format(registry=registry, rate=rate, more=more))
    config = folder / "detector.toml"
    config.write_text(f"version = 2\n{detector}")
    if not signing_keys(folder / "detector"):
        new_signing_key(folder / "detector")
    return config


class InThisProcess:
    """Stands in for ScoringPool: scores in this process, one request after the other."""

    costs, most_bytes = Costs([1000], [0.001]), 10**9

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._scorer: Scorer | None = None
        self.waiting = self.killed = 0

    async def serve(self, served: ServedScan) -> None:
        self._scorer, self._served = Scorer(served, self._answers.budget._secret), served

    def stop(self) -> None:
        self._scorer = None

    kill = stop

    async def find_marks(self, _caller, texts):
        if self._scorer is None:
            return [Unavailable("The detector is not ready.")] * len(texts)
        scoring._scorer = self._scorer
        found, _, why = scoring.find_marks_of(texts)
        return [ScoringFailed(why) if one is None else (one, self._served) for one in found]


@contextmanager
def detecting(config: Path, *, here: bool = True, told: list[str] | None = None) -> Iterator[DetectorServer]:
    """A detector that is ready. here: scores in this process; told: gathers what it tells."""
    tell = (told if told is not None else []).append
    server = DetectorServer(read_toml(config, DetectorConfig), config.parent, "127.0.0.1", 0, tell)
    if here:
        server.answers.pool = InThisProcess(server.answers)
    with running(server):
        until(lambda: server.answers.served is not None)
        yield server


def until(holds, seconds: float = 400) -> None:
    """Wait for something, which is asked for again after longer and longer: it may be a request, and cost a while."""
    begun = time.monotonic()
    while not holds():
        waited = time.monotonic() - begun
        assert waited < seconds, "waited too long"
        time.sleep(min(0.02 + waited / 10, 0.25))


def request(server: DetectorServer, method: str, path: str, body: bytes | str = b"", **headers: str):
    """Status, headers and body of an answer; names of headers are written with _ for -."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body if isinstance(body, bytes) else body.encode(), named)
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def ask(server: DetectorServer, text: str, **headers: str) -> dict[str, Any]:
    """The answer to a text, with the status."""
    status, _, body = request(server, "POST", "/detect", json.dumps({"text": text}), **headers)
    return json.loads(body) | {"status": status}

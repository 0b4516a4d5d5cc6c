"""A real vLLM server with the plugin: a nightly scan names users by the texts that they got over HTTP.

`make test-vllm` runs this file; measured figures are written to build/vllm.txt.
"""

import json
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from scanner.generation import GumbelProcessor
from scanner.registry import add_users, load_registry, new_key, open_key
from scanner.watermark.native.format import groups_for
from tests.fixed import fix_secrets
from tests.infra.vllm.served import MODEL, ROOT, Server, serving, why_not
from tests.support.night import Night
from tests.support.two_keys import message_of

pytestmark = pytest.mark.vllm

EXAMPLE = runpy.run_path(str(ROOT / "docs" / "examples" / "serve_with_vllm.py"))
GATEWAY_SECRET = "5b1f0c7788aa0e3d4c92f1d7a6b35e90c4d2187f6e0a9b3c5d7e1f2a3b4c5d6e"
USERS = [f"user-{number:02}" for number in range(12)]
GONE = ["gone-0", "gone-1"]  # users whose requests are aborted
SUBJECTS = ["a lighthouse", "a market in winter", "two old friends", "a lost letter", "the first train", "a garden"]
TOKENS = 260


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Path) -> Path:
    """Keys `green` and `gum` for 10^9 users each, and `bytes`, a key of another tokenizer."""
    folder = tmp_path_factory.mktemp("keys") / "registry"
    fix_secrets(folder, "green", "gum", "bytes")
    groups = groups_for(1e9)
    room = {"window": 4, "groups": groups, "messages": groups**2, "seeds": 16}
    new_key(folder, "green", format="greenlist-v3", gamma="1/4", tokenizer=MODEL / "tokenizer.json", **room)
    new_key(folder, "gum", format="gumbel-v3", tokenizer=MODEL / "tokenizer.json", **room)
    new_key(folder, "bytes", format="gumbel", window=4, messages=50, tokenizer=byte_tokenizer)
    add_users(folder, ["green", "gum"], USERS + GONE)
    return folder


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Server]:
    settings = {"BRICKSCAN_REGISTRY": str(keys), "BRICKSCAN_KEY": "green", "BRICKSCAN_DELTA": "3"}
    with serving(tmp_path_factory.mktemp("green") / "server", settings | {"BRICKSCAN_SERVICE_MESSAGE": "7"}) as server:
        yield server


@pytest.fixture(scope="module")
def gum(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Server]:
    settings = {"BRICKSCAN_REGISTRY": str(keys), "BRICKSCAN_KEY": "gum", "BRICKSCAN_GATEWAY_SECRET": "env:GATEWAY"}
    settings |= {"BRICKSCAN_LOGPROBS": "1"}
    with serving(tmp_path_factory.mktemp("gum") / "server", settings | {"GATEWAY": GATEWAY_SECRET}) as server:
        yield server


@pytest.fixture
def through() -> Iterator[Callable[..., Any]]:
    """A function that starts the example's gateway; API keys are users' names."""
    made = []

    def gateway(server: Server, keys: Path, key_id: str, secret: str | None = None) -> Any:
        messages = {user: message_of(keys, key_id, user) for user in USERS + GONE}
        made.append(EXAMPLE["Gateway"](server.url, key_id, messages, bytes.fromhex(secret) if secret else None))
        threading.Thread(target=made[-1].serve_forever, daemon=True).start()
        return made[-1]

    yield gateway
    for one in made:
        one.shutdown()
        one.server_close()


class Client:
    """A client of all users, which sends requests through the gateway and counts requests and tokens."""

    def __init__(self, server: Server, url: str) -> None:
        self.server, self.url = server, url
        self.requests = self.tokens = 0
        self.lock = threading.Lock()

    def chat(self, user: str, turns: list[str], tokens: int = TOKENS, **more: Any) -> str:
        """The model's texts in a conversation of some turns."""
        said: list[dict[str, str]] = []
        for turn in turns:
            said.append({"role": "user", "content": turn})
            body = {"messages": said, "max_tokens": tokens, "min_tokens": tokens, **more}
            answer = self.server.ask("chat/completions", body, self.url, user)
            assert "choices" in answer, answer
            self._count(answer["usage"]["completion_tokens"])
            said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        return "\n".join(turn["content"] for turn in said if turn["role"] == "assistant")

    def complete(self, user: str, prompt: str, **more: Any) -> str:
        body = {"prompt": prompt, "max_tokens": TOKENS, "min_tokens": TOKENS, **more}
        answer = self.server.ask("completions", body, self.url, user)
        assert "choices" in answer, answer
        self._count(answer["usage"]["completion_tokens"])
        return str(answer["choices"][0]["text"])

    def stream(self, user: str, prompt: str, stop_after: int | None = None) -> str:
        """A streamed text; the client hangs up after `stop_after` pieces."""
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS, "min_tokens": TOKENS}
        pieces: list[str] = []
        with self.server.open("chat/completions", body | {"stream": True}, self.url, user) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
                if stop_after is not None and len(pieces) >= stop_after:
                    break
        self._count(len(pieces))
        return "".join(pieces)

    def _count(self, tokens: int) -> None:
        with self.lock:
            self.requests, self.tokens = self.requests + 1, self.tokens + tokens

    def text(self, number: int) -> str:
        """The text of one of six kinds of request."""
        user, subject = USERS[number % len(USERS)], SUBJECTS[number % len(SUBJECTS)]
        kinds: list[Callable[[], str]] = [
            lambda: self.chat(user, [f"Write a story about {subject}."]),
            lambda: self.complete(user, f"The story of {subject} begins on a cold morning, when"),
            lambda: self.stream(user, f"Tell me of {subject}, with many details."),
            lambda: self.chat(user, [f"Describe {subject}.", "Go on.", "And how does it end?"], tokens=100),
            lambda: self.chat(user, [f"Write about {subject}."], temperature=0.8, top_p=0.95),
            lambda: self.complete(user, f"What people say of {subject}:", presence_penalty=0.5, seed=3),
        ]
        return kinds[(number + number // len(USERS)) % len(kinds)]()


def human_texts() -> list[str]:
    """Human texts of the demo's sample; some are not valid UTF-8."""
    truth = pq.read_table(ROOT / "jobs/demo/truth.parquet").to_pylist()
    human = {row["doc_id"] for row in truth if row["kind"] == "human"}
    table = pq.read_table(ROOT / "jobs/demo/sample-1.parquet", columns=["doc_id", "text"])
    raw = table.column("text").cast("binary").to_pylist()
    rows = zip(table.column("doc_id").to_pylist(), raw, strict=True)
    return [text.decode(errors="replace") for doc_id, text in rows if doc_id in human and text][:20]


def test_a_scan_names_everyone_and_nobody_wrongly(green, keys, through, tmp_path, ray_cluster):
    began = time.monotonic()
    client = Client(green, through(green, keys, "green").url)
    with ThreadPoolExecutor(8) as pool:
        aborted = [pool.submit(client.stream, GONE[i % 2], f"Tell me a story of {i} birds.", 5) for i in range(4)]
        texts = list(pool.map(client.text, range(2 * len(USERS))))
        for one in aborted:
            one.result()
    service = green.ask("completions", {"prompt": "The news of the day is", "max_tokens": TOKENS, "min_tokens": TOKENS})
    served = time.monotonic() - began
    night, human = Night(tmp_path, keys), human_texts()
    night.write("posts", [*texts, service["choices"][0]["text"], *human])
    night.scan()
    rows = night.verdicts().sort("row").to_dicts()
    right = [row["user_id"] == USERS[number % len(USERS)] for number, row in enumerate(rows[: len(texts)])]
    wrong = [row for number, row in enumerate(rows) if row["user_id"] and not (number < len(texts) and right[number])]
    steps = green.counted("brickscan_steps")
    report(
        users=len(USERS), requests=client.requests + 1, tokens=client.tokens + TOKENS, texts=len(texts),
        named_right=sum(right), named_wrongly=len(wrong), steps=steps, human=len(human), aborted=len(aborted),
        weakest_log10_p=max(row["log10_p_global"] for row in rows[: len(texts)]),
        seconds_serving=round(served, 1), seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip
    assert all(right)
    assert wrong == []
    assert rows[len(texts)]["message"] == 7
    assert not any(row["flagged"] for row in rows[len(texts) + 1 :])
    assert steps["unmarked"] == 0
    assert steps["marked"] + steps["forced"] >= client.tokens


def report(**figures: Any) -> None:
    lines = "\n".join(f"{name}: {value}" for name, value in figures.items())
    print(lines)
    path = ROOT / "build" / "vllm.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(lines + "\n")


def test_the_server_chooses_what_transformers_chooses(gum, keys, through):
    """Both choose the same of the twenty most probable tokens, whose probabilities the answer holds, at 80 steps."""
    how = {"temperature": 0.9, "top_k": 20, "top_p": 0.9}
    body = {"prompt": "The keeper of the lighthouse", "max_tokens": 80, "min_tokens": 80, "logprobs": 20, **how}
    body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    gateway = through(gum, keys, "gum", GATEWAY_SECRET)
    choice = gum.ask("completions", body, gateway.url, USERS[3])["choices"][0]
    mark = open_key(keys, next(key for key in load_registry(keys).keys if key.key_id == "gum"))
    message, tokens = message_of(keys, "gum", USERS[3]), list(choice["prompt_token_ids"])
    for token, most_probable in zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
        logits = torch.full((1, 49152), -torch.inf)
        for name, value in most_probable.items():
            logits[0, int(name.removeprefix("token_id:"))] = value
        found = GumbelProcessor(mark, [message], [len(tokens)], **how)(torch.tensor([tokens]), logits)
        assert int(found.argmax()) == token
        tokens.append(token)


def test_what_a_signing_gateway_lets_through(gum, keys, through):
    gateway = through(gum, keys, "gum", GATEWAY_SECRET)
    body = {"prompt": "The road to the sea", "max_tokens": 30}
    assert "brickscan_message is missing" in gum.ask("completions", body)["error"]["message"]
    unsigned = body | {"vllm_xargs": {"brickscan_message": 4}}
    assert "brickscan_token is missing" in gum.ask("completions", unsigned)["error"]["message"]
    stolen = gateway.marked_for(message_of(keys, "gum", USERS[0]))
    other = body | {"vllm_xargs": stolen | {"brickscan_message": message_of(keys, "gum", USERS[1])}}
    assert gum.ask("completions", other)["status"] == 400
    first, again = (gum.ask("completions", other, gateway.url, USERS[2])["choices"][0]["text"] for _ in range(2))
    assert first == again  # the gateway asks for user 2, whatever the client states
    assert first != gum.ask("completions", body, gateway.url, USERS[3])["choices"][0]["text"]
    penalised = body | {"frequency_penalty": 2.0, "repetition_penalty": 1.5, "max_tokens": 60}
    text = gum.ask("completions", penalised, gateway.url, USERS[2])["choices"][0]["text"]
    assert text[: len(first)] != first or len(set(text.split())) > 0.9 * len(text.split())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"temperature": 0}, "greedy decoding has no choice"),
        ({"n": 2}, "n = 2"),
        ({"use_beam_search": True, "n": 2}, "beam search"),
    ],
)
def test_what_gumbel_cannot_mark_is_refused(gum, keys, through, more, said):
    gateway = through(gum, keys, "gum", GATEWAY_SECRET)
    answer = gum.ask("completions", {"prompt": "The road", "max_tokens": 5, **more}, gateway.url, USERS[0])
    assert answer["status"] == 400
    assert said in answer["error"]["message"]


def test_the_example_has_its_user_named(green, keys):
    command = [sys.executable, str(ROOT / "docs/examples/serve_with_vllm.py"), "--server", green.url]
    command += ["--registry", str(keys), "--key", "green", "--user", USERS[5]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"text marked for {USERS[5]}" in done.stdout, done.stdout + done.stderr


def test_a_model_that_is_split_over_processes_marks_in_all_of_them(keys, tmp_path):
    settings = {"BRICKSCAN_REGISTRY": str(keys), "BRICKSCAN_KEY": "green", "BRICKSCAN_DELTA": "3"}
    with serving(tmp_path / "split", settings, "--tensor-parallel-size 3") as server:
        test_the_example_has_its_user_named(server, keys)
        steps = server.counted("brickscan_steps")
        assert steps["marked"] >= 3 * 100  # each process counts
        assert len(list((keys / "leases").glob("server-*.json"))) >= 3


def test_what_is_not_marked_is_counted(green, keys, through):
    """Three cases: a prompt shorter than the window, a grammar that leaves one token, beam search."""
    gateway, before = through(green, keys, "green"), green.counted("brickscan_steps")
    green.ask("completions", {"prompt": "Hi", "max_tokens": 10, "min_tokens": 10}, gateway.url, USERS[0])
    after = green.counted("brickscan_steps")
    assert after["unmarked"] - before["unmarked"] == 3  # the window is four tokens, the prompt one
    assert sum(after.values()) - sum(before.values()) == 10
    one = {"structured_outputs": {"choice": ["only this one"]}, "max_tokens": 12}
    green.ask("completions", {"prompt": "The letters are", **one}, gateway.url, USERS[0])
    assert green.counted("brickscan_steps")["forced"] > after["forced"]
    beams = {"prompt": "The road", "max_tokens": 5, "use_beam_search": True, "n": 2}
    assert "beam search" in green.ask("completions", beams, gateway.url, USERS[0])["error"]["message"]
    assert "beam search" in green.ask("completions", beams)["error"]["message"]
    assert green.counted("brickscan_requests_refused")["beams"] == 2


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        (
            {"BRICKSCAN_KEY": "gum"},
            '--speculative-config {"method":"ngram","num_speculative_tokens":2}',
            "drops the mark",
        ),
        ({"BRICKSCAN_KEY": "bytes"}, "", "is read with the tokenizer of SHA-256"),
        ({}, "", "BRICKSCAN_KEY is not set"),
    ],
)
def test_a_server_that_would_not_mark_does_not_start(keys, tmp_path, settings, options, said):
    assert said in why_not(tmp_path / "server", {"BRICKSCAN_REGISTRY": str(keys), **settings}, options)

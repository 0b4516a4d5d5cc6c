"""Faults of a server, planted behind HTTP: each is named in the words that people read, and nothing else is."""

import json
from pathlib import Path

import pytest

from scanner.probe.analysis import ProbeResult, analyse
from scanner.probe.asking import Tokens, ask
from scanner.probe.classes import CLASSES, requests_of
from scanner.probe.config import ProbeConfig
from scanner.probe.kept import KeptAnswers
from scanner.registry import check_secret, find_key, load_registry
from scanner.watermark.formats import make_format
from tests.probe.model import model, prompt_ids
from tests.probe.planted import PLAIN, green_server
from tests.probe.server import prompt_of, serving
from tests.support.two_keys import message_of

pytestmark = pytest.mark.costly

PARAMETERS = {"window": 2, "gamma": "1/4"}
"""Of the key `green`, as the registry has them."""


def marks(registry: Path, **changed):
    """The key's mark, with parameters that are not the registry's."""
    secret = check_secret(registry, find_key(load_registry(registry), "green"))
    return make_format("greenlist", PARAMETERS | changed).open(secret)


def probed(
    folder: Path, registry: Path, url: str, classes: tuple[dict, ...] = (), only=("temperature-1",)
) -> ProbeResult:
    """What a probe finds, whose answers are marked for alice."""
    named = {*only, *(one["name"] for one in classes)}
    off = tuple({"name": one.name, "answers": 0} for one in CLASSES if one.name not in named)
    user = {"id": "alice", "fields": {"vllm_xargs": {"message": message_of(registry, "green", "alice")}}}
    config = ProbeConfig.model_validate(
        {
            "version": 2,
            "answers": 12,
            "server": {"url": url, "model": "m", "requests_a_minute": 1e6, "token_ids": True},
            "users": (user,),
            "classes": (*off, *classes),
        }
    )
    requests = requests_of(config)
    with KeptAnswers(folder / "asking.jsonl") as kept:
        ask(config, requests, Tokens(config, folder), kept, lambda *_: None)
        return analyse(kept.table(requests), registry, ("green",))


def test_classes_that_leave_unmarked(tmp_path, registry, words):
    """Tools, a client that opts out, and a replica without the mark; half of the answers of one class more."""
    message = message_of(registry, "green", "alice")
    server_of = green_server(marks(registry), message)

    def server_for(body):
        half = body["temperature"] == 0.7 and prompt_ids(prompt_of(body)).sum() % 2
        unmarked = "tools" in body or half or body["vllm_xargs"].get("watermark") is False
        return PLAIN if unmarked else server_of

    with serving(model(words, server_for)) as server, serving(model(words, lambda _: PLAIN)) as replica:
        own = (
            {"name": "opt-out", "fields": {"vllm_xargs": {"watermark": False}}},
            {"name": "replica", "url": replica.url},
            {"name": "temperature-0.7", "answers": 24},
        )
        result = probed(tmp_path, registry, server.url, own, ("temperature-1", "tools"))
        assert len(replica.asked) == 12
    states = {one.name: one.state for one in result.classes}
    assert states == {
        "temperature-1": "marked",
        "temperature-0.7": "marked",
        **dict.fromkeys(("tools", "opt-out", "replica"), "unmarked"),
    }
    assert [one.state for one in result.classes[:3]] == ["unmarked"] * 3
    by_name = {one.name: one for one in result.classes}
    assert by_name["temperature-1"].users.right == 12
    share = by_name["temperature-0.7"].unmarked
    odd = [prompt_ids(prompt_of(one.body)).sum() % 2 for one in server.asked if one.body["temperature"] == 0.7]
    assert len(odd) == 24
    assert share.low <= sum(odd) / len(odd) <= share.high


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"window": 3}, "draws by a window of 3 tokens, the key says 2"),
        ({"gamma": "1/2"}, "uses γ = 0.5, the key says 0.25"),
    ],
)
def test_another_configuration_is_told_in_words(changed, told, tmp_path, registry, words):
    server_of = green_server(marks(registry, **changed), message_of(registry, "green", "alice"))
    with serving(model(words, lambda _: server_of)) as server:
        result = probed(tmp_path, registry, server.url)
    assert [told in sentence for sentence in result.keys[0].differences] == [True]
    assert {one.state for one in result.classes} == {"marked"}


def test_a_server_that_does_not_mark(tmp_path, registry, words):
    with serving(model(words, lambda _: PLAIN)) as server:
        result = probed(tmp_path, registry, server.url)
    assert result.keys[0].named is None
    assert json.loads(json.dumps(result.to_json()))["keys"][0]["differences"] == []

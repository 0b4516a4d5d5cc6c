"""Faults of a server, planted behind HTTP: each is named in the words that people read, and nothing else is."""

import itertools
import json
from pathlib import Path

import pytest

from scanner.probe.analysis import ProbeResult, analyse
from scanner.probe.asking import Tokens, ask
from scanner.probe.classes import CLASSES, requests_of
from scanner.probe.config import ProbeConfig
from scanner.probe.kept import KeptAnswers
from scanner.registry import check_secret, find_key, load_registry, new_key
from scanner.watermark.formats import make_format
from tests.fixed import fix_secrets
from tests.probe.model import model, prompt_ids
from tests.probe.planted import PLAIN, Server, green_server, gumbel_server, sampled, secret_for, tournament_server
from tests.probe.server import Write, prompt_of, serving
from tests.support.two_keys import TOKENIZER, Words, message_of

pytestmark = pytest.mark.costly

PARAMETERS = {"window": 2, "gamma": "1/4"}
"""Of the key `green`, as the registry has them."""


def marks(registry: Path, **changed):
    """The key's mark, with parameters that are not the registry's."""
    secret = check_secret(registry, find_key(load_registry(registry), "green"))
    return make_format("greenlist", PARAMETERS | changed).open(secret)


def probed(
    folder: Path, registry: Path, url: str, classes: tuple[dict, ...] = (), only=("temperature-1",), answers: int = 12
) -> ProbeResult:
    """What a probe finds of key `green`, whose answers are marked for alice if she has a message."""
    named = {*only, *(one["name"] for one in classes)}
    off = tuple({"name": one.name, "answers": 0} for one in CLASSES if one.name not in named)
    carries = find_key(load_registry(registry), "green").messages > 1
    fields = {"vllm_xargs": {"message": message_of(registry, "green", "alice")}} if carries else {}
    config = ProbeConfig.model_validate(
        {
            "version": 2,
            "answers": answers,
            "server": {"url": url, "model": "m", "requests_a_minute": 1e6, "token_ids": True},
            "users": ({"id": "alice", "fields": fields},) if carries else (),
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


def forgetful(server: Server) -> Server:
    """Draws the first tokens of an answer unmarked, whose contexts would hold the prompt."""
    drawn = itertools.count()
    return Server(server.reach, lambda *how: (server.draw if next(drawn) >= server.reach else sampled)(*how))


def in_other_words(write: Write, words: Words) -> Write:
    """Gives ids of a tokenizer in which each word is the one before it in the key's."""
    shifted = {word: words.words[place - 1] for place, word in enumerate(words.words)}

    def written(body, number):
        return [
            one._replace(text="".join(f" {shifted[word]}" for word in one.text.split())) for one in write(body, number)
        ]

    return written


TWO_KEYS = ("sglang-two-keys", 16)
NEEDED = {"gumbel": {"window": 4}, "greenlist": {"window": 4, "gamma": "1/4"}}
"""Parameters without defaults."""


@pytest.mark.parametrize(
    ("form", "size", "server_of", "answers", "told"),
    [
        (
            "greenlist",
            32,
            lambda secret: gumbel_server(make_format("gumbel", {"window": 4}).open(secret)),
            6,
            "marks by the format gumbel",
        ),
        (
            *TWO_KEYS,
            lambda secret: gumbel_server(make_format("sglang-one-key", {}).open(secret[:8])),
            12,
            "marks with key A of the two alone",
        ),
        (
            *TWO_KEYS,
            lambda secret: gumbel_server(make_format("sglang-two-keys", {"mixing_probability": 0.2}).open(secret)),
            20,
            "% of the tokens with the second key, but the key says 50%",
        ),
        (
            "gumbel",
            32,
            lambda secret: gumbel_server(make_format("gumbel", {"window": 4}).open(secret)),
            8,
            "'s tokenizer differs from the key's: its own token ids carry the mark",
        ),
        (
            "gumbel",
            32,
            lambda secret: forgetful(gumbel_server(make_format("gumbel", {"window": 4}).open(secret))),
            40,
            "leaves the prompt out of the contexts: the first 4 tokens of an answer carry no mark",
        ),
        (
            "synthid-table",
            240,
            lambda secret: tournament_server(
                make_format("synthid-table", {}).open(b"".join(secret[i : i + 8] for i in range(232, -1, -8)))
            ),
            6,
            "has the layers' keys in reverse order",
        ),
    ],
)
def test_another_function_tokenizer_or_part_of_a_key_is_told(form, size, server_of, answers, told, tmp_path, words):
    """Under a key without messages."""
    secret = secret_for(f"served {form}", size)
    fix_secrets(tmp_path, "green")
    (tmp_path / "secrets" / "green.key").write_text(secret.hex() + "\n")
    new_key(tmp_path, "green", format=form, messages=1, tokenizer=TOKENIZER, **NEEDED.get(form, {}))
    write = model(words, lambda _: server_of(secret), 60)
    with serving(in_other_words(write, words) if "tokenizer" in told else write) as server:
        result = probed(tmp_path, tmp_path, server.url, answers=answers)
    assert [told in sentence for sentence in result.keys[0].differences] == [True]
    assert {one.state for one in result.classes} == {"marked"}


def test_a_server_that_does_not_mark(tmp_path, registry, words):
    with serving(model(words, lambda _: PLAIN)) as server:
        result = probed(tmp_path, registry, server.url)
    assert result.keys[0].named is None
    assert json.loads(json.dumps(result.to_json()))["keys"][0]["differences"] == []

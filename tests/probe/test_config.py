"""What probe.toml may say, and the requests that come of it."""

import json

import pytest

from scanner.errors import Refused
from scanner.probe.classes import CLASSES, classes_left_out, classes_of, endpoint, requests_of
from scanner.probe.config import ProbeConfig
from scanner.storage.toml import read_toml_text

SECRET = "sk-0123456789abcdef-pasted"
SERVER = '[server]\nurl = "http://127.0.0.1:8000"\nmodel = "m"\n'


def read(top: str = "", server: str = "", rest: str = "") -> ProbeConfig:
    return read_toml_text("probe.toml", f"version = 2\n{top}\n{SERVER}{server}\n{rest}", ProbeConfig)


@pytest.mark.parametrize(
    ("top", "server", "rest", "told"),
    [
        ("answer = 3", "", "", "field 'answer' is unknown (did you mean 'answers'?)"),
        ("answers = -1", "", "", "field 'answers'"),
        ("", f'token = "{SECRET}"', "", "field 'server.token': a reference is needed"),
        ("", "timeout_s = 0", "", "field 'server.timeout_s'"),
        ("", 'api = "responses"', "", "field 'server.api'"),
        ("", "", "[price]\na_million_in = 1", "field 'price.a_million_out' is missing"),
        ("", "", '[[classes]]\nname = "Greedy one"', "field 'classes.0.name'"),
        ("", "", '[[classes]]\nname = "a"\n[[classes]]\nname = "a"', "classes has 'a' twice"),
        ("", "", '[[classes]]\nname = "a"\nfields = { model = "x" }', "model cannot be changed here"),
        ("", "", '[[classes]]\nname = "a"\nfields = { n = 0 }', "n is a whole number"),
        ("", "", '[[classes]]\nname = "a"\nfields = { day = 2026-12-02 }', "contains a date"),
        ("", "", '[[users]]\nid = "a"\n[[users]]\nid = "a"', "users has 'a' twice"),
    ],
)
def test_what_is_wrong_is_refused_by_name(top, server, rest, told):
    with pytest.raises(Refused) as refused:
        read(top, server, rest)
    assert told in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{SECRET}@host",
        f"http://host?key={SECRET}",
        "ftp://host",
        "host:8000",
        "http://a b",
        "http://127.0.0..1:8000",
        f"http://{'a' * 64}.com",
        "http://h\\u0007",
        "http://h:99999",
    ],
)
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(Refused) as refused:
        read_toml_text("probe.toml", f'version = 2\n[server]\nmodel = "m"\nurl = "{url}"', ProbeConfig)
    assert "server.url" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_requests_of_a_file():
    config = read(
        "answers = 4",
        "token_ids = true\nmost_tokens = 50",
        '[[users]]\nid = "alice"\nfields = { vllm_xargs = { brickscan_message = 1 } }\n[[users]]\nid = "bob"\n'
        '[[classes]]\nname = "greedy"\nanswers = 0\n'
        '[[classes]]\nname = "replica"\nurl = "http://other/v1"\nfields = { temperature = 0.5 }\n'
        '[[classes]]\nname = "own-tools"\nlike = "tools"\nanswers = 1',
    )
    requests = requests_of(config)
    by_class = {one.name: [request for request in requests if request.of_class.name == one.name] for one in CLASSES}
    assert by_class["greedy"] == []
    assert len(by_class["temperature-1"]) == 4
    assert len(by_class["several-answers"]) == 2  # of three texts each
    assert len({request.request_id for request in requests}) == len(requests)
    assert [one.of_class.name for one in requests[:3]] == ["temperature-1", "temperature-0.7", "temperature-0.3"]

    first, second = by_class["temperature-1"][:2]
    assert first.url == "http://127.0.0.1:8000/v1/chat/completions"
    assert first.body["temperature"] == 1.0
    assert first.body["max_tokens"] == 50
    assert first.body["return_token_ids"]
    assert (first.user.id, first.body["vllm_xargs"]) == ("alice", {"brickscan_message": 1})
    assert (second.user.id, "vllm_xargs" in second.body) == ("bob", False)
    replica = next(request for request in requests if request.of_class.name == "replica")
    assert replica.url == "http://other/v1/chat/completions"
    assert replica.body["temperature"] == 0.5
    own = [request for request in requests if request.of_class.name == "own-tools"]
    assert len(own) == 1
    assert own[0].body["tools"]
    assert by_class["streaming"][0].body["stream"]
    assert len(by_class["long-prompt"][0].body["messages"][0]["content"]) > 3000
    assert by_class["system-prompt"][0].body["messages"][0]["role"] == "system"
    for request in requests:
        assert json.loads(json.dumps(request.body))["model"] == "m"


def test_no_prompt_comes_twice_in_a_class():
    for api in ("chat", "completions"):
        requests = requests_of(read("answers = 150", f'api = "{api}"'))
        said = [(one.of_class.name, json.dumps(one.body.get("messages", one.body.get("prompt")))) for one in requests]
        assert len(set(said)) == len(said) > 1000


def test_completions_have_no_classes_of_chat():
    config = read(server='api = "completions"')
    names = {one.name for one in classes_of(config)}
    assert names.isdisjoint({"tools", "json-mode", "json-schema", "system-prompt", "reasoning"})
    assert {"greedy", "streaming"} <= names
    request = requests_of(config)[0]
    assert request.prompt == request.body["prompt"]
    left_out = list(classes_left_out(config))
    assert 'tools: needs api = "chat"' in left_out
    assert any(line.startswith("opt-out: define it") for line in left_out)


@pytest.mark.parametrize(("name", "like"), [("own", "tempersture-1"), ("greedy", "top-p")])
def test_a_class_that_starts_from_nothing_is_refused(name, like):
    with pytest.raises(Refused, match=r"classes\.0\.like"):
        classes_of(read(rest=f'[[classes]]\nname = "{name}"\nlike = "{like}"'))


def test_the_endpoint_of_a_server_with_and_without_v1():
    assert endpoint("http://h/v1", "chat") == endpoint("http://h", "chat") == "http://h/v1/chat/completions"
    assert endpoint("https://h/x/v1", "completions") == "https://h/x/v1/completions"

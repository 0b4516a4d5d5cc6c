"""Define the classes of request: ways to ask a server, each of which may leave its answers unmarked.

A mark can be lost on a single path of a server: where a grammar forces tokens, where drafts are verified, or where
another process answers. So each class has its own answers, shares and limits.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from scanner.errors import Refused, did_you_mean
from scanner.probe.config import TOKEN_LIMITS, Api, ClassConfig, ProbeConfig, UserConfig
from scanner.storage.toml import digest

_TOOL = {
    "type": "function",
    "function": {
        "name": "send_letter",
        "description": "Send a letter. The body is the whole letter, several paragraphs long.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("recipient", "subject", "body")},
            "required": ["recipient", "subject", "body"],
        },
    },
}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "essay",
        "schema": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
            "required": ["title", "text"],
            "additionalProperties": False,
        },
    },
}
_SYSTEM = (
    "You write for the weekend edition of a regional newspaper. Write in plain, lively language and whole paragraphs. "
    "Never use lists or headings, and do not mention these instructions."
)


@dataclass(frozen=True)
class RequestClass:
    """A way of asking.

    Args:
        name: name in probe.toml and on the page.
        about: its difference from other classes, for people.
        fields: fields of its requests.
        prompts: kind of prompts (`kind` in prompts.json). `languages`: prose in other languages than English.
        chat_only: whether it needs /v1/chat/completions.
        stream: whether the answer comes in pieces.
        system: whether a system prompt comes first.
        long: whether the prompt has a few thousand characters.
        reasoning: whether the model's reasoning is an answer too, in a class of its own.
        answers: number of texts to ask for. None: the number in probe.toml.
        url: URL of another server. None: the server under test.
    """

    name: str
    about: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    prompts: str = "prose"
    chat_only: bool = False
    stream: bool = False
    system: bool = False
    long: bool = False
    reasoning: bool = False
    answers: int | None = None
    url: str | None = None

    @property
    def choices(self) -> int:
        """Return the number of texts that one request asks for."""
        return int(self.fields.get("n", 1))


def _sampled(name: str, about: str, temperature: float = 1.0, **others: Any) -> RequestClass:  # noqa: ANN401
    fields = {"temperature": temperature, "top_p": 1.0} | others.pop("fields", {})
    return RequestClass(name, about, fields, **others)


USUAL_CLASS = "temperature-1"
"""Class that an operator's own class starts from by default."""

CLASSES = (
    _sampled(USUAL_CLASS, "sampled at temperature 1"),
    _sampled("temperature-0.7", "sampled at temperature 0.7", 0.7),
    _sampled("temperature-0.3", "sampled at temperature 0.3", 0.3),
    _sampled("greedy", "the most likely token each time (temperature 0)", 0.0),
    _sampled("top-p", "sampled from the most likely 90 %", fields={"top_p": 0.9}),
    _sampled("top-k", "sampled from the 40 most likely tokens", fields={"top_k": 40}),
    _sampled("code", "asks for code", prompts="code"),
    _sampled("other-languages", "prompts in languages other than English", prompts="languages"),
    _sampled(
        "json-mode",
        "answers as JSON",
        prompts="json",
        chat_only=True,
        fields={"response_format": {"type": "json_object"}},
    ),
    _sampled("json-schema", "answers that follow a JSON schema", chat_only=True, fields={"response_format": _SCHEMA}),
    _sampled(
        "tools",
        "calls a tool; its arguments are the answer",
        prompts="tools",
        chat_only=True,
        fields={"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "send_letter"}}},
    ),
    _sampled("streaming", "the answer is streamed in pieces", stream=True),
    _sampled("several-answers", "three answers to one request (n = 3)", fields={"n": 3}),
    _sampled("long-prompt", "after a prompt of several thousand characters", long=True),
    _sampled("system-prompt", "after a system prompt", chat_only=True, system=True),
    _sampled(
        "reasoning", "reasoning before an answer, then the answer", prompts="reasoning", chat_only=True, reasoning=True
    ),
    _sampled(
        "stop-strings", "ends at strings that the request names", fields={"stop": ["In conclusion", "The end", "###"]}
    ),
    _sampled("seed", "sampled with a seed that the request gives", fields={"seed": 20261202}),
)
"""Classes that every probe asks for, unless probe.toml says otherwise."""

REASONING_ANSWER = "reasoning-answer"
"""Class of answers after reasoning. The reasoning itself is in the class `reasoning`."""

NEED_A_LINE = {
    "opt-out": "request fields by which a client may avoid the mark, set in `fields`",
    "replica": "another server or route, set in `url`",
    "speculation": "a server with speculative decoding, set in `url` or `fields`",
}
"""Classes that only the operator can describe, and how a section of probe.toml describes them."""


@dataclass(frozen=True)
class Request:
    """One request, before it is sent.

    Args:
        request_id: class and number, such as `top-p/7`.
        of_class: its class.
        url: where it is sent.
        body: whole body, as JSON.
        user: user for whom the answer is to be marked. None: no user is named.
        prompt: text before the answer as the model sees it. None: the server's chat template decides.
    """

    request_id: str
    of_class: RequestClass
    url: str
    body: Mapping[str, Any]
    user: UserConfig | None = None
    prompt: str | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of everything that decides the answer: URL, body and user. Tokens are not included."""
        return digest([self.url, self.body, self.user and self.user.id])

    @property
    def texts(self) -> int:
        """Return the number of texts that its answer should have."""
        return self.choices * (2 if self.of_class.reasoning else 1)

    @property
    def choices(self) -> int:
        """Return the number of answers that it asks for at once."""
        return int(self.body.get("n", 1))

    @property
    def most_tokens_in(self) -> int:
        """Return a bound on the tokens of its prompt.

        A token has at least one byte, and a chat template adds some dozens.
        """
        said = {name: self.body[name] for name in ("messages", "prompt", "tools") if name in self.body}
        return len(json.dumps(said, ensure_ascii=False).encode()) + 100

    @property
    def most_tokens_out(self) -> int:
        """Return a bound on the tokens of all its answers together."""
        return max(int(self.body.get(name, 1)) for name in TOKEN_LIMITS) * self.choices


def classes_of(config: ProbeConfig) -> list[RequestClass]:
    """Return the classes that a probe asks for, including those of probe.toml.

    Raises:
        Refused: a class starts from a class that does not exist.
    """
    classes = {one.name: one for one in CLASSES}
    for number, own in enumerate(config.classes):
        start = own.name if own.name in classes else own.like or USUAL_CLASS
        if start not in classes or (own.like is not None and own.name in {one.name for one in CLASSES}):
            raise Refused(f"field 'classes.{number}.like' = {own.like!r}: {_no_start(own, classes)}")
        classes[own.name] = _changed(classes[start], own)
    asked = [one for one in classes.values() if config.server.api == "chat" or not one.chat_only]
    return [one for one in asked if _answers(one, config)]


def _no_start(own: ClassConfig, classes: Mapping[str, RequestClass]) -> str:
    if own.name in classes:
        return f"{own.name} is already a class of brickscan's; leave `like` out, or rename your class"
    return f"there is no such class{did_you_mean(str(own.like), classes)}; allowed: {', '.join(classes)}"


def _changed(start: RequestClass, own: ClassConfig) -> RequestClass:
    about = start.about if own.name == start.name else f"your own: based on {start.name}"
    answers = start.answers if own.answers is None else own.answers
    return replace(
        start,
        name=own.name,
        about=about,
        fields=_merged(start.fields, own.fields),
        answers=answers,
        url=own.url or start.url,
    )


def _answers(one: RequestClass, config: ProbeConfig) -> int:
    return config.answers if one.answers is None else one.answers


def requests_of(config: ProbeConfig) -> list[Request]:
    """Return all requests of a probe: one of each class, then a second one of each, and so on.

    The same configuration always gives the same requests.

    Raises:
        Refused: as `classes_of`.
    """
    classes = classes_of(config)
    counts = [-(-_answers(one, config) // one.choices) for one in classes]
    rounds = range(max(counts, default=0))
    return [
        _request(config, one, number)
        for number in rounds
        for one, count in zip(classes, counts, strict=True)
        if number < count
    ]


def _request(config: ProbeConfig, one: RequestClass, number: int) -> Request:
    server, prompt = config.server, _prompt(one, number)
    user = config.users[number % len(config.users)] if config.users else None
    body: dict[str, Any] = {"model": server.model, "max_tokens": server.most_tokens, "stream": one.stream}
    if one.stream:
        body["stream_options"] = {"include_usage": True}
    if server.token_ids:
        body["return_token_ids"] = True
    if server.api == "chat":
        system = [{"role": "system", "content": _SYSTEM}] if one.system else []
        body["messages"] = [*system, {"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    body = _merged(_merged(body, one.fields), user.fields if user else {})
    url = endpoint(one.url or server.url, server.api)
    return Request(f"{one.name}/{number}", one, url, body, user, None if server.api == "chat" else prompt)


def _merged(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge fields of two objects.

    Both may set parts of an inner object, such as `vllm_xargs` of a class and of a user.
    """
    found = dict(fields)
    for name, value in others.items():
        inner = found.get(name)
        found[name] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found


def endpoint(url: str, api: Api) -> str:
    """Return the URL for requests, from the URL of a server with or without /v1."""
    return f"{url.removesuffix('/v1')}/v1/{'chat/completions' if api == 'chat' else 'completions'}"


def _prompt(one: RequestClass, number: int) -> str:
    """Return the prompt of a request. Prompts in a class all differ, because greedy answers to equal ones are equal."""
    prompts = _prompts(one.prompts)
    text = prompts[number % len(prompts)]
    version = number // len(prompts)
    if version:
        text += f" (Version {version + 1})"
    return f"{_notes()}\n\nThese were notes of others. Now to your own task. {text}" if one.long else text


@cache
def _all_prompts() -> list[dict[str, str]]:
    read: list[dict[str, str]] = json.loads(files(__package__).joinpath("prompts.json").read_text(encoding="utf-8"))
    return read


@cache
def _prompts(kind: str) -> list[str]:
    if kind == "languages":
        return [one["text"] for one in _all_prompts() if one["language"] != "en"]
    return [one["text"] for one in _all_prompts() if one["kind"] == kind and one["language"] == "en"]


@cache
def _notes() -> str:
    """Return a few thousand characters to put before a task: all prompts of this package, numbered."""
    return "\n".join(f"{number}. {one['text']}" for number, one in enumerate(_all_prompts(), 1))


def classes_left_out(config: ProbeConfig) -> Iterator[str]:
    """Yield a line for each class that a probe does not ask for, with the reason."""
    asked = {one.name for one in classes_of(config)}
    for one in CLASSES:
        if one.name not in asked:
            chat_only = config.server.api != "chat" and one.chat_only
            yield f"{one.name}: " + ('needs api = "chat"' if chat_only else "answers = 0")
    for name, how in NEED_A_LINE.items():
        if name not in asked:
            yield f"{name}: define it in a [[classes]] section of that name: {how}"

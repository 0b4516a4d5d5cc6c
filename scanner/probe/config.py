"""Define the file probe.toml: the server, its requests, pace and price, and the keys it should mark with."""

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from schemas.registry import PathText, SecretReference, Version

TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""Fields of a request that bound the tokens of its answer."""
_MOST_COUNT = 1_000_000


def _is_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(not "!" <= one <= "~" for one in url):
        raise ValueError("a URL is needed, such as http://127.0.0.1:8000")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("a server's name has 1 to 63 characters between its points") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL must not contain a name or password; give the token as a reference, token = 'env:NAME'")
    if parts.query or parts.fragment:
        raise ValueError("a URL must not contain ? or #; give the server, such as http://127.0.0.1:8000")
    if route := re.search(r"/(v1/)?(chat/completions|completions|models)/?$", parts.path):
        raise ValueError(f"a URL names only the server; leave out {route[0]}")
    if parts.port is not None and parts.port == 0:  # reading the port refuses one that is no number
        raise ValueError("a port is 1 to 65535")
    return url.rstrip("/")


def _changes_nothing_of_ours(fields: dict[str, Any]) -> dict[str, Any]:
    taken = sorted({"model", "messages", "prompt", "stream"} & fields.keys())
    if taken:
        raise ValueError(f"{', '.join(taken)} cannot be changed here; give other fields of a request")
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("contains a date, nan or inf, which JSON does not have; write text or a number") from None
    for name in ("n", *TOKEN_LIMITS):
        if name in fields and not (type(fields[name]) is int and 1 <= fields[name] <= _MOST_COUNT):
            raise ValueError(f"{name} is a whole number from 1 to {_MOST_COUNT:,}")
    return fields


ServerUrl = Annotated[str, AfterValidator(_is_url)]
RequestFields = Annotated[dict[str, Any], AfterValidator(_changes_nothing_of_ours)]
"""Fields of a request as JSON, such as { temperature = 0.2 }. They are added to the fields of its class."""
ClassName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")]
"""Name of a class of request: up to 40 of a-z, 0-9, point and hyphen."""
AnswerCount = Annotated[int, Field(ge=0, le=10_000)]
Api = Literal["chat", "completions"]


class _ProbeTable(BaseModel):
    # pydantic would print the input in an error, and a pasted token must not be printed back
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class ServerConfig(_ProbeTable):
    """The server under test. It speaks OpenAI's interface, as vLLM, SGLang and llama.cpp's server do."""

    url: ServerUrl  # such as http://127.0.0.1:8000, with or without /v1
    model: str = Field(min_length=1, max_length=500)  # name of the model, as the server calls it
    api: Api = "chat"  # chat: /v1/chat/completions. completions: /v1/completions
    token: SecretReference | None = None  # env:NAME or file:PATH of the token to send, never the token itself
    token_ids: bool = False  # ask for token ids too (vLLM's return_token_ids). Some servers refuse the field
    most_tokens: int = Field(default=300, ge=1, le=100_000)  # of an answer. Longer answers show weaker marks
    requests_at_once: int = Field(default=4, ge=1, le=256)  # requests under way at a time
    requests_a_minute: float = Field(default=600, gt=0, le=1e6)  # repeated attempts count too
    timeout_s: float = Field(default=120, gt=0, le=86_400)  # seconds for one answer, until its last byte
    attempts: int = Field(default=5, ge=1, le=100)  # at a request that gets 429, 5xx or no connection
    most_answer_bytes: int = Field(default=10_000_000, ge=1_000, le=100_000_000)  # longer answers are broken off


class PriceConfig(_ProbeTable):
    """The price of the server's tokens, in any currency."""

    a_million_in: float = Field(ge=0, le=1e9)  # tokens of prompts
    a_million_out: float = Field(ge=0, le=1e9)  # tokens of answers
    most: float | None = Field(default=None, gt=0, le=1e12)  # a request that could raise the cost above it is not sent


class UserConfig(_ProbeTable):
    """A user for whom answers are marked. Requests take turns among users."""

    id: str = Field(min_length=1, max_length=500)  # as the registry has it
    token: SecretReference | None = None  # the user's own token, where the server tells users by it
    fields: RequestFields = {}  # of this user's requests, such as { vllm_xargs = { brickscan_message = 73311 } }


class ClassConfig(_ProbeTable):
    """A change to the class of request with this name. A new name defines another class."""

    name: ClassName  # up to 40 of a-z, 0-9, point and hyphen
    answers: AnswerCount | None = None  # number of answers to ask for. 0: leave the class out. None: as `answers` above
    like: ClassName | None = None  # class that a new class starts from. None: temperature-1
    url: ServerUrl | None = None  # another server or route, such as a replica. It gets the same token
    fields: RequestFields = {}  # fields to add to its requests


class ProbeConfig(_ProbeTable):
    """A probe: the server, the keys it should mark with, the requests, and the folder of results."""

    version: Version  # of this file
    registry: PathText = "registry"  # folder of the registry
    keys: tuple[str, ...] = ()  # ids of the keys that the server may mark with. Empty: all keys of the registry
    out: PathText = "probe"  # folder of answers and of the page
    signing: PathText = "signing"  # folder of the keys that sign pages, made if missing. May be a detector's
    tokenizers: tuple[PathText, ...] = ()  # further tokenizer.json files that the server may use, such as its own
    answers: AnswerCount = 20  # of each class
    server: ServerConfig
    price: PriceConfig | None = None  # None: the cost is unknown and has no limit
    users: tuple[UserConfig, ...] = ()
    classes: tuple[ClassConfig, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> "ProbeConfig":
        for what, names in (
            ("users", [user.id for user in self.users]),
            ("classes", [one.name for one in self.classes]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} has {twice[0]!r} twice; keep one of them")
        return self

"""A small server that speaks OpenAI's interface: chat, completions, streams, several answers, tools, JSON, reasoning.

What it writes is a function's; what goes wrong is a list of troubles, one for each of the first requests.
"""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Body = dict[str, Any]


class Written(NamedTuple):
    """One answer of a model."""

    text: str
    ids: list[int] | None = None
    reasoning: str | None = None
    finish: str = "stop"
    prompt_ids: list[int] | None = None


Write = Callable[[Body, int], list[Written]]
"""Answers a request: its body, and how many requests came before."""


def echo(body: Body, _number: int) -> list[Written]:
    """Repeat the prompt, once for each answer that is asked for."""
    return [Written(f"{number}: {prompt_of(body)}") for number in range(body.get("n", 1))]


def prompt_of(body: Body) -> str:
    return body["prompt"] if "prompt" in body else body["messages"][-1]["content"]


class Exchange(NamedTuple):
    """A request that came."""

    path: str
    body: Body
    authorization: str | None
    at: float


Trouble = Callable[["Handler"], None]


class ModelServer(ThreadingHTTPServer):
    """Answers on a free port of this machine, until it is closed.

    Args:
        write: what the model writes.
        troubles: of the first requests, in their order; None: that request is answered.
        always: a trouble of every later request.
        model: name in answers; None: what was asked for.
    """

    daemon_threads = True

    def __init__(
        self,
        write: Write = echo,
        troubles: Iterable[Trouble | None] = (),
        always: Trouble | None = None,
        model: str | None = None,
    ) -> None:
        self.write, self.always, self.model = write, always, model
        self.asked: list[Exchange] = []
        self._troubles, self._lock = deque(troubles), threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, asked: Exchange) -> tuple[int, Trouble | None]:
        """Note a request; return its number, and its trouble."""
        with self._lock:
            self.asked.append(asked)
            return len(self.asked) - 1, self._troubles.popleft() if self._troubles else self.always


@contextlib.contextmanager
def serving(*arguments: Any, **options: Any) -> Iterator[ModelServer]:
    with ModelServer(*arguments, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = Exchange(self.path, body, self.headers["Authorization"], time.monotonic())
        number, trouble = self.server.take(asked)
        with contextlib.suppress(ConnectionError):
            if trouble is not None:
                trouble(self)
            elif self.path == "/v1/chat/completions":
                self._answer(body, number, chat=True)
            elif self.path == "/v1/completions":
                self._answer(body, number, chat=False)
            else:
                self.send_error(404)

    def _answer(self, body: Body, number: int, *, chat: bool) -> None:
        written = self.server.write(body, number)
        whole = {
            "model": self.server.model or body["model"],
            "object": "chat.completion" if chat else "text_completion",
        }
        usage = {"prompt_tokens": 10, "completion_tokens": sum(len(one.text.split()) for one in written)}
        if body.get("stream"):
            self._stream(whole, written, usage, chat=chat)
            return
        choices = [_choice(body, index, one, chat=chat) for index, one in enumerate(written)]
        self.send(json.dumps(whole | {"choices": choices, "usage": usage}).encode())

    def _stream(self, whole: Body, written: list[Written], usage: Body, *, chat: bool) -> None:
        events = []
        for index, one in enumerate(written):
            for begin in range(0, len(one.text), 7):
                piece = one.text[begin : begin + 7]
                part = {"delta": {"content": piece}} if chat else {"text": piece}
                events.append(whole | {"choices": [{"index": index, "finish_reason": None, **part}]})
            last = {"delta": {}} if chat else {"text": ""}
            events.append(whole | {"choices": [{"index": index, "finish_reason": one.finish, **last}]})
        events.append(whole | {"choices": [], "usage": usage})
        lines = [*map(json.dumps, events), "[DONE]"]
        self.send("".join(f"data: {line}\n\n" for line in lines).encode(), "text/event-stream")

    def send(self, content: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _choice(body: Body, index: int, one: Written, *, chat: bool) -> Body:
    choice: Body = {"index": index, "finish_reason": one.finish}
    if body.get("return_token_ids") and one.ids is not None:
        choice |= {"token_ids": one.ids, "prompt_token_ids": one.prompt_ids}
    if not chat:
        return choice | {"text": one.text}
    if "tools" in body:
        arguments = json.dumps({"recipient": "all", "subject": "news", "body": one.text})
        call = {"type": "function", "id": "1", "function": {"name": "send_letter", "arguments": arguments}}
        return choice | {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
    text = json.dumps({"text": one.text}) if "response_format" in body else one.text
    reasoning = {} if one.reasoning is None else {"reasoning_content": one.reasoning}
    return choice | {"message": {"role": "assistant", "content": text} | reasoning}


def status(code: int, message: str = "too much", **headers: str) -> Trouble:
    content = json.dumps({"error": {"message": message}}).encode()
    return lambda handler: handler.send(content, status=code, **headers)


def sends(content: bytes, kind: str = "application/json") -> Trouble:
    return lambda handler: handler.send(content, kind)


def endless(handler: Handler) -> None:
    """Write a stream that never ends, as fast as it is read."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    while True:
        handler.wfile.write(b'data: {"choices": [{"index": 0, "delta": {"content": "again and "}}]}\n\n' * 100)


def drips(handler: Handler) -> None:
    """Write a byte now and then, without end, so that no single wait is long."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.02)


def breaks_off(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    handler.close_connection = True

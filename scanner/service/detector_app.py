"""Serve the detector over HTTP: JSON for programs, a page for people without scripts, and metrics for operators.

Nothing of a text is kept or repeated, in no error, log, metric or traceback.
"""

import asyncio
import contextlib
import email.message
import functools
import importlib.metadata
import ipaddress
import json
import math
import re
import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import jinja2
from prometheus_client import generate_latest
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanner.errors import BrickscanError
from scanner.evidence.page import environment
from scanner.printable import one_in
from scanner.service.answering import Answers
from scanner.service.budget import BudgetSpent, Caller
from scanner.service.processes import Unavailable
from scanner.service.reading import FILE_ENDS, WHY_UNREAD, FileReader, Unread
from scanner.service.serving import Room, Server, body_of
from scanner.service.signing import expert_of, signing_keys
from schemas.service import (
    MEANINGS,
    BatchAnswer,
    BatchRequest,
    DetectorAnswer,
    DetectorConfig,
    DetectorError,
    DetectorRequest,
    openapi_components,
)

MOST_CONNECTIONS = 1024
"""Most connections at a time."""

MOST_HELD_BYTES = 2**28
"""Most bytes of bodies that are in memory at a time."""

_ESCAPED = 6
"""Bytes of JSON that a byte of text takes at most."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
Handler = Callable[[Request], Awaitable[Response]]


class DetectorServer(Server):
    """The detector on a port of this machine.

    Args:
        config: configuration of the detector.
        folder: folder that its relative paths start from.
        host: address of this machine.
        port: port of this machine. 0: any free one.
        tell: called with a line on each change.

    Raises:
        BrickscanError: configuration or registry cannot be right, or the port is not free.
    """

    def __init__(self, config: DetectorConfig, folder: Path, host: str, port: int, tell: Callable[[str], None]) -> None:
        tell = functools.partial(_tell_or_not, tell)
        self.answers = Answers(config, folder, tell)
        app = DetectorApp(self.answers, tell)
        super().__init__(host, port, lambda _port: app, at_once=MOST_CONNECTIONS, lifespan="on")
        self.room, self.files = app.room, app.files
        self.address = f"http://{host}:{self.port}"
        self.answers.name = config.name or self.address


def _tell_or_not(tell: Callable[[str], None], line: str) -> None:
    """Tell a line, or lose it, for example on a full disk. Otherwise the error would end following the registry."""
    with contextlib.suppress(OSError, ValueError):
        tell(line)


class DetectorApp:
    """Routes of the detector, as ASGI."""

    def __init__(self, answers: Answers, tell: Callable[[str], None]) -> None:
        self._answers, self._config, self._tell, self.room = answers, answers.config, tell, Room(MOST_HELD_BYTES)
        self.files = FileReader(self._config.workers, self._config.seconds, self._config.most_bytes, answers.charge)
        routes: list[tuple[str, str, Handler]] = [
            ("/", "GET", self._page),
            ("/", "POST", self._form),
            ("/style.css", "GET", self._style),
            ("/detect", "POST", self._detect),
            ("/detect/batch", "POST", self._batch),
            ("/detect/file", "POST", self._file),
            ("/openapi.json", "GET", self._openapi),
            ("/.well-known/ai-provenance", "GET", self._signpost),
            ("/health", "GET", self._health),
            ("/ready", "GET", self._ready),
            ("/metrics", "GET", self._metrics),
        ]
        app = Starlette(
            routes=[Route(path, self._guarded(handler), methods=[method]) for path, method, handler in routes],
            exception_handlers={HTTPException: self._wrong},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = (
            False  # behind a proxy, it would have clients send their texts by http, or elsewhere
        )
        self._app: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._answers.follow())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self._answers.close()

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler that tells only the kind of an unforeseen fault.

        A traceback could contain a part of a text.
        """

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException as wrong:
                raise wrong from None
            except Unavailable as error:
                raise HTTPException(503, str(error), {"retry-after": "60"}) from None
            except Exception as error:
                self._tell(f"event=fault path={request.url.path} kind={type(error).__name__}")
                passes = isinstance(error, BrickscanError | OSError | sqlite3.Error)
                sentence = "The detector cannot answer now." if passes else "This went wrong."
                raise HTTPException(503 if passes else 500, sentence) from None
            finally:
                self.room.leave(request)

        return guarded

    async def _detect(self, request: Request) -> Response:
        detector_request = await self._read(request, DetectorRequest)
        return _json(await self._answer_text(detector_request.text.encode(), request))

    async def _batch(self, request: Request) -> Response:
        texts = (await self._read(request, BatchRequest)).texts
        if len(texts) > self._config.batch:
            raise HTTPException(413, f"texts: one request may have at most {self._config.batch}.")
        answering = self._answers.answer([self._bounded(text.encode()) for text in texts], self._caller(request))
        return _json(BatchAnswer(answers=tuple(await _while_there(request, answering))))

    async def _file(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        raw = await body_of(request, self._config.most_bytes, self.room)
        return _json(await self._answer_file(kind, raw, request))

    async def _answer_file(self, kind: str, raw: bytes, request: Request) -> DetectorAnswer:
        text = await self._text_of(kind, raw, request)
        answer = await self._answer_text(text, request)
        return answer if text == raw else answer.model_copy(update={"text": text.decode()})

    async def _answer_text(self, text: bytes, request: Request) -> DetectorAnswer:
        answering = self._answers.answer([self._bounded(text)], self._caller(request))
        (answer,) = await _while_there(request, answering)
        if isinstance(answer, DetectorError):
            raise _too_much(answer)
        return answer

    async def _read(self, request: Request, model: type[Model]) -> Model:
        body = await body_of(request, _ESCAPED * self._config.most_bytes + 1_000, self.room)
        shape = '{"texts": ["…", "…"]}' if model is BatchRequest else '{"text": "…"}'
        try:
            return model.model_validate(json.loads(body.decode()))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            field = ".".join(str(part) for part in first["loc"][:2]) or "the body"
            raise HTTPException(422, f"{field[:60]}: is invalid ({first['type']}); expected: {shape}.") from None
        except (ValueError, RecursionError):
            raise HTTPException(422, f"the body: is not JSON; expected: {shape}.") from None

    async def _text_of(self, kind: str, raw: bytes, request: Request) -> bytes:
        if kind not in FILE_ENDS:
            why = "The body must be the file itself, and Content-Type one of"
            raise HTTPException(415, f"{kind[:60]!r} is not supported. {why}: {', '.join(FILE_ENDS)}.")
        caller = self._caller(request)
        try:
            self._answers.budget.refuse_spent(caller)
        except BudgetSpent as spent:
            raise _too_much(self._answers.refusal(spent)) from None
        text = await _while_there(request, self.files.text_of(caller, kind, raw))
        if isinstance(text, Unread):
            raise HTTPException(422, WHY_UNREAD[text])
        return text

    def _bounded(self, text: bytes) -> bytes:
        if len(text) > self._answers.most_bytes:
            raise HTTPException(
                413, f"A text may have at most {self._answers.most_bytes:,} bytes: ask about a part of it."
            )
        return text

    def _caller(self, request: Request) -> Caller:
        """Return the caller of a request.

        Raises:
            HTTPException: the token is unknown, has ended or was revoked, or a header is there twice.
        """
        address, proxy = request.client.host if request.client else "", self._config.proxy
        if proxy is not None and proxy.sends(address):
            names = request.headers.getlist(proxy.expert) if proxy.expert else []
            if len(names) > 1:
                raise HTTPException(400, "Two experts are named: the proxy lets clients' headers pass.")
            if names and (name := names[0].strip()):
                return Caller(name[:200], expert=True)
            if proxy.caller and (entries := ",".join(request.headers.getlist(proxy.caller))):
                address = entries.rpartition(",")[2].strip()
        authorizations = request.headers.getlist("authorization")
        if len(authorizations) > 1:
            raise HTTPException(400, "Two Authorization headers: a proxy in front may have checked only the other one.")
        scheme, _, token = "".join(authorizations).partition(" ")
        if scheme.lower() == "bearer":
            expert = expert_of(self._answers.state, token.strip())
            if expert is None:
                raise HTTPException(
                    401, "This token is unknown, has expired or was revoked.", {"www-authenticate": "Bearer"}
                )
            return Caller(expert, expert=True)
        return Caller(network_of(address), expert=False)

    async def _page(self, request: Request) -> Response:
        return self._html(200, title="Was this text marked by our models?")

    async def _form(self, request: Request) -> Response:
        body = await body_of(request, 2 * self._config.most_bytes + 4_000, self.room)
        fields = _fields(request.headers.get("content-type", ""), body)
        name, raw = fields.get("file", ("", b""))
        # browsers send the lines of a box with CR LF, whatever was pasted
        text = fields.get("text", ("", b""))[1].replace(b"\r\n", b"\n")
        if bool(raw) == bool(text.strip()):
            raise HTTPException(422, "Either paste a text or choose a file, not both.")
        if not raw and text.decode(errors="ignore").encode() != text:
            raise HTTPException(422, "text: is not valid UTF-8.")
        answer = await (self._answer_file(_kind_of(name), raw, request) if raw else self._answer_text(text, request))
        report = b64encode(answer.report.model_dump_json(indent=1).encode()).decode()
        statement = json.loads(answer.report.statement)
        rate = one_in(math.log10(statement["false_positive_rate"]))
        title = answer.result.capitalize()
        return self._html(200, title=title, answer=answer, report=report, statement=statement, rate=rate)

    def _html(self, status: int, **values: object) -> Response:
        context = {"answer": None, "wrong": None} | values
        page = (
            _templates()
            .get_template("detector.html.j2")
            .render(
                config=self._config, most_bytes=self._answers.most_bytes, kinds=FILE_ENDS, meanings=MEANINGS, **context
            )
        )
        return HTMLResponse(page, status)

    def _wrong(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        if request.url.path == "/":
            page = self._html(error.status_code, title="No answer", wrong=error.detail)
            page.headers.update(error.headers or {})
            return page
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    async def _style(self, _request: Request) -> Response:
        return Response(_templates().get_template("detector.css.j2").render(), media_type="text/css")

    async def _signpost(self, _request: Request) -> Response:
        served = self._answers.served
        if served is None:
            raise Unavailable("The detector is not ready.")
        config, name, keys = self._config, self._answers.name, signing_keys(self._answers.state)
        return JSONResponse(
            {
                "version": 1,
                "issuer": {"system": "brickscan", "provider": config.provider, "installationUrl": name},
                "detector": {
                    "enabled": True,
                    "access": "public",
                    "endpoint": f"{name}/detect",
                    "ui": f"{name}/",
                    "openapi": f"{name}/openapi.json",
                    "methods": ['POST application/json {"text": "..."}'],
                    "signedReports": True,
                    "retention": "none",
                    "filter": served.night is not None,
                    "secondPass": False,
                },
                "techniques": [{"id": "text-watermark", "description": title} for title in served.techniques],
                "trustAnchors": [key.public_key for key in keys if key.revoked_at is None],
                "signingKeys": [key.model_dump(mode="json") for key in keys],
                "commitmentsHead": self._answers.commitments_head(),
                "falsePositiveRate": served.false_positive_rate,
                "audited": served.audited,
            }
        )

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _ready(self, _request: Request) -> Response:
        ready = self._answers.served is not None
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def _metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._answers.metrics), media_type="text/plain; version=0.0.4")

    async def _openapi(self, _request: Request) -> Response:
        return Response(openapi(), media_type="application/json")


HOUSEHOLD_BITS = 56
"""Number of bits of an IPv6 address that are equal in a household. A household gets 2^72 addresses (RFC 6177)."""

_WITH_PORT = re.compile(r"\[([^\]]*)\](?::\d+)?|([\d.]+):\d+")


def network_of(address: str) -> str:
    """Return the network that counts as one caller.

    It is an IPv4 address, or all IPv6 addresses that begin with the same HOUSEHOLD_BITS bits.
    """
    match = _WITH_PORT.fullmatch(address)  # some proxies name the port, too
    host = (match[1] or match[2]) if match else address
    with contextlib.suppress(ValueError):
        ip_address = ipaddress.ip_address(host)
        if isinstance(ip_address, ipaddress.IPv6Address) and ip_address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(ip_address), HOUSEHOLD_BITS), strict=False))
        return str(getattr(ip_address, "ipv4_mapped", None) or ip_address)
    return address


async def _while_there(request: Request, answering: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine. If the client leaves before, the coroutine is cancelled.

    Raises:
        HTTPException: the client has left. It will not read the reason.
    """
    answer, disconnection = asyncio.ensure_future(answering), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answer, disconnection), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(408, "The client has disconnected.")
        return answer.result()
    finally:
        answer.cancel()
        disconnection.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_much(refusal: DetectorError) -> HTTPException:
    return HTTPException(429, refusal.detail, {"retry-after": str(refusal.retry_after)})


def _kind_of(name: str) -> str:
    """Return the media type of a file by its name.

    Raises:
        HTTPException: files of this type are not read.
    """
    for kind, ends in FILE_ENDS.items():
        if name.lower().endswith(ends):
            return kind
    raise HTTPException(415, f"Files are recognised by their extension: {', '.join(sum(FILE_ENDS.values(), ()))}.")


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


_PARTS, _LONGEST_HEAD = 10, 1_000
_AS_IT_IS = ("7bit", "8bit", "binary")


def _fields(content_type: str, body: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the fields of a form by name: the name of a file (empty for other fields), and the value (RFC 7578).

    They are held in memory, unlike Starlette's. Nested parts are not read, because their depth would cost time.
    """
    head = _head(f"Content-Type: {content_type}")
    boundary = head.get_boundary()
    if head.get_content_type() != "multipart/form-data" or not boundary or not boundary.isascii():
        raise HTTPException(415, "Send the form of this page, or use /detect with JSON.")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), _PARTS + 1)
    if len(parts) > _PARTS:
        raise HTTPException(422, f"A form may have at most {_PARTS - 1} fields.")
    fields = dict[str, tuple[str, bytes]]()
    for part in parts:
        part_head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        field = _head(part_head.decode("latin-1"))
        name = field.get_param("name", header="content-disposition")
        if isinstance(name, str):
            if name in fields or field.get("content-transfer-encoding", "binary").lower() not in _AS_IT_IS:
                raise HTTPException(422, "Each field of this form may occur only once and must not be encoded.")
            fields[name] = (field.get_filename() or "", value)
    return fields


def _head(lines: str) -> email.message.Message:
    return email.message_from_string(lines[:_LONGEST_HEAD])


@functools.cache
def _templates() -> jinja2.Environment:
    evidence = jinja2.PackageLoader("scanner.evidence", ".")
    return environment().overlay(loader=jinja2.ChoiceLoader([jinja2.PackageLoader("scanner.service", "."), evidence]))


@functools.cache
def openapi() -> bytes:
    """Return the OpenAPI description of the detector, JSON, made from its models."""

    def content(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    def error(why: str) -> dict[str, Any]:
        return {"description": why, "content": content("DetectorError")}

    errors = {
        "401": error("The token is unknown, has expired or was revoked"),
        "411": error("The body is sent in chunks, without Content-Length"),
        "413": error("The text is too long, or there are too many texts"),
        "422": error("The request is not as described"),
        "429": error("The budget of the text or the caller is used up; Retry-After says when to try again"),
        "503": error("The detector is not ready, or this text could not be checked"),
    }

    def post(about: str, body: dict[str, Any], answer: str) -> dict[str, Any]:
        well = {"200": {"description": "The answer", "content": content(answer)}}
        body_of_request = {"required": True, "content": body}
        security: list[dict[str, list[str]]] = [{}, {"token": []}]
        return {
            "post": {"summary": about, "requestBody": body_of_request, "responses": well | errors, "security": security}
        }

    files: dict[str, Any] = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in FILE_ENDS}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "brickscan detector", "version": importlib.metadata.version("brickscan")},
        "paths": {
            "/detect": post("Ask about one text", content("DetectorRequest"), "DetectorAnswer"),
            "/detect/batch": post("Ask about several texts", content("BatchRequest"), "BatchAnswer"),
            "/detect/file": post("Ask about the text in a file", files, "DetectorAnswer"),
        },
        "components": {
            "schemas": openapi_components(DetectorRequest, BatchRequest, DetectorAnswer, BatchAnswer, DetectorError),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return json.dumps(document).encode()

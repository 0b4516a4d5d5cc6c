"""Run the one server of all apps: an app on a port of this machine, with limits on its clients."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Literal

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scanner.errors import Refused

LOOPBACK = "127.0.0.1"
"""Address that only this machine can reach."""

_SECONDS_TO_END = 3
"""Seconds for requests that are still being answered when the app ends. The app then ends within five seconds."""

_THREADS = 4
"""Most requests that are worked on at a time.

More would gain nothing, because they compute, and the end waits for all.
"""

MOST_CONNECTIONS = 64
"""Most connections at a time, unless the app sets another number.

Beyond it, the oldest connection that waits for its client is closed, beginning with those that already had an answer.
If none waits, as many connections again are accepted. Beyond these, the app answers 503.
"""

_IN_A_ROW = 32
"""Most connections that are accepted before the oldest ones are closed.

Together with those that just end and `MOST_CONNECTIONS`, they are fewer than the 256 files that some systems allow a
process to open.
"""

_READ_BYTES = 4096
"""Bytes that are read from a connection at a time.

In so few, h11 finds too few chunks of a body to keep others waiting. By default, asyncio reads 256 KiB at a time.
"""

_WAITING = 2048
"""Most connections that the system holds until they are accepted."""

SECONDS_FOR_A_HEAD = 10.0
"""Longest time in which the whole head of a request must arrive, on a new connection or on a kept one."""

SECONDS_TO_BEGIN = 1.0
"""Time for which a new connection is not closed for others, while there are fewer than twice the most."""

SECONDS_TO_TAKE = 10.0
"""Longest time in which a client takes (almost) nothing of an answer that is larger than the sockets' buffers."""


SECONDS_TO_READ = 10.0
"""Longest time in which a body must arrive."""


class _Config(uvicorn.Config):
    """An app's configuration, and the number of requests that were no HTTP.

    They are not logged: anybody could fill a log.
    """

    malformed, at_once = 0, MOST_CONNECTIONS


class _FewThreads(uvicorn.Server):
    """A server that works on a few requests at a time. The others wait, and are dropped when it ends."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        current_default_thread_limiter().total_tokens = _THREADS
        await super().startup(sockets)


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection.

    Its client cannot keep others out by sending nothing, or a part of a head, or by taking no answer.
    """

    had_answer = False
    _giving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection."""
        self._buffer = bytearray(_READ_BYTES)
        candidates = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection.may_give_way
        ]
        if len(self.connections) >= self._max_connections() - 1 and candidates:
            # beginning with those that had an answer: a client that sends requests without a pause is never idle for
            # long
            first = min(candidates, key=lambda connection: (not connection.had_answer, connection.idle_since))
            self.connections.discard(first)
            first.transport.abort()
        if len(self.connections) >= 2 * self._max_connections():
            self.limit_concurrency = 0  # 503; uvicorn's limit would count answers of connections that gave way, too
        super().connection_made(transport)
        self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self._patience.cancel()
        self._cease_to_give()
        super().connection_lost(exc)

    def get_buffer(self, _sizehint: int) -> bytearray:
        """Return the buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were written."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take some bytes."""
        super().data_received(data)
        if not self.is_idle:
            self._patience.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request. Close if others wait, or if the next request came before this answer."""
        if len(self.connections) >= self._max_connections() or self.conn.trailing_data[0]:
            self.transport.close()
        super().on_response_complete()
        self.had_answer = True
        self._patience.cancel()
        self._begin_to_wait()

    def pause_writing(self) -> None:
        """Note that the client takes data more slowly than it is sent."""
        super().pause_writing()
        self._giving = self.loop.call_later(SECONDS_TO_TAKE, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the client has taken almost all data."""
        super().resume_writing()
        self._cease_to_give()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is no HTTP, and count it."""
        if isinstance(self.config, _Config):
            self.config.malformed += 1
        super().send_400_response(msg)

    @property
    def is_idle(self) -> bool:
        """Return whether no request is being answered, and no whole head has arrived."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """Return whether the client must send the rest of a head or body, or the next request, or take the answer."""
        return self.is_idle or self.cycle.more_body or self.flow.write_paused

    def _max_connections(self) -> int:
        return self.config.at_once if isinstance(self.config, _Config) else MOST_CONNECTIONS

    @property
    def may_give_way(self) -> bool:
        """Return whether it may be closed: it waits for its client, who had an answer, or enough time to ask."""
        is_fresh = not self.had_answer and time.monotonic() - self.idle_since < SECONDS_TO_BEGIN
        return self.waits_for_client and not (is_fresh and len(self.connections) < 2 * self._max_connections() - 1)

    def _cease_to_give(self) -> None:
        if self._giving is not None:
            self._giving.cancel()

    def _begin_to_wait(self) -> None:
        self.idle_since = time.monotonic()
        self._patience = self.loop.call_later(SECONDS_FOR_A_HEAD, self._give_up)

    def _give_up(self) -> None:
        if self.is_idle:
            self.transport.abort()


class _Listening(socket.socket):
    """A socket at which more connections can wait than are accepted in a row. asyncio has one number for both."""

    def listen(self, _backlog: int = 0) -> None:
        """Begin to accept connections."""
        super().listen(_WAITING)


class LengthRequired:
    """Guard an app: refuse bodies in chunks (RFC 9112, section 6.3).

    A chunk costs the server more than the client. A proxy may also see another end of a request that has two lengths.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on to the app (ASGI)."""
        app = self._app
        if scope["type"] == "http" and "transfer-encoding" in Headers(scope=scope):
            refusal = "Transfer-Encoding is not accepted: send Content-Length."
            app = PlainTextResponse(refusal, 411, {"connection": "close"})
        await app(scope, receive, send)


class Server:
    """A server of an app. It holds the port from its creation.

    Args:
        host: address of this machine.
        port: 0: any free port.
        app_on: makes the app of the port.
        at_once: most connections at a time.
        lifespan: "on" if the app begins and ends with the server, by ASGI's lifespan protocol.

    Raises:
        Refused: another program has the port, or the address is not this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        app_on: Callable[[int], ASGIApp],
        at_once: int = MOST_CONNECTIONS,
        lifespan: Literal["on", "off"] = "off",
    ) -> None:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = _Listening(family, kind, protocol)  # with a protocol: only then asyncio sends at once
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(place)
            self._socket.listen()  # now, so that the address works before the app runs
        except OSError as error:
            raise Refused(
                f"{host}, port {port}: cannot listen on it ({error.strerror}); choose another port, or port 0"
            ) from None
        self._config = _Config(
            LengthRequired(app_on(self._socket.getsockname()[1])),
            http=Connection,
            log_config=None,
            log_level="error",  # a malformed request causes a warning, so anybody could fill the log
            access_log=False,  # requested addresses contain names of documents, and the first one the token
            server_header=False,
            proxy_headers=False,  # otherwise a client on this machine could pretend any address
            lifespan=lifespan,
            ws="none",
            backlog=_IN_A_ROW,  # asyncio takes as many before it runs anything else
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        self._config.at_once = at_once
        self._server = _FewThreads(self._config)

    @property
    def malformed(self) -> int:
        """Return the number of requests that were no HTTP."""
        return self._config.malformed

    @property
    def port(self) -> int:
        """Return the port on which the app listens."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until an interrupt, which is raised again at the end, or until `end` is called."""
        # answers that are cut off by the end are no fault of the app, but uvicorn prints a traceback for each
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._serves_on)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            log.removeFilter(self._serves_on)
            self._socket.close()

    def _serves_on(self, _record: logging.LogRecord) -> bool:
        return not self._server.should_exit

    def end(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


class Room:
    """Counts the memory of the bodies of all requests of an app. A thousand bodies could take all memory.

    Args:
        max_bytes: most bytes of all bodies together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._held = max_bytes, 0

    def take(self, request: Request, size: int) -> None:
        """Count bytes that a request holds from now on.

        Raises:
            HTTPException: 503, there is no room.
        """
        if self._held + size > self._max_bytes:
            raise HTTPException(503, "Too much data is being sent at the same time: try again.", {"retry-after": "10"})
        self._held += size
        request.state.held = getattr(request.state, "held", 0) + size

    def leave(self, request: Request) -> None:
        """Note that a request no longer holds any bytes."""
        self._held -= getattr(request.state, "held", 0)


async def body_of(request: Request, max_bytes: int, room: Room | None = None) -> bytes:
    """Return a request's body, as it was sent.

    Args:
        request: the request.
        max_bytes: most bytes of the body.
        room: counts the body's bytes. The request must leave it when its body is no longer held.

    Raises:
        HTTPException: 413: it has more than `max_bytes`. 408: it did not arrive within SECONDS_TO_READ. 503: there is
        no
            room.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS_TO_READ):
            async for part in request.stream():
                if room is not None:
                    room.take(request, len(part))
                body += part
                if len(body) > max_bytes:
                    raise HTTPException(413, f"At most {max_bytes:,} bytes are accepted: send less.")
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, "The request was incomplete: send it again.") from None
    return bytes(body)

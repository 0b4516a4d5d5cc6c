"""Apps on a port of this machine, among them the review app for one reviewer."""

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from scanner.errors import Refused
from scanner.evidence.explainer import Explainer
from scanner.results.decided import LONGEST_NAME
from scanner.review.access import Access
from scanner.review.app import app_of
from scanner.review.desk import Desk

OWN = "127.0.0.1"

_SECONDS_TO_END = 5
"""Seconds for requests that are being answered when the app is to end."""

_AT_ONCE = 64
"""Most connections at a time; the app answers 503 to more."""


class Server:
    """An app that listens; the port is taken from when this is made.

    Args:
        host: address of this machine.
        port: 0 for any that is free.
        app_on: makes the app of the port.

    Raises:
        Refused: another program has the port, or the address is not this machine's.
    """

    def __init__(self, host: str, port: int, app_on: Callable[[int], ASGIApp]) -> None:
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(place)
            self._socket.listen()  # connections wait from now on, so that the address works before the app runs
        except OSError as error:
            raise Refused(
                f"{host}, port {port}: cannot be listened on ({error.strerror}); name another, or port 0"
            ) from None
        config = uvicorn.Config(
            app_on(self._socket.getsockname()[1]),
            log_config=None,
            access_log=False,  # requested addresses hold names of documents, and the first one the token
            server_header=False,
            lifespan="off",
            ws="none",
            limit_concurrency=_AT_ONCE,
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        self._server = uvicorn.Server(config)

    @property
    def port(self) -> int:
        """Port on which the app listens."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until an interrupt, which is raised again in the end, or until `end` is called."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def end(self) -> None:
        """Have `run` return, from another thread."""
        self._server.should_exit = True


class ReviewServer(Server):
    """The review app, on 127.0.0.1 alone.

    Args:
        explainer: of the results.
        by: the reviewer.
        port: 0 for any that is free.

    Raises:
        Refused: another program has the port, or the reviewer has no name or one too long.
    """

    def __init__(self, explainer: Explainer, by: str, port: int) -> None:
        if not by.strip() or len(by) > LONGEST_NAME:
            raise Refused(f"--by: a name of 1 to {LONGEST_NAME} characters is asked")
        self.by, app = by, app_of(Desk(explainer, by))

        def guarded(taken: int) -> Access:
            self._access = Access(app, taken)
            return self._access

        super().__init__(OWN, port, guarded)

    @property
    def address(self) -> str:
        """Address with the token; whoever has it can see all flags and decide."""
        return self._access.address

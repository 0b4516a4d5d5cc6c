"""The review app on a port of 127.0.0.1."""

import socket

import uvicorn

from scanner.errors import Refused
from scanner.evidence.explanation import Explainer
from scanner.results.decided import LONGEST_NAME
from scanner.review.access import Access
from scanner.review.app import app_of
from scanner.review.desk import Desk

_SECONDS_TO_END = 5
"""Seconds for requests that are being answered when the app is to end."""


class Server:
    """The app for one reviewer; the port is taken from when this is made.

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
        self.by = by
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen()  # whoever is told the address need not wait for the app
        except OSError as error:
            self._socket.close()
            raise Refused(f"--port {port}: cannot be listened on ({error.strerror}); name another, or 0") from None
        access = Access(app_of(Desk(explainer, by)), self._socket.getsockname()[1])
        self.address = access.address
        config = uvicorn.Config(
            access,
            log_config=None,
            access_log=False,  # addresses hold names of documents, and once the token
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until an interrupt, which is raised again in the end, or until `end` is called."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def end(self) -> None:
        """Have `run` return, from another thread."""
        self._server.should_exit = True

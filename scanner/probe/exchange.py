"""Make one HTTP exchange with a server that may be slow, endless or wrong. The result is a whole answer or a sentence.

It uses the standard library's `http.client`, because brickscan brings no other client. This one follows no redirects,
decompresses nothing and reads no further than allowed. A redirect would send the token to a host that nobody named.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scanner.errors import InternalFault

_PIECE = 1 << 16


class NoAnswer(InternalFault):
    """No whole answer came. The text of the error is a sentence.

    Args:
        sentence: what came instead.
        again: whether another attempt may help.
        lasting: whether the same request would fail on another day too. None: it would if no further attempt helps.
        charged: whether the server may still charge for the request.
        retry_after: seconds that the server asks to wait. None: it names none.
    """

    def __init__(
        self,
        sentence: str,
        *,
        again: bool,
        charged: bool,
        lasting: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(sentence)
        self.lasting = not again if lasting is None else lasting
        self.retry_after = retry_after
        self.again = again
        self.charged = charged


class HttpAnswer(NamedTuple):
    """A whole answer, whatever its status.

    retry_after: seconds that the server asks to wait. None: it names none.
    """

    status: int
    body: bytes
    retry_after: float | None


class _Call:
    """An exchange that other threads can end. It keeps a socket of its own, because `http.client` drops its early."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        self.connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        self.path, self._timeout_s = parts.path, timeout_s
        self.sent = self.ended = False
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None

    def connect(self) -> None:
        """Connect. `end` wakes a thread that waits for the server to accept, or to agree on TLS."""
        plain = self._reached()
        try:
            self.connection.sock = self._with_tls(plain) if self._tls else plain
        except BaseException:
            plain.close()
            raise

    def _reached(self) -> socket.socket:
        """Return a connection to the first of the server's addresses that accepts one."""
        failure = OSError("the name has no address")
        host, port = self.connection.host, self.connection.port
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            plain = socket.socket(family, kind, protocol)
            try:
                self._socket = plain.dup()  # `end` shuts it down: TLS takes the other one over
                if self.ended:  # `end` was called before there was a socket to shut down
                    raise TimeoutError
                plain.settimeout(self._timeout_s)
                plain.connect(address)
            except OSError as error:
                plain.close()
                failure = error
                if self._socket is not None:
                    self._socket.close()
                if self.ended:
                    break
            else:
                return plain
        raise failure

    def _with_tls(self, plain: socket.socket) -> socket.socket:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context.wrap_socket(plain, server_hostname=self.connection.host)

    def send(self, body: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a request. Return the answer as soon as its head has arrived."""
        self.sent = True
        self.connection.request("POST", self.path, body, headers)
        self._response = self.connection.getresponse()
        return self._response

    def end(self) -> None:
        """Wake a thread that waits for the answer. Closing the connection would not wake it."""
        self.ended = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release connection and socket."""
        if self._response is not None:
            self._response.close()
        self.connection.close()
        if self._socket is not None:
            self._socket.close()


class Line:
    """Send requests. When the probe is interrupted, all requests under way can be ended at once."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """End all exchanges, and allow no new ones."""
        with self._lock:
            self._closed = True
            for call in self._calls:
                call.end()

    @contextlib.contextmanager
    def _call(self, url: str, timeout_s: float) -> Iterator[_Call]:
        """Begin an exchange that ends after `timeout_s` seconds in any case."""
        call = _Call(url, timeout_s)
        with self._lock:
            if self._closed:
                raise NoAnswer("the probe was stopped", again=True, charged=False)
            self._calls.add(call)
        timer = threading.Timer(timeout_s, call.end)
        timer.daemon = True
        timer.start()
        try:
            yield call
        finally:
            timer.cancel()
            with self._lock:
                self._calls.discard(call)
            call.close()

    def post(
        self,
        url: str,
        body: Mapping[str, Any],
        token: str | None,
        *,
        timeout_s: float,
        most_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> HttpAnswer:
        """Send JSON and return the whole answer.

        Args:
            url: http or https.
            body: sent as JSON.
            token: sent as `Authorization: Bearer`. None: no token is sent.
            timeout_s: seconds until the last byte.
            most_bytes: most bytes of the answer.
            clock: seconds since 1970, for a date in Retry-After.

        Raises:
            NoAnswer: there is no connection, or the answer is late, breaks off or is too long.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        with self._call(url, timeout_s) as call:
            try:
                call.connect()
                response = call.send(json.dumps(body).encode(), headers)
                return HttpAnswer(
                    response.status,
                    _whole(response, most_bytes, call),
                    _retry_after(response.getheader("Retry-After"), clock()),
                )
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
                # a connection that is shut down under TLS raises any of these errors
                if call.ended or isinstance(error, TimeoutError):
                    sentence = f"no complete answer arrived within {timeout_s:g} s"
                    raise NoAnswer(sentence, again=True, charged=call.sent) from None
                if not isinstance(error, OSError | http.client.HTTPException):
                    raise
                # the sentence has only the kind of the error: its text may quote what was sent
                raise NoAnswer(_why(error, call.sent), again=True, charged=call.sent) from None


def _whole(response: http.client.HTTPResponse, most_bytes: int, call: _Call) -> bytes:
    """Read a whole answer. It takes no longer than the call, which a timer ends."""
    pieces, size = list[bytes](), 0
    while piece := response.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            sentence = f"the answer has more than {most_bytes:,} bytes and was cut off"
            raise NoAnswer(sentence, again=False, charged=True)
    if call.ended:
        raise TimeoutError
    if response.length:  # bytes that the server announced and did not send
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _why(error: Exception, sent: bool) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed; should the URL be http:// instead of https://?"
    if isinstance(error, socket.gaierror):
        return "the server's name is not known; is the URL right?"
    if not sent:
        return f"no connection to the server ({getattr(error, 'strerror', None) or type(error).__name__})"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return "the answer is not HTTP"
    return f"the connection closed before the answer was complete ({type(error).__name__})"


def _retry_after(header: str | None, now: float) -> float | None:
    """Read seconds or a date. None: there is no header, or it is neither."""
    if header is None:
        return None
    try:
        return max(0.0, float(header)) if header.strip().isdigit() else parsedate_to_datetime(header).timestamp() - now
    except (ValueError, OverflowError, TypeError):
        return None

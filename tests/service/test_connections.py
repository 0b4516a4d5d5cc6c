"""Connections that say nothing, or something odd: they keep nobody out, and fill no log."""

import asyncio
import logging
import random
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Event, Semaphore

import pytest
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from scanner.service import serving
from scanner.service.serving import Connection, Server
from tests.support.detecting import until
from tests.support.reviewing import running

LARGE = 2**23
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture
def server() -> Iterator[Server]:
    app = Server("127.0.0.1", 0, lambda _port: PlainTextResponse("well"))
    with running(app):
        yield app


@pytest.fixture
def made(monkeypatch) -> list[asyncio.Transport]:
    """Transports of the connections that a server takes, oldest first."""
    found, take = list[asyncio.Transport](), Connection.connection_made

    def note(connection: Connection, transport: asyncio.Transport) -> None:
        found.append(transport)
        take(connection, transport)

    monkeypatch.setattr(Connection, "connection_made", note)
    return found


def connected(server: Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    if sent:
        connection.sendall(sent)
    return connection


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    found = b""
    while more := connection.recv(4096):
        found += more
    return found


def status(server: Server, sent: bytes) -> int:
    with connected(server, sent) as connection:
        return int(answer(connection).split()[1])


@pytest.mark.parametrize("begun", [b"", b"GET / HT", HEAD])
def test_idle_connections_give_way(server, begun):
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(server, begun)) for _ in range(150)]
        for _ in range(3):
            assert status(server, HEAD + b"Connection: close\r\n\r\n") == 200
        with suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""  # the oldest ended


def test_answers_on_a_kept_connection_wait_for_no_acknowledgement(made, server):
    """The body of an answer waited 40 ms until the client had acknowledged its head, from the second answer on."""
    with connected(server, HEAD + b"\r\n") as connection:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert made[0].get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_first_request_gives_way_after_connections_that_had_an_answer(server):
    """Else who sends one request behind the other on kept connections would keep new ones out."""
    with ExitStack() as stack:
        first = stack.enter_context(connected(server, HEAD))
        for _ in range(100):
            kept = stack.enter_context(connected(server, HEAD + b"\r\n"))
            assert kept.recv(15) == b"HTTP/1.1 200 OK"
        first.sendall(b"Connection: close\r\n\r\n")
        assert answer(first).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.seconds
def test_requests_in_a_row_keep_no_honest_request_out(monkeypatch, made):
    """Connections with requests in a row never wait for their client, so only those who just came would give way.

    An honest client sends its request when hundreds of connections have come after its own: that is fast enough by the
    times below, however busy the machine is.
    """
    monkeypatch.setattr(serving, "SECONDS_TO_BEGIN", 300.0)
    monkeypatch.setattr(serving, "SECONDS_FOR_A_HEAD", 300.0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.02)
        await PlainTextResponse("well")(scope, receive, send)

    async def sent(port: int, newer: int, requests: bytes) -> bytes:
        """What comes until the connection ends; the client sends when so many newer connections have come."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        enough = len(made) + newer
        try:
            while len(made) < enough:
                await asyncio.sleep(0.005)
            writer.write(requests)
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.transport.abort()

    async def flood(port: int) -> None:
        while True:
            await sent(port, 0, 50 * (HEAD + b"\r\n"))

    async def answers(port: int) -> list[bytes]:
        honest = HEAD + b"Connection: close\r\n\r\n"
        async with asyncio.TaskGroup() as group:
            floods = [group.create_task(flood(port)) for _ in range(100)]
            found = await asyncio.gather(*(sent(port, 400, honest) for _ in range(20)))
            for one in floods:
                one.cancel()
        return [one[9:12] for one in found]

    flooded = Server("127.0.0.1", 0, lambda _port: app)
    with running(flooded):
        assert asyncio.run(answers(flooded.port)) == [b"200"] * 20


def test_a_burst_of_connections_opens_no_more_files_than_a_process_may(caplog):
    """They come while the app is busy: asyncio would take all at once, and log an error for each beyond the limit."""
    busy = Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/busy":
            busy.set()
            time.sleep(0.2)  # not asyncio's, so that nothing else runs
        await PlainTextResponse("well")(scope, receive, send)

    burst = Server("127.0.0.1", 0, lambda _port: app)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running(burst), ExitStack() as stack:
        stack.enter_context(connected(burst, HEAD.replace(b"/", b"/busy", 1) + b"\r\n"))
        assert busy.wait(30)
        waiting = [stack.enter_context(socket.socket()) for _ in range(600)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(one.fileno() for one in waiting) + 240, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", burst.port))
        assert status(burst, HEAD + b"Connection: close\r\n\r\n") == 200
    assert not caplog.records


def test_bodies_that_never_come_keep_nobody_out():
    """They give way as idle connections do, though a request of theirs is being answered."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await Request(scope, receive).body()
            await PlainTextResponse("well")(scope, receive, send)

    app = Server("127.0.0.1", 0, lambda _port: read)
    with running(app), ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(app, HEAD + b"Content-Length: 10\r\n\r\nhalf"))
        assert [status(app, HEAD + b"Connection: close\r\n\r\n") for _ in range(20)] == [200] * 20


@pytest.fixture
def large() -> Iterator[Server]:
    """An app for few connections whose answers fit no sockets' buffers."""
    app = Server("127.0.0.1", 0, lambda _port: PlainTextResponse("x" * LARGE), at_once=8)
    with running(app):
        yield app


def untaken(server: Server) -> socket.socket:
    """A connection that takes the first byte of an answer, and no other."""
    connection = connected(server, HEAD + b"\r\n")
    assert connection.recv(1) == b"H"
    return connection


@pytest.mark.seconds
def test_answers_that_nobody_takes_keep_nobody_out(large):
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(untaken(large))
        assert [status(large, HEAD + b"Connection: close\r\n\r\n") for _ in range(3)] == [200] * 3


def test_an_answer_that_nobody_takes_ends(monkeypatch, made, large):
    monkeypatch.setattr(serving, "SECONDS_TO_TAKE", 0.3)
    with untaken(large) as connection:
        until(made[0].is_closing)
        found = 0
        with suppress(ConnectionResetError):
            while more := len(connection.recv(LARGE)):
                found += more
        assert found < LARGE


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT"])
def test_a_connection_without_a_whole_head_ends(monkeypatch, server, begun):
    """Also one that has had an answer, and then sends a part of a head."""
    monkeypatch.setattr(serving, "SECONDS_FOR_A_HEAD", 0.3)
    with connected(server, begun) as connection:
        began = time.monotonic()
        with suppress(ConnectionResetError):
            answer(connection)
        assert time.monotonic() - began < 20


def test_malformed_requests_are_counted_and_not_logged(server, caplog):
    with caplog.at_level(logging.DEBUG):
        assert [status(server, b"\x00\x01 what\r\n\r\n") for _ in range(5)] == [400] * 5
    assert server.malformed == 5
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_a_body_in_chunks_is_refused_before_all_are_read(server):
    """20 connections with 100,000 chunks of a byte each had everybody wait for 40 seconds."""
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert status(server, chunked + b"5\r\nhello\r\n0\r\n\r\n") == 411
    began = time.thread_time(), time.process_time()
    for _ in range(20):
        with connected(server, chunked) as connection, suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"1\r\na\r\n" * 500)
    assert status(server, HEAD + b"Connection: close\r\n\r\n") == 200
    others = time.thread_time() - began[0]
    assert time.process_time() - began[1] - others < 1, "CPU of the server: 2 s where it reads 256 KiB at a time"


def test_a_request_of_two_lengths_is_refused(server):
    both = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert status(server, both) == 411


@pytest.mark.parametrize("size", [1, 4_096, 4_097, 3_000_000])
def test_a_body_is_read_whole(size):
    """It comes in parts of what is read of a connection at a time."""

    async def repeat(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(await Request(scope, receive).body())(scope, receive, send)

    app, body = Server("127.0.0.1", 0, lambda _port: repeat), random.Random(0).randbytes(size)
    with running(app):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
        with connected(app, head + body) as connection:
            assert answer(connection).endswith(b"\r\n\r\n" + body)


def test_of_requests_that_are_sent_together_the_first_is_answered(server):
    """468 kB of them had everybody wait for 80 seconds."""
    found = b""
    with connected(server, 10_000 * (HEAD + b"\r\n")) as connection, suppress(ConnectionError):
        while more := connection.recv(4096):
            found += more
    assert found.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.seconds
def test_an_answer_that_the_end_cuts_off_leaves_no_traceback(monkeypatch, caplog):
    """Ctrl-C while an answer is on its way: uvicorn has an error for each. What fails before the end is logged."""
    begun = Event()

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        if scope["path"] == "/fails":
            raise ZeroDivisionError
        begun.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(serving, "_SECONDS_TO_END", 1)
    server = Server("127.0.0.1", 0, lambda _port: app)
    with running(server):
        assert status(server, b"GET /fails HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") == 500
        (failed,) = caplog.records
        assert failed.exc_info[0] is ZeroDivisionError
        connection = connected(server, HEAD + b"\r\n")
        assert begun.wait(30)
    connection.close()
    assert caplog.records == [failed]


@pytest.mark.seconds
def test_the_end_waits_for_few_of_the_requests_of_a_flood(monkeypatch):
    """Each that is worked on is waited for, so that Ctrl-C took minutes after a flood of pages."""
    monkeypatch.setattr(serving, "_SECONDS_TO_END", 0.1)
    begun, go_on = Semaphore(0), Event()

    def work() -> None:
        begun.release()
        go_on.wait(60)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await run_in_threadpool(work)
        await PlainTextResponse("well")(scope, receive, send)

    flooded = Server("127.0.0.1", 0, lambda _port: app)
    with running(flooded), ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connected(flooded, HEAD + b"\r\n"))
        working = 0
        while begun.acquire(timeout=5 if working < 4 else 1):
            working += 1
        flooded.end()
        go_on.set()
    assert working == 4

"""Ask a server: at a steady pace, several requests at once, again after a failure, and never beyond a price."""

import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from scanner.errors import ScanFailed, SecretError
from scanner.probe.classes import Request
from scanner.probe.config import PriceConfig, ProbeConfig, ServerConfig
from scanner.probe.exchange import Line, NoAnswer
from scanner.probe.kept import KeptAnswers, KeptReply
from scanner.probe.replies import Reply, failed, in_an_error, read_reply
from scanner.registry.secrets import read_private_file, secret_path

FAILURES_IN_A_ROW = 10
"""Number of requests in a row without any answer, after all attempts. Then a probe gives up: no server is there."""

_LONGEST_PAUSE = 600.0
_SIGN_SECONDS = 5.0

Watch = Callable[[int, int, float], object]
"""Function that is told the number of finished requests, of all requests, and their cost."""


class Tokens:
    """Tokens that are sent to a server. No repr and no message shows them.

    Raises:
        SecretError: a reference leads to no token. The message names only the place.
    """

    def __init__(self, config: ProbeConfig, base: Path) -> None:
        references = {None: config.server.token} | {user.id: user.token for user in config.users}
        self._tokens = {user: read_token(found, base) for user, found in references.items() if found is not None}

    def __repr__(self) -> str:
        return f"Tokens({len(self._tokens)})"

    def of(self, request: Request) -> str | None:
        """Return the token of a request: its user's token, or else the server's. None: no token is sent."""
        common = self._tokens.get(None)
        return common if request.user is None else self._tokens.get(request.user.id, common)

    @property
    def all(self) -> list[str]:
        """Return all tokens, longest first."""
        return sorted(set(self._tokens.values()), key=len, reverse=True)


def read_token(reference: str, base: Path) -> str:
    """Read a token by its reference: `env:NAME`, or `file:PATH` of a file that only its owner can change.

    Raises:
        SecretError: the place does not exist or holds no token. The message names only the place.
    """
    path = secret_path(reference, base)
    if path is not None:
        raw, where = read_private_file(path), f"token file {path}"
    else:
        name = reference.removeprefix("env:")
        raw, where = os.environb.get(os.fsencode(name), b""), f"environment variable {name}"
    token = raw.strip()
    if not token or any(not 33 <= byte <= 126 for byte in token):
        what = "contains a character that a token cannot have" if token else "is empty or not set"
        raise SecretError(f"{where}: {what}; it should hold the server's token, in ASCII and on one line")
    return token.decode("ascii")


@dataclass(frozen=True)
class Asked:
    """The end of a round of requests.

    Args:
        sent: number of requests that were sent in this round.
        not_sent: number of requests that the price forbade.
        cost: of all answers, in the currency of probe.toml. 0 without a price.
    """

    sent: int
    not_sent: int
    cost: float


def most_cost(requests: Iterable[Request], price: PriceConfig | None) -> float:
    """Return the most that requests can cost. 0 without a price."""
    return sum(_cost(request.most_tokens_in, request.most_tokens_out, price) for request in requests)


def _cost(tokens_in: float, tokens_out: float, price: PriceConfig | None) -> float:
    return 0.0 if price is None else (tokens_in * price.a_million_in + tokens_out * price.a_million_out) / 1e6


class _Pace:
    """Release requests one after another at a rate a minute, and none while the server asks for a pause."""

    def __init__(self, a_minute: float, stop: threading.Event) -> None:
        self._step, self._stop = 60 / a_minute, stop
        self._next = time.monotonic()
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for a turn."""
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + self._step
        self._stop.wait(max(0.0, turn - time.monotonic()))

    def pause(self, seconds: float) -> None:
        """Release no request for some seconds."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


class _Purse:
    """The money that may still be spent. The most that a request can cost is set aside before it is sent."""

    def __init__(self, price: PriceConfig | None, spent: float) -> None:
        self._price, self.spent = price, spent
        self._set_aside, self._under_way = 0.0, 0
        self._changed = threading.Condition()

    def set_aside(self, request: Request) -> bool:
        """Set aside the most that one attempt can cost. Return False if the rest is too small.

        If the price of requests under way decides, it waits until they have ended.
        """
        most, limit = self.most_of(request), None if self._price is None else self._price.most
        with self._changed:
            while limit is not None and self.spent + self._set_aside + most > limit:
                if not self._under_way:
                    return False
                self._changed.wait()
            self._set_aside, self._under_way = self._set_aside + most, self._under_way + 1
            return True

    def settle(self, request: Request, cost: float) -> None:
        """Release the amount set aside for a request, and add its real cost."""
        with self._changed:
            self._under_way -= 1
            # back to exactly 0 when no request is under way, because sums of floats drift
            self._set_aside = self._set_aside - self.most_of(request) if self._under_way else 0.0
            self.spent += cost
            self._changed.notify_all()

    def most_of(self, request: Request) -> float:
        """Return the most that one attempt can cost."""
        return most_cost([request], self._price)

    def cost_of(self, request: Request, reply: Reply) -> float:
        """Return the cost of a reply, by the server's counts. Without them, a token counts as one byte of the texts.

        No token has fewer bytes, so the cost is never too low.
        """
        texts = sum(len((answer.text or "").encode()) for answer in reply.answers)
        out = min(texts + 1, request.most_tokens_out) if reply.tokens_out is None else reply.tokens_out
        into = request.most_tokens_in if reply.tokens_in is None else reply.tokens_in
        return _cost(into, out, self._price)


def ask(
    config: ProbeConfig,
    requests: Sequence[Request],
    tokens: Tokens,
    kept: KeptAnswers,
    watch: Watch,
    first_pause_s: float = 1.0,
) -> Asked:
    """Send all requests that have no answer yet. Each answer is kept as it comes.

    Args:
        config: the server, its pace and its price.
        requests: all requests of the probe.
        tokens: tokens to send with them.
        kept: file with earlier answers, which gets the new ones.
        watch: called after each answer, and every few seconds. It may raise an error to end the probe.
        first_pause_s: seconds before a second attempt, if the server asks for none. It doubles with each attempt.

    Raises:
        ScanFailed: the server is not there. Its earlier answers are kept.
    """
    pending = deque(kept.open_requests(requests))
    done, total = len(requests) - len(pending), len(requests)
    purse = _Purse(config.price, kept.cost)
    asker = _Asker(config.server, tokens, purse, pending, kept, first_pause_s)
    watch(done, total, purse.spent)
    workers = [threading.Thread(target=asker.work, daemon=True) for _ in range(config.server.requests_at_once)]
    sent = failures = 0
    try:
        for worker in workers:
            worker.start()
        working = len(workers)
        while working:
            try:
                found = asker.results.get(timeout=_SIGN_SECONDS)
            except queue.Empty:  # tell the watcher anyway, so that it can distinguish a slow server from one that hangs
                watch(done + sent, total, purse.spent)
                continue
            if found is None:
                working -= 1
                continue
            if isinstance(found, BaseException):
                raise found
            sent += 1
            watch(done + sent, total, purse.spent)
            failures = 0 if found.final else failures + 1
            if failures >= FAILURES_IN_A_ROW:
                why = in_an_error(found.reply.answers[0].error or "")
                raise ScanFailed(
                    f"{config.server.url}: {failures} requests in a row got no answer, the last one because: {why}; "
                    "fix the cause and run this again: earlier answers are kept"
                )
    finally:
        asker.end()
        for worker in workers:
            worker.join()
    return Asked(sent, len(asker.too_dear), purse.spent)


class _Asker:
    """The state that the asking threads share.

    results: a result for each request, an exception for a failure of ours, and None for each thread that has ended.
    """

    def __init__(
        self,
        server: ServerConfig,
        tokens: Tokens,
        purse: _Purse,
        pending: deque[Request],
        kept: KeptAnswers,
        first_pause_s: float,
    ) -> None:
        self._first_pause_s = first_pause_s
        self._kept, self._keeping = kept, threading.Lock()
        self._server, self._tokens, self._purse, self._pending = server, tokens, purse, pending
        self._stop, self._line = threading.Event(), Line()
        self._pace = _Pace(server.requests_a_minute, self._stop)
        self.results = queue.SimpleQueue[KeptReply | BaseException | None]()
        self.too_dear = list[Request]()

    def end(self) -> None:
        """Send no more requests, and wake threads that wait for an answer."""
        self._stop.set()
        self._line.close()

    def work(self) -> None:
        """Send requests until there are none left."""
        try:
            while not self._stop.is_set():
                try:
                    request = self._pending.popleft()
                except IndexError:
                    break
                found = self._ask(request)
                if found is not None:
                    with self._keeping:  # write it to disk before the next request and before the result is reported
                        self._kept.add(found)
                    self.results.put(found)
        except BaseException as failure:
            self.results.put(failure)
        finally:
            self.results.put(None)

    def _ask(self, request: Request) -> KeptReply | None:
        """Send a request until it is answered or no attempt is left. None: the price forbids it, or the probe ended.

        If the probe ended after attempts that may be charged, their cost is returned all the same.
        """
        asked_at, sent, cost, error = (
            datetime.now(UTC).isoformat(timespec="seconds"),
            0,
            0.0,
            NoAnswer("", again=True, charged=False),
        )
        while sent < self._server.attempts:
            self._pace.wait()
            if self._stop.is_set():
                break
            if not self._purse.set_aside(request):
                if sent:
                    break
                self.too_dear.append(request)
                return None
            sent, of_attempt = sent + 1, 0.0
            try:
                reply = self._reply(request)
                of_attempt = self._purse.cost_of(request, reply)
                return KeptReply(request.request_id, request.digest, asked_at, sent, cost + of_attempt, True, reply)
            except NoAnswer as failure:
                error = failure
                of_attempt = self._purse.most_of(request) if failure.charged else 0.0
                cost += of_attempt
            finally:
                self._purse.settle(request, of_attempt)
            if self._stop.is_set() or not error.again:
                break
            if sent < self._server.attempts:
                self._wait(error, sent)
        if self._stop.is_set() and not cost:
            return None
        reply = failed(request, str(error))
        return KeptReply(request.request_id, request.digest, asked_at, sent, cost, error.lasting, reply)

    def _wait(self, error: NoAnswer, attempt: int) -> None:
        """Wait before another attempt.

        The pause doubles each time. If the server asks for a longer one, all threads wait.
        """
        pause = self._first_pause_s * 2 ** (attempt - 1) * random.uniform(1, 1.5)  # noqa: S311
        if error.retry_after is not None and error.retry_after > pause:
            self._pace.pause(min(error.retry_after, _LONGEST_PAUSE))
        else:
            self._stop.wait(min(pause, _LONGEST_PAUSE))

    def _reply(self, request: Request) -> Reply:
        """Send a request once. Raises NoAnswer."""
        server = self._server
        answer = self._line.post(
            request.url,
            request.body,
            self._tokens.of(request),
            timeout_s=server.timeout_s,
            most_bytes=server.most_answer_bytes,
        )
        return read_reply(request, answer, self._tokens.all)

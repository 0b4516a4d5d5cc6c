"""The app that takes signed webhooks of ROOST Coop: one address, which answers with the outcome of a delivery.

Whoever can reach the address can send to it; a body that Coop did not sign costs one verification and is counted. Coop
repeats a delivery that got no answer or a 5xx, and shows a 4xx as failed.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scanner.detection.scan_plan import read_config, results_of
from scanner.errors import BrickscanError, Refused
from scanner.printable import printable
from scanner.registry.secrets import read_public_key
from scanner.review.app import body_of
from scanner.review.inbox import Inbox, NotTaken, Outcome
from scanner.review.serving import Server
from scanner.review.signature import Signatures

PATH = "/coop"

MOST_BYTES = 256 * 1024
"""Most bytes of a body: Coop's have ids, names of policies and a note."""

_STATUS = {
    Outcome.RECORDED: 200,
    Outcome.BEFORE: 200,
    Outcome.NOT_SIGNED: 401,
    Outcome.TOO_LARGE: 413,
    Outcome.MALFORMED: 400,
    Outcome.NO_DECISION: 422,
    Outcome.UNKNOWN_ITEM: 404,
    Outcome.CHANGED: 409,
    Outcome.OVERTAKEN: 409,
}


class Webhook:
    """Takes deliveries, answers them, and counts their outcomes.

    Args:
        inbox: takes signed bodies.
        signatures: tells signed bodies from others.
        tell: takes a line about a delivery; lines about unsigned bodies grow rarer with their number.
    """

    def __init__(self, inbox: Inbox, signatures: Signatures, tell: Callable[[str], None]) -> None:
        self._inbox, self._signatures, self._tell = inbox, signatures, tell
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.app = Starlette(routes=[Route(PATH, self._coop, methods=["POST"])])
        self.app.router.redirect_slashes = False  # it would send a client wherever the Host header says

    def summary(self) -> str:
        """How many deliveries came to what, in a line."""
        with self._counting:
            return ", ".join(f"{count:,} {name}" for name, count in sorted(self._counts.items())) or "nothing came"

    async def _coop(self, request: Request) -> Response:
        try:
            body = await body_of(request, MOST_BYTES)
        except HTTPException as refused:
            if refused.status_code != _STATUS[Outcome.TOO_LARGE]:
                return Response(status_code=refused.status_code)
            return self._answer(Outcome.TOO_LARGE, f"a body has {MOST_BYTES:,} bytes at most", signed=False)
        signatures = request.headers.getlist("coop-signature")
        if len(signatures) != 1 or not self._signatures.holds(signatures[0], body):
            missing = "Coop-Signature: no signature of this body by the key that [export.coop.webhook] names"
            return self._answer(Outcome.NOT_SIGNED, missing, signed=False)
        try:
            outcome, row = await run_in_threadpool(self._inbox.take, body)
        except NotTaken as refused:
            return self._answer(refused.outcome, str(refused))
        except BrickscanError as error:
            return self._say("failed", str(error), 503, answer="cannot be recorded now; send it again later")
        return self._answer(outcome, _decided(row))

    def _answer(self, outcome: Outcome, message: str, *, signed: bool = True) -> Response:
        return self._say(outcome, message, _STATUS[outcome], signed=signed)

    def _say(self, outcome: str, message: str, status: int, *, signed: bool = True, answer: str = "") -> Response:
        with self._counting:
            self._counts[outcome] += 1
            count = self._counts[outcome]
        if signed or count & (count - 1) == 0:  # else anybody could fill a log with unsigned bodies
            self._tell(f"{outcome}: {message}" if signed else f"{outcome} ({count:,} so far): {message}")
        return JSONResponse({"outcome": outcome, "said": answer or message}, status)


def _decided(row: Mapping[str, Any]) -> str:
    document = printable(row["doc_id"] or f"{row['path']}:{row['row']}", 60)
    return f"{document} is {row['decision']}, by {printable(row['decided_by'], 60)}"


class WebhookServer(Server):
    """The app that takes webhooks of ROOST Coop.

    Args:
        config_file: of the scan; has a section [export.coop.webhook].
        host: address of this machine.
        port: 0 for any that is free.
        tell: takes a line about a delivery.

    Raises:
        Refused: there is no such section, its key is none, or the port cannot be had.
    """

    def __init__(self, config_file: Path, host: str, port: int, tell: Callable[[str], None]) -> None:
        config = read_config(config_file)
        coop = config.export.coop if config.export else None
        if coop is None or coop.webhook is None:
            raise Refused(f"{config_file}: has no section [export.coop.webhook]; docs/guides/export.md shows one")
        pem = read_public_key(coop.webhook.key, config_file.absolute().parent)
        inbox = Inbox(results_of(config, config_file), config.false_positive_rate, coop, coop.webhook)
        self._webhook = Webhook(inbox, Signatures(pem, coop.webhook.key), tell)
        super().__init__(host, port, lambda _port: self._webhook.app)
        self.address = f"http://{host}:{self.port}{PATH}"

    def summary(self) -> str:
        """How many deliveries came to what, in a line."""
        odd = f"; {self.malformed:,} requests were no HTTP" if self.malformed else ""
        return self._webhook.summary() + odd

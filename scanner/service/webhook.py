"""Decisions made in ROOST Coop: signed posts, as rows of `decisions`, by an app at one address.

Signatures of ROOST Coop's posts: RSASSA-PKCS1-v1_5 with SHA-256 over the body, byte for byte.

Source: docs/development/api-auth.md of roostorg/coop, 2026. Nothing here is secret: a verifier holds the public key.

Coop's bodies carry neither a time nor a number, and its signature covers the body alone. So the body's digest is the
decision's id. Somebody who kept a body and sends it again changes nothing, since its row exists. A moderator who
decides otherwise, and then the first way again in the same words, also sends the first body again. Nobody can tell the
two cases apart, so the body is refused with a message.

Whoever can reach the address can send to it; a body that Coop did not sign costs one verification and is counted. Coop
repeats a delivery that got no answer or a 5xx, and shows a 4xx as failed.
"""

import base64
import binascii
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import polars as pl
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scanner.errors import BrickscanError, Refused
from scanner.exports import sent_records
from scanner.printable import printable
from scanner.registry.secrets import read_public_key
from scanner.results.decision_log import (
    NewDecision,
    decide,
    on_documents,
    recorded_decision,
)
from scanner.results.queries import ask
from scanner.scan_plan import read_config, results_of
from scanner.service.desk import ChangedText, DocumentPlace, flag_as_shown
from scanner.service.serving import Server, body_of
from schemas.config import CoopConfig, CoopWebhookConfig
from schemas.verdict import LONGEST_NAME, LONGEST_NOTE, CoopCallback

LEAST_BITS = 2048
"""Fewest bits of a key, as many as Coop's keys have."""


class Signatures:
    """Tells signed bodies from others.

    Args:
        pem: the public key.
        where: names the key in messages.

    Raises:
        Refused: the text is not an RSA public key of LEAST_BITS.
    """

    def __init__(self, pem: bytes, where: str) -> None:
        advice = (
            "copy Coop's webhook signature verification key (Settings, API Keys), which begins with BEGIN PUBLIC KEY"
        )
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise Refused(f"{where}: holds no public key as PEM; {advice}") from None
        if not isinstance(key, RSAPublicKey) or key.key_size < LEAST_BITS:
            raise Refused(f"{where}: holds no RSA key of {LEAST_BITS} bits or more; {advice}")
        self._key = key

    def holds(self, signature: str, body: bytes) -> bool:
        """Whether the holder of the private key signed a body; signature: base64, as in the request's header."""
        try:
            self._key.verify(base64.b64decode(signature, validate=True), body, PKCS1v15(), SHA256())
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


COOP_SOURCE = "webhook:coop"
"""Value of `source` in the rows."""


class DeliveryOutcome(StrEnum):
    """Outcomes of a delivery."""

    RECORDED = "recorded"
    BEFORE = "recorded before"  # the same body came before
    NOT_SIGNED = "not signed"  # not signed by Coop with the configured key
    TOO_LARGE = "too large"
    MALFORMED = "malformed"  # signed, but not an action as in Coop's documentation
    NO_DECISION = "no decision"  # the action is configured for no decision, or no person took it
    UNKNOWN_ITEM = "unknown item"  # nothing of that id was sent to Coop, or its flag is gone
    CHANGED = "text changed"
    OVERTAKEN = "overtaken"  # it came before, and its decider has decided otherwise since


class NotTaken(Refused):
    """A delivery that is no decision on a flag; nothing was recorded."""

    def __init__(self, outcome: DeliveryOutcome, sentence: str) -> None:
        super().__init__(sentence)
        self.outcome = outcome


class Inbox:
    """Records what Coop's moderators decided on flags that were sent to it. May be called from several threads.

    Args:
        results: folder or URI.
        rate: the false-positive rate above which no flag is shown.
        coop: the Coop to which flags are sent.
        webhook: which actions are decisions.
    """

    def __init__(self, results: str, rate: float, coop: CoopConfig, webhook: CoopWebhookConfig) -> None:
        self._results, self._rate, self._coop, self._actions = results, rate, coop, webhook.actions
        self._recording = threading.Lock()  # else of one body that comes twice at once, both are the first

    def take(self, body: bytes) -> tuple[DeliveryOutcome, Mapping[str, Any]]:
        """Record the decision of a signed body. Returns `recorded` or `recorded before`, and its row.

        The row is on the disk, and in the table, when this returns.

        Raises:
            NotTaken: it is no decision on a flag that was sent.
            ScanFailed: the table cannot be read or written.
        """
        callback = _read(body)
        made = self._made(body, callback)
        with self._recording:
            earlier = recorded_decision(self._results, made.decision_id)
            if earlier is None:
                return DeliveryOutcome.RECORDED, decide(self._results, self._flag(callback.item.id), made)
        self._refuse_overtaken(earlier)
        return DeliveryOutcome.BEFORE, earlier

    def _made(self, body: bytes, callback: CoopCallback) -> NewDecision:
        decision = self._actions.get(callback.action.id)
        if decision is None or callback.item.type_id != self._coop.item_type:
            raise NotTaken(
                DeliveryOutcome.NO_DECISION,
                f"action {callback.action.id[:60]!r} on an item of type {callback.item.type_id[:60]!r} is no decision "
                "on a flag: [export.coop] names item_type, and [export.coop.webhook] the actions that are decisions",
            )
        by = (callback.actor_email or "").strip()
        if not by:
            raise NotTaken(DeliveryOutcome.NO_DECISION, "no moderator took this action: decisions are those of people")
        if len(by) > LONGEST_NAME:
            raise NotTaken(DeliveryOutcome.MALFORMED, f"actorEmail: {len(by):,} characters; {LONGEST_NAME} are allowed")
        note = (callback.actor_note or "").strip()
        if len(note) > LONGEST_NOTE:
            note = note[: LONGEST_NOTE - 1] + "…"
        identity = hashlib.sha256(f"{COOP_SOURCE}\n".encode() + body).hexdigest()[:32]
        return NewDecision(identity, by, COOP_SOURCE, decision, note)

    def _flag(self, item_id: str) -> Mapping[str, Any]:
        """The flag that was sent under an id, as its text was then."""
        same = (pl.col("receiver") == "coop") & (pl.col("item_id") == item_id)
        rows = ask(self._results, lambda: sent_records(self._results).filter(same).collect())
        if not len(rows):
            raise NotTaken(
                DeliveryOutcome.UNKNOWN_ITEM,
                f"item {item_id[:60]!r}: `brickscan export --format coop --send` sent no such item from these results",
            )
        report = rows.row(-1, named=True)
        try:
            return flag_as_shown(
                self._results, self._rate, DocumentPlace(report["path"], report["row"]), report["text_sha256"].hex()
            )
        except ChangedText as changed:
            raise NotTaken(DeliveryOutcome.CHANGED, str(changed)) from None
        except Refused as refused:
            raise NotTaken(DeliveryOutcome.UNKNOWN_ITEM, str(refused)) from None

    def _refuse_overtaken(self, earlier: Mapping[str, Any]) -> None:
        standing = [decision for decisions in on_documents(self._results, [earlier]).values() for decision in decisions]
        newest = next((decision for decision in standing if decision["decided_by"] == earlier["decided_by"]), earlier)
        if newest["decision"] != earlier["decision"]:
            raise NotTaken(
                DeliveryOutcome.OVERTAKEN,
                f"this came before, at {earlier['decided_at']:%Y-%m-%d %H:%M:%S} UTC, and {newest['decision']} came "
                f"after it. Coop's bodies carry no time: if {earlier['decision']} was decided anew, record it by "
                "`brickscan decide`, or take the action again with another note",
            )


def _read(body: bytes) -> CoopCallback:
    try:
        return CoopCallback.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:3])[:60] or "the body"
        raise NotTaken(
            DeliveryOutcome.MALFORMED, f"{where}: {first['msg'][:200]}; the body of an action is asked"
        ) from None


CALLBACK_PATH = "/coop"

MOST_BYTES = 256 * 1024
"""Most bytes of a body: Coop's have ids, names of policies and a note."""

_STATUS = {
    DeliveryOutcome.RECORDED: 200,
    DeliveryOutcome.BEFORE: 200,
    DeliveryOutcome.NOT_SIGNED: 401,
    DeliveryOutcome.TOO_LARGE: 413,
    DeliveryOutcome.MALFORMED: 400,
    DeliveryOutcome.NO_DECISION: 422,
    DeliveryOutcome.UNKNOWN_ITEM: 404,
    DeliveryOutcome.CHANGED: 409,
    DeliveryOutcome.OVERTAKEN: 409,
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
        self.app = Starlette(routes=[Route(CALLBACK_PATH, self._coop, methods=["POST"])])
        self.app.router.redirect_slashes = False  # it would send a client wherever the Host header says

    def summary(self) -> str:
        """How many deliveries came to what, in a line."""
        with self._counting:
            return ", ".join(f"{count:,} {name}" for name, count in sorted(self._counts.items())) or "nothing came"

    async def _coop(self, request: Request) -> Response:
        try:
            body = await body_of(request, MOST_BYTES)
        except HTTPException as refused:
            if refused.status_code != _STATUS[DeliveryOutcome.TOO_LARGE]:
                return Response(status_code=refused.status_code)
            return self._answer(DeliveryOutcome.TOO_LARGE, f"a body has {MOST_BYTES:,} bytes at most", signed=False)
        signatures = request.headers.getlist("coop-signature")
        if len(signatures) != 1 or not self._signatures.holds(signatures[0], body):
            missing = "Coop-Signature: no signature of this body by the key that [export.coop.webhook] names"
            return self._answer(DeliveryOutcome.NOT_SIGNED, missing, signed=False)
        try:
            outcome, row = await run_in_threadpool(self._inbox.take, body)
        except NotTaken as refused:
            return self._answer(refused.outcome, str(refused))
        except BrickscanError as error:
            return self._say("failed", str(error), 503, answer="cannot be recorded now; send it again later")
        return self._answer(outcome, _decided(row))

    def _answer(self, outcome: DeliveryOutcome, message: str, *, signed: bool = True) -> Response:
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
            missing = "has no section [export.coop.webhook]; the guide “Give flags to other systems” shows one"
            raise Refused(f"{config_file}: {missing}")
        pem = read_public_key(coop.webhook.key, config_file.absolute().parent)
        inbox = Inbox(results_of(config, config_file), config.false_positive_rate, coop, coop.webhook)
        self._webhook = Webhook(inbox, Signatures(pem, coop.webhook.key), tell)
        super().__init__(host, port, lambda _port: self._webhook.app)
        self.address = f"http://{host}:{self.port}{CALLBACK_PATH}"

    def summary(self) -> str:
        """How many deliveries came to what, in a line."""
        odd = f"; {self.malformed:,} requests were no HTTP" if self.malformed else ""
        return self._webhook.summary() + odd

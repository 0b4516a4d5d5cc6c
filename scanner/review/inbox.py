"""Decisions made in ROOST Coop, as rows of `decisions`: a signed body is one decision, however often it comes.

Coop's bodies carry neither a time nor a number, and its signature covers the body alone. So the body's digest is the
decision's id. Somebody who kept a body and sends it again changes nothing, since its row exists. A moderator who
decides otherwise, and then the first way again in the same words, also sends the first body again. Nobody can tell the
two cases apart, so the body is refused with a message.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import polars as pl
from pydantic import ValidationError

from scanner.errors import Refused
from scanner.exports.sending import sent
from scanner.results.decided import LONGEST_NAME, LONGEST_NOTE, Made, decide, on_documents, recorded
from scanner.results.queries import ask
from scanner.review.seen import Changed, Place, flag_as_seen
from schemas.config import CoopConfig, CoopWebhookConfig
from schemas.coop import CoopCallback

SOURCE = "webhook:coop"
"""Value of `source` in the rows."""


class Outcome(StrEnum):
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

    def __init__(self, outcome: Outcome, said: str) -> None:
        super().__init__(said)
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

    def take(self, body: bytes) -> tuple[Outcome, Mapping[str, Any]]:
        """Record the decision of a signed body. Returns `recorded` or `recorded before`, and its row.

        The row is on the disk, and in the table, when this returns.

        Raises:
            NotTaken: it is no decision on a flag that was sent.
            ScanFailed: the table cannot be read or written.
        """
        callback = _read(body)
        made = self._made(body, callback)
        earlier = recorded(self._results, made.decision_id)
        if earlier is not None:
            self._refuse_overtaken(earlier)
            return Outcome.BEFORE, earlier
        return Outcome.RECORDED, decide(self._results, self._flag(callback.item.id), made)

    def _made(self, body: bytes, callback: CoopCallback) -> Made:
        decision = self._actions.get(callback.action.id)
        if decision is None or callback.item.type_id != self._coop.item_type:
            raise NotTaken(
                Outcome.NO_DECISION,
                f"action {callback.action.id[:60]!r} on an item of type {callback.item.type_id[:60]!r} is no decision "
                "on a flag: [export.coop] names item_type, and [export.coop.webhook] the actions that are decisions",
            )
        by = (callback.actor_email or "").strip()
        if not by:
            raise NotTaken(Outcome.NO_DECISION, "no moderator took this action: decisions are those of people")
        if len(by) > LONGEST_NAME:
            raise NotTaken(Outcome.MALFORMED, f"actorEmail: {len(by):,} characters; {LONGEST_NAME} are allowed")
        note = (callback.actor_note or "").strip()
        if len(note) > LONGEST_NOTE:
            note = note[: LONGEST_NOTE - 1] + "…"
        identity = hashlib.sha256(f"{SOURCE}\n".encode() + body).hexdigest()[:32]
        return Made(identity, by, SOURCE, decision, note)

    def _flag(self, item_id: str) -> Mapping[str, Any]:
        """The flag that was sent under an id, as its text was then."""
        same = (pl.col("receiver") == "coop") & (pl.col("item_id") == item_id)
        rows = ask(self._results, lambda: sent(self._results).filter(same).collect())
        if not len(rows):
            raise NotTaken(
                Outcome.UNKNOWN_ITEM,
                f"item {item_id[:60]!r}: `brickscan export --format coop --send` sent no such item from these results",
            )
        report = rows.row(-1, named=True)
        try:
            return flag_as_seen(
                self._results, self._rate, Place(report["path"], report["row"]), report["text_sha256"].hex()
            )
        except Changed as changed:
            raise NotTaken(Outcome.CHANGED, str(changed)) from None
        except Refused as refused:
            raise NotTaken(Outcome.UNKNOWN_ITEM, str(refused)) from None

    def _refuse_overtaken(self, earlier: Mapping[str, Any]) -> None:
        standing = [decision for decisions in on_documents(self._results, [earlier]).values() for decision in decisions]
        newest = next((decision for decision in standing if decision["decided_by"] == earlier["decided_by"]), earlier)
        if newest["decision"] != earlier["decision"]:
            raise NotTaken(
                Outcome.OVERTAKEN,
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
        raise NotTaken(Outcome.MALFORMED, f"{where}: {first['msg'][:200]}; the body of an action is asked") from None

"""The result of `brickscan scan` as one line of JSON, for schedulers; refusals and failures too."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from jobs.listing import visible
from jobs.text import tell
from scanner.errors import BrickscanError, Refused

if TYPE_CHECKING:
    from scanner.audit.in_every_scan.live import LiveAudit
    from scanner.cluster import Outcome
    from scanner.detection.scan_plan import Plan

Form = Literal["text", "json"]

summary_option = click.option(
    "--summary",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What goes to stdout: lines for people, or one line of JSON for schedulers.",
)


def say_json(values: Mapping[str, Any]) -> None:
    """Say values as a line of JSON on stdout, in which all text of strangers is escaped."""
    tell(visible(json.dumps(values, default=str, allow_nan=False)))


@contextlib.contextmanager
def failures_too(form: Form) -> Iterator[None]:
    """Where JSON is asked for, write a command's error as JSON too: `exit_code` and `error`. The error is raised on."""
    try:
        yield
    except BrickscanError as error:
        if form == "json":
            say_json({"exit_code": 2 if isinstance(error, Refused) else 1, "error": str(error)})
        raise
    except Exception as error:
        if form == "json":
            say_json({"exit_code": 1, "error": f"{type(error).__name__}: {error}"})
        raise


def of_outcome(outcome: "Outcome", plan: "Plan") -> dict[str, Any]:
    """The summary's values by name; bytes and seconds as numbers, None where there is no value."""
    work, totals, counts = outcome.work, outcome.totals, outcome.totals.counts
    return {
        "exit_code": int(outcome.exit_code),
        "scan_id": outcome.scan_id,
        "part": None if outcome.part is None else str(outcome.part),
        "results": plan.results,
        "false_positive_rate": plan.config.false_positive_rate,
        "misnaming_rate": plan.config.misnaming_rate,
        "seconds": outcome.seconds,
        "first_commit_seconds": outcome.first_commit,
        "shards": work.shards,
        "shards_done_before": work.skipped,
        "shards_left": work.shards - work.skipped - totals.shards,
        "documents": counts.documents,
        "flagged": counts.flagged,
        "flagged_of_canaries": counts.canaries,
        "proved": counts.proved,
        "unproved": counts.unproved,
        "proof_not_offered": counts.not_offered,
        "too_short": counts.too_short,
        "filtered": counts.filtered,
        "scored_in_part": counts.scored_in_part,
        "quarantined": counts.quarantined,
        "files_quarantined": totals.files_quarantined,
        "whole_input": outcome.unread.whole._asdict(),
        "quarantine": [reason._asdict() for reason in outcome.unread.reasons],
        "files_passed_over": len(outcome.unread.passed_over),
        "nothing_read": outcome.unread.nothing or None,
        "values_not_read": counts.values_not_read,
        "in_future": counts.in_future,
        "older_than_key": counts.older_than_key,
        "text_bytes": counts.text_bytes,
        "tokens": counts.tokens,
        "worker_bytes": totals.peak_memory,
        "retries": totals.retries,
        "second_scores": outcome.second_scores,
        "accounts": None if outcome.accounts is None else outcome.accounts._asdict(),
        "rows_dropped": outcome.dropped,
        "trial": outcome.trial,
        "left_out": [key._asdict() for key in outcome.left_out],
        "audit": None if outcome.audit is None else _of_audit(outcome.audit),
    }


def _of_audit(audit: "LiveAudit") -> dict[str, Any]:
    share = audit.false_share
    return {
        "state": str(audit.state),
        "alarms": audit.alarms(),
        "warnings": audit.warnings(),
        "texts": audit.traffic.texts,
        "flagged": audit.traffic.flagged,
        "expected_false": audit.expected_false if math.isfinite(audit.expected_false) else None,
        "canaries": None if audit.canaries is None else audit.canaries._asdict(),
        "reserved": audit.traffic.reserved,
        "unheld": audit.traffic.unheld,
        "false_share": None if share is None else share[0],
        "false_share_at_least": None if share is None else share[1].low,
        "false_share_at_most": None if share is None else share[1].high,
        "never_audited": list(audit.unadmitted),
    }

"""The door for requests in the process that answers HTTP: each is checked, and marked steps are counted.

Counts of marked and unmarked steps, so that an operator sees a server that stopped marking.

They are metrics of Prometheus and a line in the log. Workers are other processes than the one that answers /metrics.
With PROMETHEUS_MULTIPROC_DIR set before vLLM starts, it answers with their counts too.
"""

import logging
import time
from functools import cache

import torch
from prometheus_client import Counter

from brickscan_vllm.marking import find_key, refuse_if_it_marks_nothing
from brickscan_vllm.request import Params, Refusal, check_request_token, read_request, refuse_probabilities, steered_by
from brickscan_vllm.settings import Settings, read_settings
from scanner.errors import Refused
from scanner.registry.secrets import read_secret
from schemas.registry import MasterKey

LOG = logging.getLogger("vllm.brickscan")

REQUESTS = Counter("brickscan_requests", "Requests accepted, for users or for the service", ["for"])
STEERED = Counter("brickscan_requests_steered", "Requests that restrict which tokens may come, by field", ["by"])
REFUSED = Counter("brickscan_requests_refused", "Requests refused, by reason", ["why"])
STEPS = Counter("brickscan_steps", "Tokens chosen: marked, forced (one was almost certain) or unmarked", ["outcome"])
FINISHED = Counter("brickscan_requests_finished", "Requests by the share of their steps that were marked", ["marked"])

SECONDS = 10.0
"""Seconds between two looks at a device's counts, each of which waits for the device."""

OUTCOMES = ("marked", "forced", "unmarked")
SHARES = ("all", "some", "none")


class StepCounts:
    """Counts of one worker, added up on its device: marked, forced and unmarked steps of each slot, and of all.

    Args:
        slots: how many requests can run at a time.
        device: the device that counts steps.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._of_slot = torch.zeros((slots, len(OUTCOMES)), dtype=torch.int64, device=device)
        self._totals = torch.zeros(len(OUTCOMES) + len(SHARES), dtype=torch.int64, device=device)
        self._reported = [0] * len(self._totals)
        for counter, labels in ((STEPS, OUTCOMES), (FINISHED, SHARES)):
            for label in labels:
                counter.labels(label)  # present from the first moment, at 0
        self._every = SECONDS if device.type == "cuda" else 0.0
        self._last_look = time.monotonic()
        self._unsaid, self._last_said = [0, 0], -SECONDS

    def step(self, slots: torch.Tensor, on: torch.Tensor, forced: torch.Tensor, counted: torch.Tensor) -> None:
        """Count one step.

        Args:
            slots: int64[R], the slot of each row's request.
            on: bool[R], rows that are marked.
            forced: bool[R], rows in which one token was as good as sure.
            counted: bool[R], rows in which a token is written, not only read.
        """
        kinds = torch.stack([on & ~forced, on & forced, ~on], dim=1) & counted[:, None]
        self._totals[: len(OUTCOMES)] += kinds.sum(dim=0)
        self._of_slot.index_add_(0, slots, kinds.long())
        if time.monotonic() - self._last_look >= self._every:
            self.tell()

    def begin(self, slots: torch.Tensor) -> None:
        """Give slots, int64[N], to new requests: the counts of the previous requests do not carry over."""
        marked, forced, unmarked = (self._of_slot[slots] > 0).unbind(dim=1)
        shares = [marked & ~unmarked, marked & unmarked, ~marked & (forced | unmarked)]
        self._totals[len(OUTCOMES) :] += torch.stack(shares).sum(dim=1)
        self._of_slot[slots] = 0

    def tell(self) -> None:
        """Bring the metrics up to date; a line in the log reports steps that were not marked."""
        self._last_look = time.monotonic()
        now = self._totals.tolist()
        more = [after - before for after, before in zip(now, self._reported, strict=True)]
        self._reported = now
        for outcome, count in zip(OUTCOMES, more[: len(OUTCOMES)], strict=True):
            STEPS.labels(outcome).inc(count)
        for share, count in zip(SHARES, more[len(OUTCOMES) :], strict=True):
            FINISHED.labels(share).inc(count)
        self._say(more[OUTCOMES.index("unmarked")], sum(more[: len(OUTCOMES)]))

    def _say(self, unmarked: int, steps: int) -> None:
        """Write a line in the log, at most every few seconds."""
        self._unsaid = [self._unsaid[0] + unmarked, self._unsaid[1] + steps]
        if self._unsaid[0] and time.monotonic() - self._last_said >= SECONDS:
            LOG.warning("%d of %d tokens were not marked", *self._unsaid)
            self._unsaid, self._last_said = [0, 0], time.monotonic()


LOOK_AGAIN = 5.0
"""Seconds until keys.toml is read again: a retired key marks for no longer."""


class Door:
    """Holds the registry's record of the key, and the gateway's secret.

    Raises:
        Refused: settings, registry or secret are not right.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._key = settings, find_key(settings)
        self._changed, self._looked = self._changed_at(), time.monotonic()
        secret = settings.gateway_secret
        self._secret = None if secret is None else read_secret(secret, settings.registry)
        self._last: Params = None
        self._fault: Refused | None = None  # fault of keys.toml as it is now

    def __repr__(self) -> str:
        return f"Door({self._key.key_id})"

    def check(self, params: Params) -> None:
        """Let a request in.

        Raises:
            ValueError: the reason for a refusal, which vLLM answers with HTTP 400.
        """
        if params is self._last:  # a class that is loaded by entry point and by name is called twice
            return
        try:
            self._look_again()
            marking = read_request(params, self._key, self._settings.service_message)
            if not self._settings.logprobs:
                refuse_probabilities(params)
            check_request_token(params, self._key, marking, self._secret, time.time())
        except Refused as error:
            REFUSED.labels(error.why if isinstance(error, Refusal) else "key").inc()
            raise ValueError(str(error)) from None
        REQUESTS.labels("service" if marking.for_service else "user").inc()
        for field in steered_by(params):
            STEERED.labels(field).inc()
        self._last = params

    def _look_again(self) -> None:
        """Read keys.toml anew when it has changed, and refuse a key that has ended, or is missing."""
        if time.monotonic() - self._looked >= LOOK_AGAIN:
            self._looked, changed = time.monotonic(), self._changed_at()
            if changed != self._changed or self._fault is not None:
                self._changed, self._fault = changed, None
                try:
                    self._key = self._read_again()
                except Refused as error:
                    self._fault = error
        if self._fault is not None:
            raise self._fault
        refuse_if_it_marks_nothing(self._key)

    def _read_again(self) -> MasterKey:
        again = find_key(self._settings)
        if (again.commitment, again.parameters) != (self._key.commitment, self._key.parameters):
            raise Refused(f"key {again.key_id!r} was replaced; restart the server to mark with the new key")
        return again

    def _changed_at(self) -> int:
        try:
            return (self._settings.registry / "keys.toml").stat().st_mtime_ns
        except OSError:
            return -1


@cache
def door() -> Door:
    """Return the door of this process."""
    return Door(read_settings())


def let_in(params: Params) -> None:
    """Let a request in by the door of this process.

    Raises:
        ValueError: the reason for a refusal; also where settings, registry or secret are not right.
    """
    try:
        registered = door()
    except Refused as error:
        REFUSED.labels("key").inc()
        raise ValueError(str(error)) from None
    registered.check(params)

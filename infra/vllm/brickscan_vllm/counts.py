"""Counts of marked and unmarked steps, so that an operator sees a server that stopped marking.

They are metrics of Prometheus and a line in the log. Workers are other processes than the one that answers /metrics.
With PROMETHEUS_MULTIPROC_DIR set before vLLM starts, it answers with their counts too.
"""

import logging
import time

import torch
from prometheus_client import Counter

LOG = logging.getLogger("vllm.brickscan")

REQUESTS = Counter("brickscan_requests", "Requests that were taken, for users or for the service", ["for"])
STEERED = Counter("brickscan_requests_steered", "Requests that say which tokens may come, by the field", ["by"])
REFUSED = Counter("brickscan_requests_refused", "Requests that were refused, by why", ["why"])
STEPS = Counter("brickscan_steps", "Tokens chosen: marked, forced (one was as good as sure) or unmarked", ["outcome"])
FINISHED = Counter("brickscan_requests_finished", "Requests by how many of their steps were marked", ["marked"])

SECONDS = 10.0
"""Seconds between two looks at a device's counts, each of which waits for the device."""

OUTCOMES = ("marked", "forced", "unmarked")
SHARES = ("all", "some", "none")


class Counts:
    """Counts of one worker, added up on its device: marked, forced and unmarked steps of each slot, and of all.

    Args:
        slots: how many requests can run at a time.
        device: the device that counts steps.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._of_slot = torch.zeros((slots, len(OUTCOMES)), dtype=torch.int64, device=device)
        self._totals = torch.zeros(len(OUTCOMES) + len(SHARES), dtype=torch.int64, device=device)
        self._told = [0] * len(self._totals)
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
        more = [after - before for after, before in zip(now, self._told, strict=True)]
        self._told = now
        for outcome, count in zip(OUTCOMES, more[: len(OUTCOMES)], strict=True):
            STEPS.labels(outcome).inc(count)
        for share, count in zip(SHARES, more[len(OUTCOMES) :], strict=True):
            FINISHED.labels(share).inc(count)
        self._say(more[OUTCOMES.index("unmarked")], sum(more[: len(OUTCOMES)]))

    def _say(self, unmarked: int, steps: int) -> None:
        """A line in the log, not more often than every few seconds."""
        self._unsaid = [self._unsaid[0] + unmarked, self._unsaid[1] + steps]
        if self._unsaid[0] and time.monotonic() - self._last_said >= SECONDS:
            LOG.warning("%d of %d tokens were not marked", *self._unsaid)
            self._unsaid, self._last_said = [0, 0], time.monotonic()

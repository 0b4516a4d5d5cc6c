"""The door for requests, in the process that answers HTTP: each request is checked before anything is computed."""

import time
from functools import cache

from brickscan_vllm.asked import (
    Params,
    Refusal,
    check_request_token,
    read_request,
    refuse_probabilities,
    steered_by,
)
from brickscan_vllm.counts import REFUSED, REQUESTS, STEERED
from brickscan_vllm.served_key import find_key, refuse_if_it_ended
from brickscan_vllm.settings import Settings, read_settings
from scanner.errors import Refused
from scanner.registry.secrets import read_secret
from schemas.registry import MasterKey

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
            asked = read_request(params, self._key, self._settings.service_message)
            if not self._settings.logprobs:
                refuse_probabilities(params)
            check_request_token(params, self._key, asked, self._secret, time.time())
        except Refused as error:
            REFUSED.labels(error.why if isinstance(error, Refusal) else "key").inc()
            raise ValueError(str(error)) from None
        REQUESTS.labels("service" if asked.for_service else "user").inc()
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
        refuse_if_it_ended(self._key)

    def _read_again(self) -> MasterKey:
        again = find_key(self._settings)
        if again.commitment != self._key.commitment:
            raise Refused(f"key {again.key_id!r} is another one now; start the server again to mark with it")
        return again

    def _changed_at(self) -> int:
        try:
            return (self._settings.registry / "keys.toml").stat().st_mtime_ns
        except OSError:
            return -1


@cache
def door() -> Door:
    """The door of this process."""
    return Door(read_settings())


def let_in(params: Params) -> None:
    """Let a request in by the door of this process.

    Raises:
        ValueError: the reason for a refusal; also where settings, registry or secret are not right.
    """
    try:
        own = door()
    except Refused as error:
        REFUSED.labels("key").inc()
        raise ValueError(str(error)) from None
    own.check(params)

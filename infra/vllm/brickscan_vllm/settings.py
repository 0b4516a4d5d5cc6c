"""What an operator says by the environment of the server: which key marks, how strongly, and who may ask for whom."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from scanner.errors import Refused

REGISTRY, KEY, DELTA = "BRICKSCAN_REGISTRY", "BRICKSCAN_KEY", "BRICKSCAN_DELTA"
SERVICE_MESSAGE, GATEWAY_SECRET = "BRICKSCAN_SERVICE_MESSAGE", "BRICKSCAN_GATEWAY_SECRET"

DEFAULT_DELTA = 2.0


class Settings(NamedTuple):
    """Of one server.

    registry: its folder, with keys.toml; key_id: the key that marks; delta: δ of a green list, in logits;
    service_message: what requests without a message are marked for; None: they are refused; gateway_secret: reference
    to the secret that requests must be signed with; None: a message is taken from anybody.
    """

    registry: Path
    key_id: str
    delta: float
    service_message: int | None
    gateway_secret: str | None


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this server.

    Raises:
        Refused: one is missing or is not what is allowed, by its name.
    """
    for name in (REGISTRY, KEY):
        if not environment.get(name):
            raise Refused(
                f"{name} is not set: brickscan-vllm is installed, so this server marks what it serves; set "
                f"{REGISTRY} (the registry's folder) and {KEY} (the id of a key in it), or uninstall brickscan-vllm"
            )
    service = environment.get(SERVICE_MESSAGE)
    return Settings(
        Path(environment[REGISTRY]),
        environment[KEY],
        _delta(environment.get(DELTA)),
        None if not service else _whole(service),
        environment.get(GATEWAY_SECRET) or None,
    )


def _delta(text: str | None) -> float:
    if not text:
        return DEFAULT_DELTA
    try:
        delta = float(text)
    except ValueError:
        delta = float("nan")
    if not 0 < delta < float("inf"):
        raise Refused(f"{DELTA} = {text!r} does not mark text; a number above 0 is needed, for example 2.0")
    return delta


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Refused(f"{SERVICE_MESSAGE} = {text!r} is no message; a whole number from 0 is needed")
    return int(text)

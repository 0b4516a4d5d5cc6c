"""Settings in the environment of a server, and the token that shows that a message comes from the gateway.

`EXPIRES.MAC`: seconds since 1970, and HMAC-SHA256 of `brickscan-token-v1|KEY|MESSAGE|EXPIRES` under the gateway's
secret, as hexadecimal digits. It holds for one message of one key until it expires, whatever the prompt.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from scanner.errors import Refused

REGISTRY, KEY, DELTA = "BRICKSCAN_REGISTRY", "BRICKSCAN_KEY", "BRICKSCAN_DELTA"
SERVICE_MESSAGE, GATEWAY_SECRET = "BRICKSCAN_SERVICE_MESSAGE", "BRICKSCAN_GATEWAY_SECRET"
LOGPROBS, PLUGINS = "BRICKSCAN_LOGPROBS", "VLLM_PLUGINS"

DEFAULT_DELTA = 2.0


class Settings(NamedTuple):
    """Settings of one server.

    registry: its folder, with keys.toml; key_id: the key that marks; delta: δ of a green list, in logits;
    service_message: message that requests without one are marked for; None: they are refused; gateway_secret: reference
    to the secret that requests must be signed with; None: a message is taken from anybody; logprobs: whether clients
    may ask for probabilities, which are computed without the mark.
    """

    registry: Path
    key_id: str
    delta: float
    service_message: int | None
    gateway_secret: str | None
    logprobs: bool = False


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this server.

    Raises:
        Refused: a setting is missing or not allowed; names it.
    """
    for name in (REGISTRY, KEY):
        if not environment.get(name):
            raise Refused(
                f"{name} is not set: brickscan-vllm is installed, so this server marks what it serves; set "
                f"{REGISTRY} (the registry's folder) and {KEY} (the id of a key in it), or uninstall brickscan-vllm"
            )
    plugins = environment.get(PLUGINS)
    if plugins is not None and "brickscan" not in plugins.split(","):
        raise Refused(
            f"{PLUGINS} = {plugins!r} leaves out brickscan, without which vLLM drops the mark: add brickscan, or "
            "unset it"
        )
    if environment.get(LOGPROBS) not in (None, "", "0", "1"):
        raise Refused(f"{LOGPROBS} = {environment[LOGPROBS]!r} is not allowed; 1 lets clients ask for probabilities")
    service = environment.get(SERVICE_MESSAGE)
    return Settings(
        Path(environment[REGISTRY]).absolute(),
        environment[KEY],
        _delta(environment.get(DELTA)),
        None if not service else _whole(service),
        environment.get(GATEWAY_SECRET) or None,
        environment.get(LOGPROBS) == "1",
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
        raise Refused(f"{SERVICE_MESSAGE} = {text!r} is not a message; a whole number, 0 or more, is needed")
    return int(text)


LONGEST = 3600
"""Most seconds until a token expires: a leaked token is of no use tomorrow."""


def make_token(secret: bytes, key_id: str, message: int, expires: int) -> str:
    """Make the token of a message, as a gateway does."""
    stated = f"brickscan-token-v1|{key_id}|{message}|{expires}".encode()
    return f"{expires}.{hmac.new(secret, stated, hashlib.sha256).hexdigest()}"


def check_token(secret: bytes, key_id: str, message: int, token: object, now: float) -> None:
    """Raise Refused unless the token is the gateway's for this message, and holds now (seconds since 1970)."""
    if not (isinstance(token, str) and token.isascii()):
        raise Refused(
            "brickscan_token is missing or is not a token: this server accepts a message only from its gateway, which "
            "signs it"
        )
    expires = token.partition(".")[0]
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        raise Refused("brickscan_token is not EXPIRES.MAC, seconds since 1970 and hexadecimal digits")
    if not hmac.compare_digest(token.encode(), make_token(secret, key_id, message, int(expires)).encode()):
        raise Refused("brickscan_token was not made for this message of this key by the gateway's secret")
    if not now < int(expires) <= now + LONGEST:
        raise Refused(
            f"brickscan_token expires at {expires}, and it is {int(now)} now; it must expire later, and within "
            f"{LONGEST} seconds: are the clocks of gateway and server right?"
        )

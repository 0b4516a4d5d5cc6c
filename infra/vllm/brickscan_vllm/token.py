"""The token that shows that a message comes from the gateway, so that others who reach the server mark for nobody.

`EXPIRES.MAC`: seconds since 1970, and HMAC-SHA256 of `brickscan-token-v1|KEY|MESSAGE|EXPIRES` under the gateway's
secret, as hexadecimal digits. It holds for one message of one key until it expires, whatever the prompt.
"""

import hashlib
import hmac

from scanner.errors import Refused

LONGEST = 3600
"""Most seconds until a token expires: a leaked token is of no use tomorrow."""


def make_token(secret: bytes, key_id: str, message: int, expires: int) -> str:
    """The token of a message, as a gateway makes it."""
    said = f"brickscan-token-v1|{key_id}|{message}|{expires}".encode()
    return f"{expires}.{hmac.new(secret, said, hashlib.sha256).hexdigest()}"


def check_token(secret: bytes, key_id: str, message: int, token: object, now: float) -> None:
    """Raise Refused unless the token is the gateway's for this message, and holds now (seconds since 1970)."""
    if not (isinstance(token, str) and token.isascii()):
        raise Refused(
            "brickscan_token is missing or no token: this server takes a message from its gateway alone, which signs it"
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

"""Experts: people who learn more of the detector than anybody does, by tokens that end and can be revoked.

tokens.json in the detector's folder has their digests. A token has 256 random bits, so that a plain SHA-256 hides it.
"""

import hashlib
import secrets
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanner.errors import Refused
from scanner.registry.keys_file import locked
from scanner.storage.locations import make_private, read_named, write_whole
from schemas.service import ExpertToken

_FILE = "tokens.json"


class _Tokens(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[ExpertToken, ...] = ()


def tokens(state: Path) -> tuple[ExpertToken, ...]:
    """Every token that was issued, oldest first.

    Raises:
        Refused: the list cannot be read.
    """
    path = state / _FILE
    try:
        return _Tokens.model_validate_json(read_named(path)).tokens if path.exists() else ()
    except (OSError, ValidationError):
        raise Refused(f"{path}: is no list of tokens; restore it from a copy") from None


def issue_token(state: Path, expert: str, until: datetime) -> tuple[str, ExpertToken]:
    """A new token, which is kept nowhere, and its record.

    Raises:
        Refused: it would have ended already, or the expert has no name.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    if until <= now:
        raise Refused(f"--until {until:%Y-%m-%d}: is over; give a later day")
    if not expert.strip() or len(expert) > 200 or not expert.isprintable():
        raise Refused("--for: a name of 1 to 200 printable characters is needed")
    token = secrets.token_urlsafe(32)
    made = ExpertToken(
        token_id=secrets.token_hex(4), expert=expert.strip(), sha256=_digest(token), issued_at=now, until=until
    )
    make_private(state)
    with locked(state):
        _write(state, (*tokens(state), made))
    return token, made


def revoke_token(state: Path, token_id: str) -> ExpertToken:
    """End a token now.

    Raises:
        Refused: there is no such token.
    """
    make_private(state)
    with locked(state):
        every = tokens(state)
        if token_id not in [one.token_id for one in every]:
            raise Refused(f"{token_id!r} is the id of no token; `brickscan serve token list` shows them")
        now = datetime.now(UTC).replace(microsecond=0)
        changed = tuple(
            one.model_copy(update={"revoked_at": one.revoked_at or now}) if one.token_id == token_id else one
            for one in every
        )
        _write(state, changed)
    return next(one for one in changed if one.token_id == token_id)


def expert_of(state: Path, token: str) -> str | None:
    """Name of the expert whose token this is; None: nobody's, or it has ended or was revoked.

    Raises:
        Refused: as `tokens`.
    """
    now, digest = datetime.now(UTC), _digest(token)
    for one in tokens(state):
        if one.sha256 == digest and one.revoked_at is None and now < one.until:
            return one.expert
    return None


def _digest(token: str) -> str:
    return hashlib.sha256(b"brickscan detector token\n" + token.encode(errors="replace")).hexdigest()


def _write(state: Path, every: tuple[ExpertToken, ...]) -> None:
    text = _Tokens(tokens=every).model_dump_json(indent=1)
    write_whole(state / _FILE, lambda file: file.write(text.encode() + b"\n"))

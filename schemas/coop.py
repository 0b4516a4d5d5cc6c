"""What ROOST Coop posts when a moderator takes an action (docs/api/actions.md of roostorg/coop, 2026).

Fields that decide nothing here are passed over, as are fields that Coop adds.
"""

from pydantic import BaseModel, ConfigDict, Field


class _Posted(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


class CoopItem(_Posted):
    """The item that the action is about."""

    id: str  # as the report had it (schemas.verdict)
    type_id: str = Field(alias="typeId")


class CoopAction(_Posted):
    """The action that was taken."""

    id: str


class CoopCallback(_Posted):
    """The body of a callback."""

    item: CoopItem
    action: CoopAction
    actor_email: str | None = Field(default=None, alias="actorEmail")  # None: a rule took the action, nobody did
    actor_note: str | None = Field(default=None, alias="actorNote")  # why, in the moderator's words

"""List the looks in a table, one line each. Neither driver nor workers know a look by its name."""

from scanner.errors import Refused
from scanner.looks.accounts.look import Accounts
from scanner.looks.levels.look import Levels
from scanner.looks.look import Look
from schemas.config import ScanConfig

LOOKS: tuple[Look, ...] = (
    Levels(),
    Accounts(),
)
"""All looks, in the order in which they follow a scan."""


def check_looks(config: ScanConfig) -> None:
    """Raise Refused if a section of the configuration turns on a look that this brickscan does not have."""
    sections = {look.section for look in LOOKS}
    for section in ("accounts", "levels"):
        if getattr(config, section) is not None and section not in sections:
            raise Refused(f"[{section}]: this installation does not have this look; leave the section out")

"""The table of looks: a line each. Neither driver nor workers know a look by its name."""

from scanner.looks.accounts.look import Accounts
from scanner.looks.levels.look import Levels
from scanner.looks.look import Look

LOOKS: tuple[Look, ...] = (
    Levels(),
    Accounts(),
)
"""All looks, in the order in which they follow a scan."""

"""Names of columns that tests read."""

from scanner.input.columns import Columns

COLUMNS = Columns("text", None, None, None)

"""Names of columns that tests read."""

from scanner.input.documents import Columns

COLUMNS = Columns("text", None, None, None)

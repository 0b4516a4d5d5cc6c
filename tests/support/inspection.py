"""One inspector for all tests of a process."""

import atexit

from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector

INSPECTOR = Inspector()
atexit.register(INSPECTOR.close)


def inspect(file: InputFile, columns: Columns) -> list[RowGroup]:
    return INSPECTOR.inspect(file, columns)

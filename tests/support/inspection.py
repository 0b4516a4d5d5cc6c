"""One inspector for all tests of a process."""

import atexit

from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup, read_footer, row_groups
from scanner.input.inspector import Inspector

INSPECTOR = Inspector()
atexit.register(INSPECTOR.close)


def inspect(file: InputFile, columns: Columns) -> list[RowGroup]:
    return INSPECTOR.inspect(file, columns)


class InThisProcess:
    """An inspector of files that a test made itself, for `make check`, which starts no process."""

    def inspect(self, file: InputFile, columns: Columns) -> list[RowGroup]:
        return row_groups(read_footer(file), file.size, columns, file.sources(columns))

"""Parquet footers taken apart and put together again, to write files that no writer would.

Numbers of fields are those of parquet.thrift (Apache Parquet format 2.11).
"""

import copy
from pathlib import Path

from tests.support.thrift import I64, List, Struct, read_struct, write_struct

# of FileMetaData
SCHEMA, FILE_ROWS, ROW_GROUPS = 2, 3, 4
# of SchemaElement
NAME = 4
# of RowGroup
CHUNKS, GROUP_ROWS = 1, 3
# of ColumnChunk
FILE_PATH, METADATA, CRYPTO = 1, 3, 8
# of ColumnMetaData
VALUES, UNCOMPRESSED, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE, SIZE_STATISTICS = 5, 6, 7, 9, 11, 16
# of SizeStatistics
REPETITION_LEVELS, DEFINITION_LEVELS = 2, 3
# of PageHeader, DataPageHeader
V1, PAGE_VALUES = 5, 1


class File:
    """A Parquet file: its bytes before the footer, the footer, and the bytes between the footer and its length."""

    def __init__(self, path: Path) -> None:
        whole = path.read_bytes()
        length = int.from_bytes(whole[-8:-4], "little")
        footer = whole[-8 - length : -8]
        self.data = whole[: -8 - length]
        self.footer, end = read_struct(footer)
        self.rest = footer[end:]

    @property
    def groups(self) -> list[Struct]:
        return self.footer[ROW_GROUPS].value.items

    def chunk(self, group: int, column: int) -> Struct:
        """Metadata of a column chunk."""
        return self.groups[group][CHUNKS].value.items[column][METADATA].value

    def columns(self) -> int:
        return len(self.groups[0][CHUNKS].value.items)

    def claim_rows(self, group: int, rows: int, *, everywhere: bool = False) -> None:
        """Claim another number of rows for a row group; everywhere: for the file and the columns' values too."""
        before = self.groups[group][GROUP_ROWS].value
        self.groups[group][GROUP_ROWS].value = rows
        if everywhere:
            self.footer[FILE_ROWS].value += rows - before
            for column in range(self.columns()):
                self.chunk(group, column)[VALUES].value = rows

    def list_twice(self, group: int) -> None:
        self.groups.append(copy.deepcopy(self.groups[group]))
        self.footer[FILE_ROWS].value += self.groups[group][GROUP_ROWS].value

    def page_header(self, group: int, column: int) -> tuple[Struct, int, int]:
        """Header of the first data page of a column chunk, with the places of its first byte and after its last."""
        begin = self.chunk(group, column)[DATA_PAGE].value
        header, end = read_struct(self.data, begin)
        return header, begin, end

    def write(self, path: Path) -> Path:
        footer = write_struct(self.footer) + self.rest
        path.write_bytes(self.data + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        return path


def with_longer_histogram(chunk: Struct) -> None:
    """A size-statistics histogram with one entry too many."""
    histogram: List = chunk[SIZE_STATISTICS].value[DEFINITION_LEVELS].value
    assert histogram.kind == I64
    histogram.items.append(7)

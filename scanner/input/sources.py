"""A Parquet file that is open to be read, with what its footer says of the columns that are read."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import FileFault
from scanner.input.columns import Columns, readable
from scanner.input.files import InputFile
from scanner.input.footers import footer_of, leaves, open_footer, range_of, said

_BUFFER_BYTES = 4 * 2**20


class Source(NamedTuple):
    """A file that is read: by `decoded` as values, by `once` as dictionaries.

    columns: the columns asked for; readable: those that are read; names, numbers: the names and numbers of these.
    """

    file: InputFile
    columns: Columns
    opened: pa.NativeFile
    decoded: pq.ParquetFile
    once: pq.ParquetFile
    readable: Columns
    names: list[str]
    numbers: list[int]

    @property
    def all_read(self) -> bool:
        """Whether all columns that were asked for are read."""
        return self.readable == self.columns

    def close(self) -> None:
        """Close the file."""
        self.opened.close()

    def check_bytes(self, group: int) -> None:
        """Raise FileFault when the file changed, or its bytes cannot be read.

        If neither is so, the content is at fault.
        """
        self.file.check_unchanged()
        metadata = self.decoded.metadata.row_group(group)
        ranges = [range_of(metadata.column(number)) for number in self.numbers]
        try:
            with self.file.open() as opened:
                for begin, end in ranges:
                    for at in range(begin, end, _BUFFER_BYTES):
                        opened.read_at(min(_BUFFER_BYTES, end - at), at)
        except OSError as error:
            raise FileFault("io_error", f"the file cannot be read: {error}") from None


def open_source(file: InputFile, columns: Columns) -> Source:
    """Open a file that was inspected.

    Raises:
        FileFault: it is gone, is another one than was listed, or its bytes cannot be read.
    """
    opened = file.open()
    try:
        return _source(file, columns, opened)
    except BaseException:
        opened.close()
        raise


def _source(file: InputFile, columns: Columns, opened: pa.NativeFile) -> Source:
    footer = footer_of(opened)
    try:
        plain = open_footer(footer)
        metadata, found = plain.metadata, readable(plain.schema_arrow, columns)
        names = [name for name in dict.fromkeys(found.names.values()) if name is not None]
        options = {"metadata": metadata, "buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        options["page_checksum_verification"] = True  # for pages that have a checksum
        decoded = pq.ParquetFile(opened, **options)
        once = pq.ParquetFile(opened, read_dictionary=names, **options)
        return Source(file, columns, opened, decoded, once, found, names, leaves(metadata.schema, names))
    except MemoryError:  # no fault of the file
        raise
    except Exception as error:  # it was readable when the shard was cut
        file.check_unchanged()
        raise FileFault("io_error", f"the footer cannot be read any more: {said(error)}") from None

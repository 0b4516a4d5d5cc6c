"""Files of an Iceberg table's metadata, opened where they are regular: a FIFO or device has no end."""

import os
import stat
from urllib.parse import urlparse

from pyiceberg.io import FileIO, InputFile, OutputFile


class RegularFiles(FileIO):
    """What a table is read through, but for FIFOs, sockets and devices of this machine.

    Args:
        io: what pyiceberg reads the table through.
    """

    def __init__(self, io: FileIO) -> None:
        super().__init__(io.properties)
        self._io = io

    def new_input(self, location: str) -> InputFile:
        """A file to be read. Raises ValueError: it is a FIFO, socket or device."""
        uri = urlparse(location)
        path = location if not uri.scheme else uri.netloc + uri.path
        if uri.scheme in ("", "file") and os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"{location} is a FIFO, socket or device")
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """A file to be written."""
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._io.delete(location)

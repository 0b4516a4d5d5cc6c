"""Open files of an Iceberg table's metadata only if they are regular, because a FIFO or a device has no end."""

import os
import stat
from urllib.parse import urlparse

from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.config import Config

_CONFIGURED = "brickscan.io"  # name of the property that keeps the class which the catalog's configuration names


class RegularFiles(FileIO):
    """The files through which pyiceberg reads tables, without FIFOs, sockets and devices of this machine."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._by_scheme: dict[str, FileIO] = {}

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading.

        Raises:
            ValueError: it is a FIFO, socket or device.
        """
        uri = urlparse(location)
        path = location if not uri.scheme else uri.netloc + uri.path
        if uri.scheme in ("", "file") and os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"{location} is a FIFO, socket or device")
        return self._io(location).new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file for writing."""
        return self._io(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._io(location if isinstance(location, str) else location.location).delete(location)

    def _io(self, location: str) -> FileIO:
        scheme = urlparse(location).scheme
        if scheme not in self._by_scheme:
            properties = {**self.properties}
            if properties.get(PY_IO_IMPL) == _NAME:
                properties[PY_IO_IMPL] = properties.get(_CONFIGURED)
            self._by_scheme[scheme] = load_file_io(properties, location)
        return self._by_scheme[scheme]


_NAME = f"{RegularFiles.__module__}.{RegularFiles.__name__}"


def properties_of(catalog: str) -> dict[str, str | None]:
    """Return the properties with which a catalog reads its tables and their metadata through RegularFiles."""
    configured = (Config().get_catalog_config(catalog) or {}).get(PY_IO_IMPL)
    return {PY_IO_IMPL: _NAME, **({} if configured is None else {_CONFIGURED: str(configured)})}

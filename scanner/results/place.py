"""Where results are: a folder, a URI, or the file of the scan's configuration that names them."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Place = str | os.PathLike[str]


def folder_of(place: Place) -> str:
    """Folder or URI of the results that a place names.

    Raises:
        Refused: it is a file, and no configuration of a scan.
    """
    if Path(place).is_file():
        from scanner.detection.scan_plan import read_config, results_of  # it brings kernels, which take a second

        return results_of(read_config(Path(place)), Path(place))
    return os.fspath(place)


def of_any_place(query: Callable[Concatenate[str, Given], Answer]) -> Callable[Concatenate[Place, Given], Answer]:
    """A query that takes a Path or the file of a configuration where it took a folder or URI of results."""

    @wraps(query)
    def ask(results: Place, *given: Given.args, **named: Given.kwargs) -> Answer:
        return query(folder_of(results), *given, **named)

    return cast(Callable[Concatenate[Place, Given], Answer], ask)

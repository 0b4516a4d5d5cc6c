"""Functions shared by the commands that run an app until they are interrupted."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobs.text import tell
from scanner.errors import Refused
from scanner.interrupts import Terminated

if TYPE_CHECKING:
    from scanner.review.serving import Server


@contextlib.contextmanager
def needs_extra(command: str) -> Iterator[None]:
    """Context for imports of packages that only the extra `review` installs.

    Raises:
        Refused: the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise Refused(f"{command} needs {error.name}; install it with `pip install 'brickscan[review]'`") from None


def serve(server: "Server", command: str) -> None:
    """Serve until Ctrl-C, or SIGTERM, which is raised again."""
    try:
        server.run()
    except Terminated:
        raise
    except KeyboardInterrupt:
        tell(f"{command}: ended")

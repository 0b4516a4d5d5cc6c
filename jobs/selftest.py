"""`brickscan selftest`: does this installation compute every format as its makers do?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import NamedPath
from jobs.text import tell
from scanner.errors import Refused, in_a_line
from scanner.storage.named import MOST_ROWS, read_named

if TYPE_CHECKING:
    from scanner.watermark.installation import GroupResult


@click.command()
@click.option(
    "--vectors",
    multiple=True,
    type=NamedPath(path_type=Path),
    help="Known answers in place of those that ship: any of their groups, or a list `cases` as stacks' makers keep it.",
)
def selftest(vectors: tuple[Path, ...]) -> int:
    """Check this installation against known answers; exits 1 when any differs.

    Run it on every new type of machine before its verdicts are trusted. Integers must agree exactly, reals to 1e-9.
    Where torch finds GPUs, each of them is checked as well.

    \b
    Example:
      brickscan selftest
    """
    from scanner.watermark.installation import check, shipped

    passed = failed = 0
    for source in vectors or shipped():
        try:
            if isinstance(source, Path):
                text = read_named(source, MOST_ROWS).decode()
            else:
                text = source.read_text(encoding="utf-8")
            results = check(text)
        except (OSError, ValueError, RecursionError) as error:
            raise Refused(
                f"--vectors {source}: {in_a_line(error)}; a file of the form of those that ship is needed"
            ) from None
        for result in [*results, *_on_devices(text)]:
            if result.not_read:
                tell(f"{result.not_read} cases are {result.group}, and were not checked")
                continue
            tell(f"{result.group}: {result.passed} passed, {len(result.failures)} failed")
            for failure in result.failures:
                tell(f"  {failure}")
            passed += result.passed
            failed += len(result.failures)
    tell(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _on_devices(text: str) -> "list[GroupResult]":
    """The same answers on every GPU; nothing where torch, or Triton, is not installed."""
    try:
        from scanner.gpu.device_answers import check_device
        from scanner.gpu.devices import devices
    except ImportError:
        return []
    return [result for device in devices() for result in check_device(text, device)]

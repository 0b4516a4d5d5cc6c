"""`brickscan selftest`: does this installation compute the watermark of the specification?"""

from importlib import resources
from pathlib import Path

import click

from scanner.errors import Refused


@click.command()
@click.option(
    "--vectors",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Known answers to check instead of those that ship with brickscan; any subset of their groups.",
)
def selftest(vectors: tuple[Path, ...]) -> int:
    """Check this installation against known answers; exits 1 when any differs.

    Run it on every new type of machine before its verdicts are trusted. Integers must agree exactly, reals to 1e-9.
    """
    from scanner.watermark.selftest import check

    shipped = resources.files("scanner.watermark") / "known_answers.json"
    passed = failed = 0
    for source in vectors or (shipped,):
        try:
            results = check(source.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Refused(f"--vectors {source}: {error}; a file of the form of known_answers.json is needed") from None
        for result in results:
            click.echo(f"{result.group}: {result.passed} passed, {len(result.failures)} failed")
            for failure in result.failures:
                click.echo(f"  {failure}")
            passed += result.passed
            failed += len(result.failures)
    click.echo(f"{passed} passed, {failed} failed")
    return 1 if failed else 0

"""The command line, called in this process: exit code, output and errors."""

import io
from contextlib import redirect_stderr, redirect_stdout

from jobs import cli


def call(*arguments: object, command=cli.brickscan) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(command, [str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()

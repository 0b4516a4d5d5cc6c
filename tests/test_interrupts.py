"""SIGTERM and Ctrl-C to any command: an exit code that a shell and a scheduler know, and a sentence."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WAITING = """\
import sys, time, click
from jobs.cli import end, run, when_interrupted

@click.command()
def command():
    with when_interrupted("what was finished is kept"):
        print("ready", flush=True)
        time.sleep(60)

end(run(command, []))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_command_says_so(number, code):
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    said = [line for line in err.splitlines() if line]
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    assert said == ["brickscan: what was finished is kept", f"brickscan: interrupted by {name}"]
    assert process.returncode == code

"""SIGTERM and Ctrl-C to any command: an exit code that a shell and a scheduler know, and a sentence."""

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jobs.cli import run
from scanner.interrupts import Terminated, interrupts_held, interrupts_noted, sigterm_interrupts

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
        _, err = process.communicate(timeout=240)
    said = [line for line in err.splitlines() if line]
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    assert said == ["brickscan: what was finished is kept", f"brickscan: interrupted by {name}"]
    assert process.returncode == code


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python tells what it dropped
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_an_interrupt_that_comes_in_a_finaliser_is_not_lost(number, raised):
    class Dropping:
        def __del__(self):
            signal.raise_signal(number)

    with interrupts_noted() as check, sigterm_interrupts():
        check()  # nothing came yet
        dropping = Dropping()
        del dropping  # the handler raises in here, and Python drops it
        with pytest.raises(KeyboardInterrupt) as interrupt:
            check()
        assert interrupt.type is raised
        check()  # an interrupt is raised once


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")])
def test_an_interrupt_in_a_callback_of_c_is_no_failure_of_the_command(number, code, name, capsys):
    """numba's compiler calls Python back from C, where Python drops an interrupt; the compiler then fails."""

    @click.command()
    def compiles() -> None:
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()
        raise RuntimeError("the compiler did not get its answer")

    assert run(compiles, []) == code
    assert capsys.readouterr().err == f"brickscan: interrupted by {name}\n"


@pytest.mark.parametrize(("interrupt", "code"), [(Terminated, 143), (KeyboardInterrupt, 130)])
def test_an_interrupt_that_c_made_a_system_error_of_is_no_failure_of_the_command(interrupt, code, capsys):
    """Where C returns a value while an interrupt is raised, Python raises a SystemError from it."""

    @click.command()
    def loads() -> None:
        raise SystemError("<built-in function> returned a result with an exception set") from interrupt()

    assert run(loads, []) == code
    assert capsys.readouterr().err.splitlines()[-1].startswith("brickscan: interrupted by")
    assert run(click.Command("fails", callback=lambda: int("no number")), []) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_that_is_held_comes_once_the_block_is_over(fails):
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        steps.append("written")
        if fails:
            raise OSError
    assert steps == ["written"]

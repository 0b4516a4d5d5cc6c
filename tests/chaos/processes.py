"""Processes of the chaos tests: waited for up to a limit, and ended with all their descendants."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

TIMEOUT = 900
"""Seconds for a run in which dozens of workers die and start again, on a busy machine."""


def output_of(process: "subprocess.Popen[str]", seconds: float = TIMEOUT) -> str:
    """The driver's whole output. A driver that runs too long is ended, and the test fails."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        give_up(process, f"it did not end within {seconds} s")


def wait_for(process: "subprocess.Popen[str]", begun: Callable[[], object], seconds: float = TIMEOUT) -> None:
    """Wait until something has begun or the driver has ended; fail after the limit, as `output_of` does."""
    end = time.monotonic() + seconds
    while process.poll() is None and not begun():
        if time.monotonic() > end:
            give_up(process, f"nothing began within {seconds} s")
        time.sleep(0.05)


def give_up(process: "subprocess.Popen[str]", why: str) -> NoReturn:
    """Fail with a driver's output, the stacks of its threads (SIGUSR1 prints them) and its processes."""
    family = descendants(process.pid)
    commands = [f"{pid} {command_of(pid).replace(bytes(1), b' ').decode(errors='replace')[:200]}" for pid in family]
    process.send_signal(signal.SIGUSR1)
    time.sleep(1)
    kill_all([process.pid, *family])
    out, _ = process.communicate(timeout=60)
    raise AssertionError("\n".join([why, out, "its processes:", *commands]))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(pid: int) -> list[int]:
    """Process ids of a process's children and their descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found.extend(children.get(each, []))
    return found[1:]


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def kill_driver(process: "subprocess.Popen[str]", chance: random.Random) -> bool:
    """SIGKILL a driver, and its embedded cluster up to a second later.

    Returns whether the kill ended the driver; it may have ended before.
    """
    left = descendants(process.pid)
    process.kill()
    process.wait()
    time.sleep(chance.uniform(0, 1))
    kill_all(left)
    out = output_of(process, 60)
    assert process.returncode in (0, -signal.SIGKILL), out
    return process.returncode != 0

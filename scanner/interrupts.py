"""Treat SIGTERM as an interrupt like Ctrl-C.

Both are noted where their exception gets lost: in finalisers and in Ray's handler.
Both are held back while something is written that must be there whole, once.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise a KeyboardInterrupt meanwhile, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except SystemExit as leaving:  # Ray's own handler, while Ray starts or ends
        if leaving.code != signal.SIGTERM:
            raise
        raise Terminated from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_noted() -> Iterator[Callable[[], None]]:
    """Yield a function that raises an interrupt that came meanwhile, because Python drops it in a finaliser."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)

    def check() -> None:
        with contextlib.suppress(BlockingIOError):
            came = os.read(reader, 2**16)
            if signal.SIGTERM in came:
                raise Terminated
            if signal.SIGINT in came:
                raise KeyboardInterrupt

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # works under any handler
    try:
        yield check
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def original_interrupt(error: BaseException, check: Callable[[], None]) -> BaseException:
    """Return the error, or the interrupt behind it by `interrupts_noted`.

    While Ray waits, it raises Ctrl-C's interrupt for SIGTERM.
    """
    try:
        if isinstance(error, KeyboardInterrupt):
            check()
    except KeyboardInterrupt as interrupt:
        return interrupt
    return error


@contextlib.contextmanager
def dropped_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises an interrupt that Python dropped in a callback of C.

    numba's compiler has such callbacks. Python would only print the interrupt, and the compiler may fail without the
    callback's answer.
    """
    dropped: list[KeyboardInterrupt] = []
    before = sys.unraisablehook

    def keep(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            dropped.append(unraisable.exc_value)
        else:
            before(unraisable)

    def check() -> None:
        if dropped:
            raise dropped[0]

    sys.unraisablehook = keep
    try:
        yield check
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay SIGTERM and Ctrl-C until the end of this block. A second one takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)
        if len(held) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:  # also where the block failed: who wanted to stop must not be answered with a retry
            signal.raise_signal(held[0])

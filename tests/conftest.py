"""What all tests need of the process that runs them."""

import signal

import pytest
from hypothesis import HealthCheck, settings

# the same examples in every run, however little time the machine has for them
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_interrupts():
    """In the background of a script Ctrl-C is ignored, and would be by every process that a test starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

"""The tests' stand-in for Ray is undone after each test; test_resume.py shows that it makes the same rows as Ray."""

import pytest

from scanner.cluster import scan

REAL = scan.cluster, scan.Pool


@pytest.fixture(scope="module", autouse=True)
def real_in_the_end():
    """Check, after all fixtures of a test are undone, that the real functions are back."""
    yield
    assert (scan.cluster, scan.Pool) == REAL


@pytest.mark.usefixtures("without_ray")
def test_it_is_undone_after_what_a_test_patched_over_it(monkeypatch):
    assert scan.cluster is not REAL[0]
    assert scan.Pool is not REAL[1]
    monkeypatch.setattr(scan, "cluster", None)

"""What stands in for Ray in tests is gone after each; that its rows are those of Ray is seen in test_resume.py."""

import pytest

from scanner.cluster import scan

REAL = scan.cluster, scan.Pool


@pytest.fixture(scope="module", autouse=True)
def real_in_the_end():
    """Looks when all that one test set up is undone."""
    yield
    assert (scan.cluster, scan.Pool) == REAL


@pytest.mark.usefixtures("without_ray")
def test_it_is_undone_after_what_a_test_patched_over_it(monkeypatch):
    assert scan.cluster is not REAL[0]
    assert scan.Pool is not REAL[1]
    monkeypatch.setattr(scan, "cluster", None)

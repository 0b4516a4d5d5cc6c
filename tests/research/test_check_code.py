"""The environment of code that a model wrote, tested without the packages that judge it."""

import sys

import pytest

from tests.support.tasks import check_code


@pytest.mark.seconds  # the test starts a process
def test_code_starts_with_an_empty_environment(tmp_path, monkeypatch):
    """A script stands in for Python, and passes only if it meets no variable of ours."""
    stand_in = tmp_path / "python"
    stand_in.write_text(
        '#!/bin/sh\ncat > /dev/null\n[ -z "$BRICKSCAN_KEY$AWS_SECRET_ACCESS_KEY$HOME" ] && echo passed\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    for name in ("BRICKSCAN_KEY", "AWS_SECRET_ACCESS_KEY", "HOME"):
        monkeypatch.setenv(name, "secret")
    assert check_code.process_results({}, ["return 1"]) == {"pass@1": 1.0}
    stand_in.write_text("#!/bin/sh\ncat > /dev/null\nexit 1\n")
    assert check_code.process_results({}, ["return 1"]) == {"pass@1": 0.0}

"""The first p-value that a process computes may belong to a single document."""

import subprocess
import sys

import pytest

FIRST_CALLS = {
    "greenlist": "log10_greenlist(np.array([3]), np.array([10]), Fraction(1, 4))",
    "gumbel": "log10_gumbel(np.array([3.0]), np.array([10]))",
    "any_of": "log10_any_of(np.array([-3.0]), 10)",
}


@pytest.mark.costly
@pytest.mark.parametrize("call", FIRST_CALLS.values(), ids=FIRST_CALLS)
def test_one_document_in_a_fresh_process_without_a_warning(call):
    code = f"import numpy as np; from fractions import Fraction; from scanner.watermark import *; {call}"
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", code], check=True)

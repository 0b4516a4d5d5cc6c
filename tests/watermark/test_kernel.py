"""A change of one kernel file may not leave kernels compiled from the old one behind, in whatever file they stand."""

import shutil
import subprocess
import sys
from pathlib import Path

import scanner

PROBE = """
import numpy as np
from scanner.watermark import Gumbel
print(Gumbel(bytes(32), 0).draws(np.zeros(1, np.uint64), np.zeros(1, np.int64), 1)[0, 0])
"""


def first_draw(root: Path) -> int:
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=root, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_changed_cipher_is_compiled_anew_where_it_is_used(tmp_path):
    root = Path(scanner.__file__).parents[1]
    for package in ("schemas", "scanner/watermark"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scanner" / "__init__.py").touch()
    before = first_draw(tmp_path)
    assert before == first_draw(tmp_path)
    ciphers = tmp_path / "scanner" / "watermark" / "native" / "ciphers.py"
    ciphers.write_text(ciphers.read_text().replace("0x61707865", "0x61707866"))
    assert first_draw(tmp_path) != before

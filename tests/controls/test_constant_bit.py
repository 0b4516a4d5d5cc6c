"""A secret stream with one constant bit: the sources are copied, one line is broken, and the audit must see it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WHOLE = "x[0] + s[0], x[1] + s[1],"
BROKEN = "(x[0] + s[0]) & uint32(0xFFFFFF7F), x[1] + s[1],"
"""Bit 7 of the first word of every ChaCha block is 0."""

AUDIT = """
import numpy as np
from scanner.watermark.native.format import GreenListFormat
from scanner.audit.calibration.law_counts import LawCase, law_counts
from scanner.audit.statistics.judgement import counts, judge
from scanner.watermark import Tokens

tokens = Tokens(np.random.default_rng(1).integers(0, 32_000, 200 * 256, dtype=np.uint32), np.arange(201) * 256)
case = LawCase(GreenListFormat(window=2, gamma="1/4"), "ngram", 16_384)
found = law_counts(case, tokens, np.arange(200), b"seed", (1e-1, 1e-2, 1e-3))
verdicts = [row.verdict for row in judge(counts(found.sums), 0.01)]
"""


LIVE = """
import sys
from pathlib import Path
from scanner.controls.scan_audit import audit_scan
from tests.support.audited_scan import Key, make, pieces, scan
from tests.support.demo_texts import sample_texts

texts = sample_texts("human")
for share in (1.0, 0.0):
    audit = scan(make(Path(sys.argv[1]) / str(share), texts, Key(16_384, 2), share=share))
    wrong = {row["kind"] for row in audit.rows if row["verdict"] == "too small"}
    print(audit.state, "decoy_all" in wrong, sep=",")
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    """Sources with the broken stream, whose kernels are compiled once."""
    folder = tmp_path_factory.mktemp("broken")
    for package in ("scanner", "schemas", "jobs", "tests"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    ciphers = folder / "scanner" / "watermark" / "native" / "ciphers.py"
    source = ciphers.read_text()
    assert source.count(WHOLE) == 1
    ciphers.write_text(source.replace(WHOLE, BROKEN))
    return folder


def run(folder: Path, code: str) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.costly
def test_a_constant_bit_is_caught(broken):
    assert run(broken, AUDIT + "print(*verdicts, sep=',')").split(",") == ["too small", "too small", "too small"]


@pytest.mark.costly
def test_a_scan_catches_it_by_its_decoys_and_by_nothing_else(broken):
    """Decoys of all messages catch it under 40 of 40 secrets; decoys' best messages alone under 36."""
    assert run(broken, LIVE).splitlines() == ["alarm,True", "no decoys,False"]


def test_the_stream_as_it_is_passes():
    names: dict[str, list[str]] = {}
    exec(AUDIT, names)
    assert names["verdicts"] == ["holds", "holds", "holds"]

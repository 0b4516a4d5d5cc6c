"""A change of one kernel file leaves no old kernel behind; none is compiled twice, wherever the same sources lie."""

import fcntl
import functools
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numba
import numpy as np
import pytest

import scanner
from scanner.watermark import compiler, kernel

PROBE = """
import gc
import numpy as np
from numba.core.dispatcher import Dispatcher
from scanner.watermark import Gumbel
print(Gumbel(bytes(32), 0).draws(np.zeros(1, np.uint64), np.zeros(1, np.int64), 1)[0, 0])
for kernel in gc.get_objects():
    if isinstance(kernel, Dispatcher) and kernel.__module__.startswith("scanner"):
        for types, times in kernel.stats.cache_misses.items():
            print(kernel.__module__, kernel.__name__, types, times)
"""


def first_draws(root: Path, processes: int, **environment: str) -> tuple[int, Counter[str]]:
    """The first draw of processes that run at the same time, and how often they compiled each kernel in all."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROBE],
            cwd=root,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    said = [process.communicate()[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0] * processes
    compiled: Counter[str] = Counter()
    for _, *lines in said:
        for what, times in (line.rsplit(" ", 1) for line in lines):
            compiled[what] += int(times)
    (draw,) = {int(draw) for draw, *_ in said}
    return draw, compiled


SORTS = """
import sys
import numpy as np
from scanner.watermark.kernel import kernel

@kernel
def sorted_numbers(numbers):
    numbers.sort()
    return numbers

@kernel
def order_of_numbers(numbers):
    return np.argsort(numbers)

for name in sys.argv[1:]:
    numbers = np.random.default_rng(0).integers(1 << 40, size=400)
    if name == "sort":
        assert (sorted_numbers(numbers.copy()) == np.sort(numbers)).all()
    else:
        assert (numbers[order_of_numbers(numbers)] == np.sort(numbers)).all()
"""


@pytest.mark.costly
def test_kernels_of_two_processes_are_not_taken_for_one_another(tmp_path):
    """Sort and argsort have inner functions of one name and type: where their numbers met, argsort called sort's.

    Guards the one private part of numba that the compiler uses.
    """
    (tmp_path / "sorts.py").write_text(SORTS)
    environment = {**os.environ, "NUMBA_CACHE_DIR": f"{tmp_path}", "PYTHONPATH": f"{Path(scanner.__file__).parents[1]}"}
    for names in (["sort"], ["order"], ["sort", "order"]):
        subprocess.run([sys.executable, tmp_path / "sorts.py", *names], env=environment, check=True)


CALLED = """
from scanner.watermark.kernel import kernel

@kernel
def doubled(number):
    return 2 * number + len(str(number))
"""
CALLS = """
from scanner.watermark.kernel import kernel
from MODULE import doubled

@kernel
def summed(number):
    return doubled(number) + 1
"""


@pytest.mark.costly
def test_a_kernel_is_compiled_anew_where_one_that_it_calls_has_moved(tmp_path):
    """As after an upgrade that merges two files: the cache names a module that is gone."""
    for module in ("before", "after"):
        for file in tmp_path.glob("*.py"):
            file.unlink()
        (tmp_path / f"{module}.py").write_text(CALLED)
        (tmp_path / "calls.py").write_text(CALLS.replace("MODULE", module))
        call = [sys.executable, "-c", "from calls import summed; print(summed(20))"]
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
        }
        done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "43\n"), done.stderr


@pytest.mark.costly
def test_a_kernel_is_compiled_with_one_from_the_cache(tmp_path):
    (tmp_path / "called.py").write_text(CALLED)
    (tmp_path / "calls.py").write_text(CALLS.replace("MODULE", "called"))
    for code, wanted in (
        ("from called import doubled; print(doubled(20))", "42\n"),
        ("from called import doubled; import calls; print(doubled(20), calls.summed(20))", "42 43\n"),
    ):
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": f"{tmp_path / 'cache'}",
            "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
        }
        call = [sys.executable, "-c", code]
        done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, wanted), done.stderr


@pytest.mark.costly
def test_a_changed_cipher_is_compiled_anew_where_it_is_used(tmp_path):
    root = Path(scanner.__file__).parents[1]
    for package in ("schemas", "scanner/watermark"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scanner" / "__init__.py").touch()
    before, compiled = first_draws(tmp_path, 3)
    assert set(compiled.values()) == {1}, "of processes that need a kernel at the same time, one compiles it"
    assert first_draws(tmp_path, 1) == (before, Counter())
    moved = shutil.copytree(tmp_path, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    kept = str(tmp_path / "scanner" / "watermark" / "__pycache__")
    assert first_draws(moved, 1, NUMBA_CACHE_DIR=kept) == (before, Counter()), "kernels serve the sources anywhere"
    ciphers = tmp_path / "scanner" / "watermark" / "native" / "ciphers.py"
    text = ciphers.read_text()
    ciphers.write_text(
        text.replace('"""', '"""Some words more. ', 1).replace("import numpy", "\n# why\nimport numpy", 1)
    )
    assert first_draws(tmp_path, 1) == (before, Counter()), "no kernel changed"
    ciphers.write_text(text.replace("0x61707865", "0x61707866"))
    after, again = first_draws(tmp_path, 1)
    assert after != before
    assert again, "what reads the constant is compiled anew"
    assert again.keys() < compiled.keys(), "and only what reads it"


def digest_after(lines: str) -> str:
    """The digest of the kernel `outer` in a module of such lines."""
    module = {"kernel": kernel.kernel, "inlined": kernel.inlined, "np": np}
    exec(compile(lines, "lines", "exec"), module)
    return compiler.digest_of(module["outer"].py_func)


LINES = '''
TABLE, STEPS = np.array([1, 2], np.uint32), (np.uint64(3), 4.0)

@kernel
def inner(number):
    return number + TABLE[0]

@kernel
def outer(number):
    """Doubles."""
    total = 0.0
    for step in STEPS:
        total += inner(number) * step
    return total
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1, 2]", "[1, 3]"),
        ("np.uint32", "np.int32"),
        ("4.0", "5.0"),
        ("4.0", "4"),
        ("uint64(3)", "int64(3)"),
        ("TABLE[0]", "TABLE[1]"),
        ("@kernel\ndef inner", "@inlined\ndef inner"),
        ("total = 0.0", "total = -0.0"),
        ("total +=", "total -="),
        ("inner(number) *", "inner(number) // "),
    ],
)
def test_all_that_a_kernel_is_made_of_decides_its_digest(old, new):
    assert LINES.count(old) == 1
    assert digest_after(LINES.replace(old, new)) != digest_after(LINES)


@pytest.mark.parametrize(("old", "new"), [("Doubles.", "Doubles it."), ("@kernel", "# why\n\n@kernel")])
def test_words_and_lines_do_not_decide_a_digest(old, new):
    assert digest_after(LINES.replace(old, new)) == digest_after(LINES)


def test_a_kernel_that_reads_what_no_digest_knows_is_refused():
    with pytest.raises(TypeError, match="a kernel reads"):
        digest_after(LINES.replace("(np.uint64(3), 4.0)", "[3.0, 4.0]"))
    with pytest.raises(TypeError, match="a kernel reads <module"):
        digest_after("import schemas\n" + LINES.replace("total = 0.0", "total = schemas.ZERO"))


ARGUMENTS = """
from typing import NamedTuple
from scanner.watermark.kernel import kernel

class {name}(NamedTuple):
    number: int

@kernel
def doubled(argument):
    return 2 * argument.number

print(doubled({name}(21)))
"""


def test_a_kernel_outlives_the_name_of_the_type_of_its_arguments(tmp_path):
    """After an upgrade, the list of what is compiled names a class that is gone."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for name in ("Before", "Before", "Behind"):
        (tmp_path / "arguments.py").write_text(ARGUMENTS.format(name=name))
        run = subprocess.run(
            [sys.executable, "-c", "import arguments"],
            env=environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
        assert run.stdout == "42\n", run.stderr


def test_a_process_that_was_stopped_while_it_compiled_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr(compiler, "LONGEST_WAIT", 0.1)
    doubled = kernel.kernel(lambda number: 2 * number)
    with (tmp_path / f"{__name__}.{doubled.__qualname__}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        assert doubled(21) == 42
    assert time.monotonic() - began >= 0.1


def test_processes_share_steps(tmp_path, monkeypatch):
    """A process begins with what no other is at; what another one did not finish is done all the same."""
    monkeypatch.setattr(kernel, "cache_folder", lambda: str(tmp_path))
    done = []
    with (tmp_path / "step-0.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        kernel.share_steps(*(functools.partial(done.append, number) for number in range(3)))
    assert done == [1, 2, 0]


def test_steps_without_cache(monkeypatch):
    """Where no lock can be written, each process does all steps in order."""
    monkeypatch.setattr(kernel, "cache_folder", lambda: "/dev/null/cache")
    done = []
    kernel.share_steps(*(functools.partial(done.append, number) for number in range(3)))
    assert done == [0, 1, 2]


@pytest.mark.parametrize("home", ["not writable", "none"])
def test_where_no_cache_can_be_written_kernels_are_compiled_all_the_same(tmp_path, monkeypatch, home):
    """In a container that is read-only, each command ended in a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/dev/null" if home == "not writable" else "~")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    kernel.cache_folder.cache_clear()
    try:
        assert not kernel.compiled_before()
        assert kernel.kernel(lambda number: 3 * number)(14) == 42
    finally:
        kernel.cache_folder.cache_clear()
    assert list(tmp_path.iterdir()) == []


def test_vectors_are_as_wide_as_the_processor_has_them():
    if "+avx512f" not in compiler.config.CPU_FEATURES.split(","):
        pytest.skip("no vectors of 512 bits here")

    @numba.njit
    def rounds(values):
        for i in range(len(values)):
            values[i] = (values[i] ^ np.uint32(3)) + np.uint32(5)

    rounds(np.zeros(64, np.uint32))
    (code,) = rounds.inspect_asm().values()
    assert "zmm" in code


@kernel.inlined
def _twice(number):
    return 2 * number


@kernel.kernel
def _four_times(number):
    return _twice(_twice(number))


def test_a_kernel_pickles_as_its_name_and_calls_kernels_that_nobody_has_called_yet():
    assert "compiled" not in vars(_twice)
    assert pickle.loads(pickle.dumps(_four_times)) is _four_times
    assert "compiled" not in vars(_four_times), "nothing is compiled before a call"
    assert _four_times(3) == 12
    assert pickle.loads(pickle.dumps(_four_times)) is _four_times
    assert len(_four_times.compiled.signatures) == 1
    assert not _twice.compiled.signatures, "it stands in the kernel that calls it"

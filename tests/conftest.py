"""Settings of the process that runs the tests, the choice of tests for `make check`, and fixtures of several folders.

One registry, one set of texts and one Ray serve all tests of a process. A fixture imports its modules only when a test
asks for it: Ray, tables and tokenizers take seconds.
"""

import gc
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# Ray would start a cluster by itself for a task of a test that connects to none, and all later tests of the process
# would join that cluster; now such a task fails
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.night import Night
    from tests.support.submitted import Submitted
    from tests.support.two_keys import Words

# the same examples in every run, however little time the machine has for them
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

NOT_QUICK = re.compile(
    r"ray_cluster|without_ray|\bimport ray\b|scanner\.cluster|subprocess|multiprocessing|inspect(_all)?\(|audited_scan"
    r"|torch|from transformers|from scanner\.generation|\btiny|\bnight\b|\.png|^pytestmark = pytest\.mark\.seconds$",
    re.MULTILINE,
)
"""Words of a test file that needs Ray, a process (drawing asks one for fonts) or seconds for an import or each test."""


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out tests that need Ray, a process or seconds")
    parser.addoption("--one-cluster", action="store_true", help="run all tests that need Ray in one of the processes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if not config.getoption("--one-cluster"):
        return None
    from tests.support.scheduling import OneCluster

    return OneCluster(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among what is imported, now and while tests run, and more seldom in all that they make.

    To look for it took a quarter of the time of collection, and a sixth of that of tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config):
    """With --quick, leave out files that need Ray, a process or torch before they are imported, which takes seconds.

    A folder without other files is left out too, and its conftest.py not imported.
    """
    if not config.getoption("--quick"):
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    tests = [path.read_text(encoding="utf-8") for path in files if path.match("test_*.py")]
    return True if tests and all(map(NOT_QUICK.search, tests)) else None


def pytest_collection_modifyitems(config, items):
    """With --quick, leave out tests with the mark `seconds`."""
    if config.getoption("--quick"):
        slow = [item for item in items if item.get_closest_marker("seconds")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("seconds")]


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_interrupts():
    """Let Ctrl-C interrupt: a script's background jobs ignore it, and processes that tests start would inherit this."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def same_messages() -> Iterator[None]:
    """Users get the same messages in every run: a test that marks texts for them sees the same scores again."""
    from numpy.random import default_rng

    from scanner.registry import users

    draw = users.draw

    def draw_again(snapshot, key, free, count, _rng):
        return draw(snapshot, key, free, count, default_rng([*key.key_id.encode(), free, count]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "draw", draw_again)
        yield


@pytest.fixture(scope="session", autouse=True)
def tokenizers_opened_once() -> Iterator[None]:
    """Each tokenizer is opened once for all tests of this process: a check takes half a second, and a scan two.

    Tests of how one is opened say `pytest.mark.usefixtures("tokenizers_opened_anew")`.
    """
    from tests.support.opened_once import keep_tokenizers

    with pytest.MonkeyPatch.context() as patch:
        keep_tokenizers(patch)
        yield


@pytest.fixture(scope="module")
def tokenizers_opened_anew() -> Iterator[None]:
    """Tokenizers are opened as brickscan opens them."""
    from tests.support.opened_once import keep_no_tokenizer

    with pytest.MonkeyPatch.context() as patch:
        keep_no_tokenizer(patch)
        yield


@pytest.fixture(autouse=True)
def no_process(request) -> Iterator[None]:
    """With --quick, fail a test that starts a process, as Ray does: it belongs in the whole suite.

    It does not ask for `monkeypatch`: pytest then sets `monkeypatch` up after `without_ray` and undoes it before.
    """
    if not request.config.getoption("--quick"):
        yield
        return

    def refuse(*_args, **_options):
        raise AssertionError("a test of `make check` starts no process; see tests/conftest.py")

    from scanner.input import named_files
    from tests.support.inspection import InThisProcess

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_files, "_inspector", InThisProcess)
        patch.setattr(subprocess.Popen, "__init__", refuse)  # the class stays, since Ray makes one of its own of it
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
            patch.setattr(os, name, refuse)
        yield


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory) -> Path:
    """A second tokenizer: one token a byte, and a control token."""
    from tests.support.two_keys import write_byte_tokenizer

    return write_byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "bytes.json")


@pytest.fixture(scope="session")
def registry(tmp_path_factory, byte_tokenizer) -> Path:
    """A registry of keys `green` and `gum`, whose messages alice and bob hold; no test changes it."""
    from tests.support.two_keys import make_registry

    return make_registry(tmp_path_factory.mktemp("registry"), byte_tokenizer)


@pytest.fixture(scope="session")
def words() -> "Words":
    from tests.support.two_keys import words_of_one_token

    return words_of_one_token()


@pytest.fixture(scope="session")
def plain(words) -> Callable[[int, int], str]:
    """A function that makes random text from a number of words and a seed."""
    from tests.support.two_keys import plain_text

    return plain_text(words)


@pytest.fixture(scope="session")
def marked(registry, words) -> Callable[[int, int, int], str]:
    """A function that makes text marked under `green` from a message, a number of words and a seed."""
    from tests.support.two_keys import marked_text

    return marked_text(registry, words)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The machine's Chromium; a test that asks for it is skipped where Chromium is missing.

    Playwright runs an event loop in this thread for as long: beyond the module, tests could start none.
    """
    from tests.support.browser import launched

    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """An embedded cluster for two workers; every scan of this process that runs on Ray joins it."""
    from scanner.cluster.machines import cluster
    from schemas.config import ClusterConfig

    with cluster(ClusterConfig(workers=2)):
        yield


@pytest.fixture
def without_ray(request) -> Iterator[None]:
    """Scans start no actors (tests/support/without_ray.py), except in tests that ask for Ray."""
    with pytest.MonkeyPatch.context() as patch:
        if "ray_cluster" not in request.fixturenames:
            from tests.support.without_ray import put_in_the_place_of_ray

            put_in_the_place_of_ray(patch)
        yield


@pytest.fixture
def opened_once() -> Iterator[None]:
    """The process that reads footers is started once for all tests of this process."""
    from tests.support.opened_once import keep_inspector

    with pytest.MonkeyPatch.context() as patch:  # a patch of its own, since a test may undo `monkeypatch`
        keep_inspector(patch)
        yield


@pytest.fixture
def night(tmp_path, registry, opened_once) -> "Night":
    from tests.support.night import Night

    return Night(tmp_path, registry)


@pytest.fixture
def own_registry(night, registry) -> Path:
    """A copy of the registry that a test may change, without its list of results that other tests signed and edited."""
    from scanner.registry.signed_tables import SIGNED_TABLES_FOLDER

    unsigned = shutil.ignore_patterns(SIGNED_TABLES_FOLDER)
    night.registry = Path(shutil.copytree(registry, night.folder / "registry", ignore=unsigned))
    night.configure()
    return night.registry


@pytest.fixture(scope="session")
def submitted(tmp_path_factory, registry, marked, plain) -> "Iterator[tuple[Submitted, Night, dict[str, bytes]]]":
    """A scan that ran as a job of a real cluster and failed on one document, its night, and the bytes of its keys."""
    from tests.support.submitted import submit_a_night

    yield from submit_a_night(tmp_path_factory.mktemp("submitted"), registry, marked, plain)

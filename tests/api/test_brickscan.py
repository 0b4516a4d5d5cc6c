"""`import brickscan`: its examples run, and its names are those that are promised."""

import copy
import doctest
import os
import pickle
import pydoc
import sys
from concurrent.futures import ThreadPoolExecutor

import brickscan
import polars as pl
import pytest

from schemas.tables import VERDICTS
from tests.support.two_keys import message_of

PROMISED = {
    *("BrickscanError", "Config", "GreenListProcessor", "GumbelProcessor", "OpenedRegistry", "Refused", "ResultTables"),
    "TableError",
    *("TextVerdict", "TextVerdicts", "__version__", "explain", "open", "results", "scan"),
}
"""Names that programs of others import; to remove one or change its meaning needs its own issue."""


@pytest.fixture
def folder(night, own_registry, marked, plain, monkeypatch, without_ray):
    """A night of two documents, as the examples of the package have it: in the folder where they run."""
    texts = [marked(message_of(own_registry, "green", "alice"), 300, 1), plain(300, 2)]
    night.write("posts", texts, doc_id=["post-1", "post-2"])
    monkeypatch.chdir(night.folder)
    return texts


@pytest.mark.costly
@pytest.mark.seconds
def test_the_examples_of_the_package_run(folder):
    found = doctest.testmod(brickscan, globs={"marked": folder[0], "unmarked": folder[1]}, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted >= 12


def test_the_promised_names_are_there_and_no_others():
    assert set(brickscan.__all__) == PROMISED
    assert set(dir(brickscan)) == PROMISED
    with pytest.raises(AttributeError, match="it has BrickscanError, Config"):
        brickscan.shout  # noqa: B018  # asks for it


@pytest.mark.parametrize("name", ["GreenListProcessor", "GumbelProcessor"])
def test_without_torch_a_processor_names_the_extra_and_help_has_the_others(monkeypatch, name):
    """`help(brickscan)` ended with "No module named 'torch'"."""
    for module in [module for module in sys.modules if module.startswith("scanner.generation")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=rf"brickscan\.{name} needs torch; .*whl\[model\]"):
        getattr(brickscan, name)
    words = pydoc.plain(pydoc.render_doc(brickscan))
    assert "open(registry: " in words
    assert f"class {name}" not in words


@pytest.mark.seconds
def test_each_name_is_documented():
    for name in PROMISED - {"__version__"}:
        assert getattr(brickscan, name).__doc__, name


def test_verdicts_are_rows_of_the_table(registry, marked, plain):
    opened = brickscan.open(registry)
    verdicts = opened.check([plain(200, 3), "short", marked(7, 300, 4)])
    assert isinstance(verdicts.frame, pl.DataFrame)
    assert verdicts.frame.columns == VERDICTS.names
    assert [verdict.status for verdict in verdicts] == ["scored", "too_short", "scored"]
    assert verdicts[2].flagged
    assert verdicts[2].message == 7
    assert verdicts[2].users == ()
    assert verdicts[2].naming == "unallocated"
    assert verdicts[2] == opened.check(marked(7, 300, 4))


def test_what_cannot_be_opened_is_refused(registry, tmp_path):
    with pytest.raises(brickscan.Refused, match="give a rate"):
        brickscan.open(registry, false_positive_rate=0)
    with pytest.raises(brickscan.Refused):
        brickscan.open(tmp_path)
    with pytest.raises(brickscan.Refused, match="'other'"):
        brickscan.open(registry, ["other"])


def test_a_mark_and_messages_are_for_processors_and_show_no_key(registry):
    opened = brickscan.open(registry, ["green"])
    held = opened.messages("green", ["alice", "nobody"])
    assert held == {"alice": message_of(registry, "green", "alice")}
    mark = opened.mark("green")
    secret = (registry / "secrets/green.key").read_bytes()
    assert secret.hex() not in repr(mark)
    with pytest.raises(TypeError):
        pickle.dumps(mark)
    assert secret.hex() not in repr(opened) + str(vars(opened)) + str(vars(mark))
    for taken in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            taken(opened)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda opened, _: opened.check(None), "texts: NoneType: give a list of texts"),
        (lambda opened, _: opened.check(b"bytes"), "texts: bytes"),
        (lambda opened, _: opened.check({"a", "set"}), "texts: set"),
        (lambda opened, _: opened.check(["text", None]), "texts: entry 1 is of type NoneType"),
        (lambda opened, _: opened.check([["text"]]), "texts: entry 0 is of type list"),
        (lambda opened, _: opened.messages("green", "alice"), "users: str: give a list"),
        (lambda opened, _: opened.messages("green", [3]), "users: entry 0 is of type int"),
        (lambda _, registry: brickscan.open(registry, "green"), "keys: str: give a list"),
        (lambda _, registry: brickscan.open(registry, false_positive_rate="1e-6"), "'1e-6': give a rate"),
        (lambda _, registry: brickscan.open(registry, false_positive_rate=float("nan")), "nan: give a rate"),
        (lambda *_: brickscan.open(None), "registry: NoneType: give the folder"),
    ],
)
def test_hostile_arguments_are_refused_in_a_sentence(registry, call, words):
    """A text in the place of a list was taken for the list of its letters: `messages` gave none, without a word."""
    with pytest.raises(brickscan.Refused, match=words):
        call(brickscan.open(registry), registry)


@pytest.mark.seconds
def test_threads_and_a_child_process_see_the_same_verdicts(registry, marked, plain):
    opened = brickscan.open(registry)
    texts = [marked(7, 200, 1), *(plain(100, seed) for seed in range(6))]
    expected = list(opened.check(texts))
    with ThreadPoolExecutor(8) as threads:
        assert all(list(verdicts) == expected for verdicts in threads.map(opened.check, [texts] * 16))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(opened.check(texts)) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0

"""A night's page against one that is as it should be: what is told, and with which exit code."""

import json

import numpy as np
import pyarrow as pa
import pytest

from scanner.errors import Refused
from scanner.probe.analysis import analyse
from scanner.probe.expected import NOT_KNOWN, NOT_MARKED, ExpectedPage, changes, read_expected
from tests.probe.planted import ANSWERS, MESSAGE, PLAIN, Planted, answers_table, gumbel_server


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A function from tables of answers to their page, all of one key."""
    planted = Planted(tmp_path_factory.mktemp("expected"), "gumbel-v3", 32, messages=1000, window=4)
    marked = gumbel_server(planted.mark, MESSAGE)

    def page(*tables):
        return analyse(pa.concat_tables(tables), planted.registry)

    page.planted, page.marked = planted, marked
    return page


def half(night, seed: int, name: str = "sampled"):
    """Answers every other of which came from a replica that does not mark."""
    is_marked = (np.arange(ANSWERS) % 2 == 0)[:, None]
    ids = np.where(is_marked, night.planted.ids(night.marked, seed=seed), night.planted.ids(PLAIN, seed=seed + 50))
    return answers_table(ids, night.planted.prompts, name)


def as_expected(page) -> ExpectedPage:
    return ExpectedPage.model_validate_json(json.dumps(page.to_json()))


def test_another_night_is_as_expected(night):
    expected = as_expected(night(night.planted.table(night.marked)))
    assert list(changes(expected, night(night.planted.table(night.marked, seed=3)))) == []


def test_a_replica_without_the_mark_is_told(night):
    """The class is still marked, but only half of its answers are."""
    expected = as_expected(night(night.planted.table(night.marked)))
    (change,) = changes(expected, night(half(night, 1)))
    assert change.code == NOT_MARKED
    assert change.sentence.startswith(
        "key k: differs, as it did not before: the server marks only some answers of class sampled: "
    )


def test_what_differed_before_is_expected_whatever_its_numbers(night):
    expected = as_expected(night(half(night, 1)))
    assert list(changes(expected, night(half(night, 2)))) == []


def test_a_server_that_leaves_the_prompt_out_is_told(night):
    expected = as_expected(night(night.planted.table(night.marked)))
    (change,) = changes(expected, night(night.planted.table(night.marked, prompt_enters=False)))
    assert change.code == NOT_MARKED
    assert "leaves the prompt out of the contexts" in change.sentence


def test_another_configuration_is_told_once(night):
    expected = as_expected(night(night.planted.table(night.marked)))
    other = gumbel_server(night.planted.changed(window=3), MESSAGE)
    (change,) = changes(expected, night(night.planted.table(other)))
    assert change == (NOT_MARKED, "key k: the server marks by window=3; before, it was as the key says")


def test_a_server_without_a_mark_is_told_by_all_answers_together(night):
    """Those of one class are too few to tell."""

    def of_classes(server):
        tables = [night.planted.table(server, name=f"c{seed}", seed=seed) for seed in range(9)]
        return [table.slice(0, 6) for table in tables]

    expected = as_expected(night(*of_classes(night.marked)))
    page = night(*of_classes(PLAIN))
    assert {one.state for one in page.keys[0].classes} == {"cannot tell"}
    assert list(changes(expected, page)) == [
        (NOT_MARKED, "key k: all answers together carry no mark, where 9 of its classes did")
    ]


def test_a_class_that_is_not_asked_is_told(night):
    two = [night.planted.table(night.marked), night.planted.table(night.marked, name="tools", seed=4)]
    (change,) = changes(as_expected(night(*two)), night(two[0]))
    assert change == (NOT_KNOWN, "key k, tools: was marked, and was not asked now")


def test_a_page_that_is_none_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"keys": [{"key_id": "k"}]}')
    with pytest.raises(Refused, match=r"is not a probe\.json"):
        read_expected(tmp_path / "other.json")

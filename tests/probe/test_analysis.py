"""Planted faults are named in words, and none where there is none; unmarked answers claim nothing."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from scanner.errors import Refused
from scanner.probe.analysis import analyse, count_hypotheses
from scanner.probe.readings import answers_of
from scanner.registry import add_users, list_users
from scanner.watermark.format import HasOtherKeys
from tests.probe.planted import (
    ANSWERS,
    GREEDY,
    LENGTH,
    MESSAGE,
    PLAIN,
    VOCABULARY,
    Planted,
    answers_table,
    green_server,
    gumbel_server,
    mixed_server,
    tournament_server,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def gumbel(tmp_path_factory):
    """A key of version 3, whose tree takes a second; no test changes its registry."""
    return Planted(tmp_path_factory.mktemp("gumbel"), "gumbel-v3", 32, messages=1000, window=4)


def states(key) -> dict[str, str]:
    return {one.name: one.state for one in key.classes}


def test_no_fault(gumbel):
    key = gumbel.probe(gumbel.table(gumbel_server(gumbel.mark, MESSAGE)))
    assert (key.named, key.differences, states(key)) == ("as the key says", (), {"sampled": "marked"})
    (found,) = key.classes
    assert found.found.value == 1.0
    assert found.tokens_half < found.tokens_most < LENGTH
    assert found.unmarked is None
    assert key.cannot_tell == ()


def test_wrong_window(gumbel):
    key = gumbel.probe(gumbel.table(gumbel_server(gumbel.changed(window=3), MESSAGE)))
    assert key.differences == ("the server draws by a window of 3 tokens, the key says 4",)


def test_wrong_function(gumbel):
    key = gumbel.probe(gumbel.table(green_server(gumbel.changed("greenlist-v3", gamma="1/4"), MESSAGE)))
    assert len(key.differences) == 1
    assert key.differences[0].startswith("the server marks by the format greenlist-v3 ")


def test_prompt_left_out(gumbel):
    key = gumbel.probe(gumbel.table(gumbel_server(gumbel.mark, MESSAGE), prompt_enters=False))
    words = "the server leaves the prompt out of the contexts: the first 4 tokens of an answer carry no mark"
    assert key.differences == (words,)


def test_prompt_unknown(gumbel):
    table = gumbel.table(gumbel_server(gumbel.mark, MESSAGE)).drop_columns(["prompt_ids"])
    key = gumbel.probe(table)
    assert key.differences == ()
    assert key.cannot_tell == (
        "whether the first 4 tokens of an answer are drawn with the prompt before them: no answer comes with the "
        "prompt that the model saw",
    )


@pytest.mark.parametrize("server", [PLAIN, GREEDY])
def test_a_class_unmarked(gumbel, server):
    marked = gumbel.table(gumbel_server(gumbel.mark, MESSAGE), "sampled")
    key = gumbel.probe(marked, gumbel.table(server, "tools", seed=1))
    assert [(one.name, one.state) for one in key.classes] == [("tools", "unmarked"), ("sampled", "marked")]
    assert key.differences == ()


def test_a_class_of_few_answers_cannot_be_told(gumbel):
    marked = gumbel.table(gumbel_server(gumbel.mark, MESSAGE), "sampled")
    key = gumbel.probe(marked, answers_table(gumbel.ids(PLAIN)[:1, :20], gumbel.prompts[:1], "tools"))
    assert states(key) == {"tools": "cannot tell", "sampled": "marked"}
    assert key.classes[0].more_answers >= 1
    assert key.cannot_tell[0].startswith("class tools: too few tokens to tell whether it is marked; about ")


def test_half_of_the_answers(gumbel):
    """A replica without the mark."""
    is_marked = (np.arange(ANSWERS) % 2 == 0)[:, None]
    ids = np.where(is_marked, gumbel.ids(gumbel_server(gumbel.mark, MESSAGE)), gumbel.ids(PLAIN, seed=1))
    key = gumbel.probe(answers_table(ids, gumbel.prompts))
    share = key.classes[0].unmarked
    assert share.low < 0.5 < share.high
    assert key.differences[0].startswith("the server marks only some answers of class sampled: ")
    assert key.differences[0].endswith(", unless these left it no choice of words")


def test_no_mark_at_all(gumbel):
    key = gumbel.probe(gumbel.table(GREEDY))
    assert (key.named, key.differences) == (None, ())


def test_another_tokenizer_by_ids(gumbel):
    """The server's own ids are those of another vocabulary."""
    other = Planted.ids(gumbel, gumbel_server(gumbel.mark, MESSAGE))
    table = answers_table((other + 1) % len(VOCABULARY), gumbel.prompts).append_column("ids", pa.array(other.tolist()))
    key = gumbel.probe(table)
    assert len(key.differences) == 1
    assert key.differences[0].startswith("the server's tokenizer differs from the key's: its own token ids carry")


def test_another_tokenizer_by_its_file(gumbel, tmp_path):
    words = np.random.default_rng(0).permutation(VOCABULARY)
    other = write_tokenizer(tmp_path / "other" / "tokenizer.json", words)
    table = answers_table(words[gumbel.ids(gumbel_server(gumbel.mark, MESSAGE))])
    assert gumbel.probe(table).named is None
    key = gumbel.probe(table, tokenizers=[other])
    assert key.differences == ("the server uses a tokenizer other than the key's: other/tokenizer.json",)


def test_ids_that_are_not_of_the_texts(gumbel):
    ids = gumbel.ids(gumbel_server(gumbel.mark, MESSAGE))
    table = answers_table(ids, gumbel.prompts).append_column("ids", pa.array(np.roll(ids, 1, axis=1)[::-1].tolist()))
    key = gumbel.probe(table)
    assert key.classes[0].state == "marked"


def test_users_are_named(tmp_path):
    planted = Planted(tmp_path, "gumbel-v3", 32, messages=1000, window=4)
    add_users(planted.registry, None, ["alice", "bob"])
    held = list_users(planted.registry).filter(pl.col("user_id").is_in(["alice", "bob"]))
    message_of = dict(zip(held["user_id"], held["message"], strict=True))
    users = [("alice", "bob")[i % 2] for i in range(ANSWERS)]
    messages = np.array([message_of[user] for user in users])
    table = planted.table(gumbel_server(planted.mark, messages)).append_column("user_id", pa.array(users))
    (found,) = planted.probe(table).classes
    assert (found.users.texts, found.users.right, found.users.wrong) == (ANSWERS, ANSWERS, 0)
    exchanged = [{"alice": "bob", "bob": "alice"}[user] for user in users]
    place = table.column_names.index("user_id")
    key = planted.probe(table.set_column(place, "user_id", pa.array(exchanged)))
    assert key.named is None
    key = planted.probe(table.set_column(place, "user_id", pa.array([*exchanged[:1], *users[1:]])))
    (sentence,) = key.differences
    assert f"for the wrong users: 1 of {ANSWERS} answers carries a message" in sentence


def test_wrong_share_of_green_tokens(tmp_path):
    planted = Planted(tmp_path, "greenlist-v3", 32, messages=1000, window=4, gamma="1/4")
    assert planted.probe(planted.table(green_server(planted.mark, MESSAGE))).differences == ()
    key = planted.probe(planted.table(green_server(planted.changed(gamma="1/2"), MESSAGE)))
    assert key.differences == ("the server uses γ = 0.5, the key says 0.25",)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.1, None),
        (0.0, "the server marks with key A of the two alone"),
        (1.0, "the server marks with key B of the two alone"),
        (0.5, "the server marks about {}% of the tokens with the second key, but the key says 10%"),
    ],
)
def test_two_keys_of_vllm(tmp_path, share, words):
    planted = Planted(tmp_path, "vllm-dual-key", 8)
    assert isinstance(planted.form, HasOtherKeys)
    first, second = (
        gumbel_server(one.format.open(one.secret.value)) for one in planted.form.other_keys(planted.secret)
    )
    key = planted.probe(planted.table(mixed_server(first, second, share), alone=True))
    assert key.differences in ([()] if words is None else [(words.format(number),) for number in range(42, 59)])


def test_two_keys_of_sglang(tmp_path):
    planted = Planted(tmp_path, "sglang-two-keys", 16)
    assert planted.probe(planted.table(gumbel_server(planted.mark))).differences == ()


@pytest.mark.long
def test_layers(tmp_path):
    planted = Planted(tmp_path, "synthid-table", 240)
    assert planted.probe(planted.table(tournament_server(planted.mark))).differences == ()
    key = planted.probe(planted.table(tournament_server(planted.mark, layers=15)))
    assert key.differences == ("the server marks only with the keys of the first 15 layers, but the key has more",)


@pytest.mark.parametrize("seed", range(3))
def test_unmarked_answers_claim_nothing(tmp_path, seed):
    """A page claims a mark at a rate of 0.01 at most: fixed seeds, and no page of these does."""
    planted = Planted(tmp_path, "greenlist-v3", 32, seed, messages=50, window=4, gamma="1/4")
    key = planted.probe(planted.table(PLAIN, "a"), planted.table(PLAIN, "b", seed=1))
    assert (key.named, key.differences) == (None, ())
    assert "marked" not in states(key).values()


def test_rows_without_a_text_are_counted(gumbel):
    table = pa.table(
        {
            "text": [" a b c", None, None, ""],
            "class": ["a", "a", "b", "b"],
            "error": [None, "429: too many", "500", "500"],
        }
    )
    key = gumbel.probe(table)
    of_class = {one.name: (one.answers, one.without_text, one.error) for one in key.classes}
    assert of_class == {"a": (1, 1, "429: too many (once)"), "b": (0, 2, "500 (2 times)")}
    assert "class b: none of its 2 requests got a text" in key.cannot_tell


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"answer": ["a"]}), "no column `text`"),
        (pa.table({"text": [1]}), "is of type int64; text is needed"),
        (pa.table({"text": pa.array([b"\xff"]).view(pa.string())}), "`text` holds bytes that are not valid"),
        (pa.table({"text": ["", None]}), "none of 2 answers has a text"),
        (pa.table({"text": ["a"], "ids": [[-1]]}), "not a list of token ids"),
        (pa.table({"text": ["a"] * 1001, "class": [str(i) for i in range(1001)]}), "have 1,001 classes"),
        (pa.table([["a"], ["b"]], names=["text", "text"]), "column `text` several times"),
        (pa.table({"text": ["a", "b"], "class": ["all answers", "b"]}), "give it another name"),
    ],
)
def test_refused(gumbel, table, words):
    with pytest.raises(Refused, match=words):
        analyse(table, gumbel.registry)


def test_a_huge_answer_is_read_from_its_beginning():
    read = answers_of(pa.table({"text": ["a" * 2**20, "b"], "prompt": ["c" * 2**20 + "d", None]}))
    assert [len(text) for text in read.texts] == [2**18, 1]
    assert (len(read.prompts[0]), read.prompts[0][-1], read.prompts[1]) == (2**18, "d", None)
    assert read.notes == {"only the first 262,144 characters were tested": 1}


def test_categories_are_read_as_text():
    kinds = pa.array(["a", "b", "a"]).dictionary_encode()
    assert answers_of(pa.table({"text": ["x", "y", "z"], "class": kinds})).classes == ("a", "b", "a")


def test_hypotheses_are_counted(gumbel):
    key = gumbel.probe(gumbel.table(PLAIN))
    assert count_hypotheses(gumbel.registry) <= key.hypotheses
    json.dumps(analyse(gumbel.table(PLAIN), gumbel.registry).to_json())


def test_progress_counts_every_test(gumbel):
    steps = []
    key = gumbel.probe(gumbel.table(PLAIN), gumbel.table(GREEDY, "greedy"), watch=lambda *at: steps.append(at))
    tests = 3 * key.hypotheses  # on each of two classes, and on all answers
    assert steps == [(done, tests) for done in range(1, tests + 1)]

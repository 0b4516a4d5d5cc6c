"""Neighbours of a configuration: each opens, draws otherwise, and shows no secret."""

import numpy as np
import pytest

from scanner.probe.hypotheses import STATED, Hypothesis, hypotheses_of
from scanner.watermark.formats import FORMATS, make_format
from tests.probe.planted import secret_for

VOCABULARY = 300
KEYS = {
    "greenlist": ({"window": 4, "gamma": "1/4"}, 32),
    "gumbel": ({"window": 4}, 32),
    "greenlist-v3": ({"window": 4, "gamma": "1/4", "groups": 40, "beacon": "5a" * 32}, 32),
    "gumbel-v3": ({"window": 4, "beacon": "5a" * 32}, 32),
    "hf-lefthash": ({"vocab_size": 320}, 8),
    "hf-selfhash": ({"vocab_size": 320, "context_width": 4}, 8),
    "sbw": ({}, 8),
    "vllm-gumbel": ({}, 8),
    "vllm-dual-key": ({}, 8),
    "sglang-one-key": ({}, 8),
    "sglang-two-keys": ({}, 16),
    "sglang-user-keys": ({}, 32),
    "synthid-table": ({}, 240),
    "synthid-mixed": ({}, 240),
    "three-bricks-openai": ({"vocab_size": 320}, 16),
    "three-bricks-maryland": ({"vocab_size": 320}, 16),
}


def neighbours(name: str) -> tuple[list[Hypothesis], bytes]:
    parameters, size = KEYS[name]
    secret = secret_for(name, size)
    if name.startswith(("hf", "sbw")):
        secret = (15_485_863).to_bytes(8, "big")
    messages = 1600 if "groups" in parameters else 1
    return hypotheses_of(make_format(name, parameters), secret, messages, VOCABULARY), secret


def test_every_format_has_neighbours():
    assert set(KEYS) == set(FORMATS)


@pytest.mark.parametrize("name", KEYS)
def test_neighbours_open_and_differ(name):
    found, secret = neighbours(name)
    assert found[0].name == STATED
    assert len(found) >= 5
    assert len({one.name for one in found}) == len(found)
    assert len({(one.form.name, str(one.form.model_dump()), one.secret.value) for one in found}) == len(found)
    for one in found:
        assert one.form.open(one.secret.value).law is not None
        one.form.check_messages(one.messages)
        shown = f"{one.name} {one.words} {one!r}"
        assert secret.hex() not in shown
        assert str(int.from_bytes(secret[:8], "big")) not in shown
        assert bool(one.words) == (one.name != STATED)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("greenlist-v3", "uses γ = 0.5, the key says 0.25"),
        ("greenlist-v3", "draws by a window of 3 tokens, the key says 4"),
        ("gumbel-v3", "draws by a window of 1 token, the key says 4"),
        ("hf-lefthash", "draws over 300 tokens, the key says 320"),
        ("sbw", "seeds by 'minhash', the key says 'selfhash'"),
        ("vllm-dual-key", "marks with key A of the two alone"),
        ("sglang-two-keys", "has keys A and B exchanged"),
        ("synthid-table", "has the layers' keys in reverse order"),
        ("synthid-mixed", "marks with layers 1 to 15 of 30 alone"),
    ],
)
def test_words(name, words):
    assert words in [one.words for one in neighbours(name)[0]]


def test_a_width_that_changes_no_draw_is_no_neighbour():
    """In lefthash the token before decides, whatever the width."""
    assert not [one for one in neighbours("hf-lefthash")[0] if "window" in one.words]


def test_runs_of_layers_have_their_keys():
    found, secret = neighbours("synthid-table")
    keys = np.frombuffer(secret, ">u8")
    runs = [one for one in found if one.part is not None]
    assert [one.part.layers for one in runs] == [(0, 7), (8, 15), (15, 22)]
    for one in runs:
        assert np.array_equal(np.frombuffer(one.secret.value, ">u8"), keys[slice(*one.part.layers)])

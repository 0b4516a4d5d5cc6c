"""Why nothing was found in one text; nothing of it is a flag."""

import numpy as np
import pytest
from click.testing import CliRunner

from jobs.check import check
from scanner.registry import load_registry, open_key
from scanner.watermark.formats import make_format
from tests.probe.planted import (
    PLAIN,
    gumbel_server,
    make_registry,
    prompts_of,
    secret_for,
    texts_of,
    token_ids,
)

MESSAGE = 7


@pytest.fixture(scope="module")
def secret():
    return secret_for("why", 32)


@pytest.fixture(scope="module")
def registry(tmp_path_factory, secret):
    return make_registry(tmp_path_factory.mktemp("registry"), "gumbel-v3", secret, 100, window=4)


@pytest.fixture(scope="module")
def key(registry):
    return load_registry(registry).keys[0]


def said_of(registry, ids: np.ndarray, *options: str) -> str:
    (text,) = texts_of(ids)
    done = CliRunner().invoke(check, ["--registry", str(registry), *options], input=text, standalone_mode=False)
    assert done.exception is None
    assert done.return_value == 0
    return done.output


def ids_of(server, length: int) -> np.ndarray:
    return token_ids(server, prompts_of(1, 0), length, 0)


def test_nothing_is_said_unless_asked(registry):
    assert "why nothing was found" not in said_of(registry, ids_of(PLAIN, 60))


def test_a_short_text(registry):
    said = said_of(registry, ids_of(PLAIN, 60), "--why")
    assert "60 tokens, of which 56 count" in said
    assert "too short for most marks: a fairly strong mark is found from about " in said
    assert "there is no evidence for any mark that was tried; the best one: " in said


def test_repeats(registry):
    once = ids_of(PLAIN, 40)
    said = said_of(registry, np.concatenate([once, once], axis=1), "--why")
    assert "80 tokens, of which 40 count (36 repeat earlier ones or are left out)" in said


def test_another_window(registry, key, secret):
    other = make_format("gumbel-v3", key.parameters | {"window": 3}).open(secret)
    said = said_of(registry, ids_of(gumbel_server(other, MESSAGE), 200), "--why")
    assert "no mark found" in said
    assert "it looks as if a server draws by a window of 3 tokens, the key says 4: " in said
    assert secret.hex() not in said


def test_a_text_that_is_marked_in_part(registry, key):
    """A twentieth of it, which the whole text hides; a rate of 1e-60 keeps windows from being found."""
    marked = ids_of(gumbel_server(open_key(registry, key), MESSAGE), 60)
    ids = np.concatenate([ids_of(PLAIN, 1065), marked, ids_of(PLAIN, 75)], axis=1)
    said = said_of(registry, ids, "--why", "--fpr", "1e-60")
    assert "no mark found" in said
    assert "carry the key's mark and the rest do not, as after edits" in said


def test_a_flag_needs_no_reasons(registry, key):
    said = said_of(registry, ids_of(gumbel_server(open_key(registry, key), MESSAGE), 200), "--why")
    assert "contains text marked for" in said
    assert "why nothing was found" not in said

"""A check of one short text compiles nothing, and says what compiled kernels say."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.detection.one_text import OpenedCheck, TextCheck
from scanner.watermark.kernel import interpreted
from tests.support.groups import GROUPS, USERS, held, make_key, writer
from tests.support.two_keys import words_of_one_token


@pytest.fixture(scope="module", params=["greenlist-v3", "gumbel-v3"])
def key(request, tmp_path_factory):
    return make_key(tmp_path_factory.mktemp("interpreted") / "registry", request.param, groups=GROUPS)


@pytest.fixture(scope="module")
def check(key):
    return OpenedCheck(TextCheck.of_registry(key[0], (), 1e-6), fast=False)


def both_ways(check, text: str) -> tuple[dict, dict]:
    """The row of a text by kernels that Python runs, and by compiled ones."""
    with interpreted():
        (first,) = check.of_each_key(text.encode())
    (second,) = check.of_each_key(text.encode())
    return ({name: repr(value) for name, value in row.items() if name != "scanned_at"} for row in (first, second))


@pytest.mark.costly
def test_marked_texts_have_equal_rows(key, check):
    """As a whole, as a part of other text, disguised, and for two users; proofs run too."""
    words, messages = words_of_one_token(), held(key)
    write = writer(key, words)
    first, second = (messages[user] for user in USERS[:2])
    plain = "".join(" " + word for word in words.words[:300])
    texts = {
        "whole": write(first, 150, 1),
        "part": plain + "\n\n" + write(first, 100, 2) + "\n\n" + plain,
        "disguised": write(first, 150, 3).replace("e", "e\u200b"),
        "two users": write(first, 120, 4) + write(second, 120, 5),
        "shared": write(first, 200, 6, shared=True),
        "plain": plain,
        "one token": " a",
        "none": "",
    }
    flagged = {}
    for name, text in texts.items():
        by_python, compiled = both_ways(check, text)
        assert by_python == compiled, name
        flagged[name] = compiled["flagged"] == "True"
    assert flagged["whole"]
    assert flagged["part"]
    assert not flagged["plain"]


@pytest.mark.costly
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_has_equal_rows(check, text):
    by_python, compiled = both_ways(check, text)
    assert by_python == compiled


CHECK = """
import sys
from scanner.detection.one_text import TextCheck, check_text
check_text(TextCheck.of_registry(sys.argv[1], (), 1e-6), ("some words of a post " * int(sys.argv[2])).encode())
print("numba" in sys.modules)
"""


@pytest.mark.seconds
@pytest.mark.parametrize(("times", "compiles"), [(30, "False"), pytest.param(2_000, "True", marks=pytest.mark.costly)])
def test_a_short_text_imports_no_compiler_and_a_long_one_does(key, times, compiles):
    command = [sys.executable, "-W", "error", "-c", CHECK, str(key[0]), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == compiles

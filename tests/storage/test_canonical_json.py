"""Canonical JSON against the examples of RFC 8785, and JSON that two readers could read differently."""

import json
import random

import pytest

from scanner.storage.canonical_json import read_strictly, write_canonical


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ([], "[]"),
        ({"b": [1, 2, {"d": None, "c": True}], "a": False}, '{"a":false,"b":[1,2,{"c":true,"d":null}]}'),
        # RFC 8785, 3.2.2.2 and 3.2.3
        ('€$\u000f\nA\'B"\\\\"/', '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'),
        (
            {"€": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\x80": 6, "ö": 7},
            '{"\\r":2,"1":4,"\x80":6,"ö":7,"€":1,"😀":5,"\ufb33":3}',
        ),
        ([0.0, 1.0, 0.5, 0.1, 1e-6, 1e-7, 1.5e-7, 0.000001234, 1 / 3], None),
        (-(2**53), "-9007199254740992"),
        ("\x7f\u2028", '"\x7f\u2028"'),
    ],
)
def test_values_are_written_in_one_way(value, text):
    if text is None:
        text = "[0,1,0.5,0.1,0.000001,1e-7,1.5e-7,0.000001234,0.3333333333333333]"
    assert write_canonical(value) == text.encode()


def test_real_numbers_come_back_and_have_the_form_of_ecmascript():
    draw = random.Random(1)
    for _ in range(5000):
        number = draw.random() * 10 ** -draw.randrange(0, 300)
        text = write_canonical(number).decode()
        assert float(text) == number
        assert ("e" in text) == (0 < number < 1e-6)
        assert len(text.partition("e")[0].replace(".", "").strip("0")) == len(
            repr(number).partition("e")[0].replace(".", "").strip("0")
        )


@pytest.mark.parametrize("value", [2**53 + 1, -0.5, 1.5, float("nan"), {1: 2}, b"x", {"a": {1}}])
def test_what_has_no_canonical_form_here_is_refused(value):
    with pytest.raises(ValueError, match="cannot be written as canonical JSON"):
        write_canonical(value)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(ValueError, match="surrogates"):
        write_canonical({"a": "\ud800"})


def test_json_is_read_as_it_stands():
    value = {"a": [1, 2.5, None, True, "ö"], "b": {"a": {}}}
    assert read_strictly(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1, "a": 1}', "the name 'a' occurs twice"),
        (b'{"a": 1, "\\u0061": 2}', "the name 'a' occurs twice"),
        (b'[{"b": {"c": 1, "d": 2, "c": 3}}]', "the name 'c' occurs twice"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"-Infinity", "-Infinity is not a JSON number"),
        (b"\xff", "no UTF-8"),
        (b"{", "not JSON"),
        (b"[" * 200_000, "too deeply"),
        (b"1" * 5000, "digits"),
    ],
)
def test_json_with_two_readings_is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        read_strictly(raw)

"""The page: signed, printable, without a script, a secret, or a text that nobody asked for."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from scanner.errors import Refused
from scanner.probe.analysis import analyse
from scanner.probe.page import in_short, page_of, write_page
from tests.probe.planted import (
    PLAIN,
    answers_table,
    gumbel_server,
    make_registry,
    prompts_of,
    secret_for,
    token_ids,
)

CHECK_REPORT = Path(__file__).parents[2] / "docs" / "examples" / "check_report.py"
HOSTILE = '<script>alert(1)</script>\u202e\x1b[31m "quoted" & \u200b'


@pytest.fixture(scope="module")
def secret():
    return secret_for("a page", 8)


@pytest.fixture(scope="module")
def result(tmp_path_factory, secret):
    registry = make_registry(tmp_path_factory.mktemp("registry"), "vllm-gumbel", secret)
    from scanner.registry import load_registry, open_key

    mark = open_key(registry, load_registry(registry).keys[0])
    prompts = prompts_of(8, 0)
    marked = token_ids(gumbel_server(mark), prompts, 60, 0)
    plain = token_ids(PLAIN, prompts, 60, 1)
    hostile = pa.table(
        {"text": [HOSTILE, None], "class": [HOSTILE] * 2, "error": [None, HOSTILE], "note": [HOSTILE, None]}
    )
    tables = [answers_table(marked, prompts), answers_table(plain, prompts, "tools"), hostile]
    return analyse(pa.concat_tables(tables, promote_options="default"), registry)


def test_no_secret(result, secret, tmp_path):
    write_page(result, tmp_path, texts=True, signing=tmp_path / "keys")
    number = int.from_bytes(secret, "big")
    for path in (tmp_path / name for name in ("probe.json", "probe.html", "probe.report.json", "probe.keys.json")):
        written = path.read_text()
        for shown in (secret.hex(), str(number), str(number & 0xFFFFFFFF), f"{number:x}"):
            assert shown not in written
        assert "PRIVATE" not in written


def test_texts_only_on_request(result):
    without, with_texts = page_of(result), page_of(result, texts=True)
    first = dict(result.samples)["sampled"].split()[:5]
    assert " ".join(first) not in without
    assert " ".join(first) in with_texts
    assert " ".join(first) not in json.dumps(result.to_json())


def test_strangers_text_is_escaped(result):
    html = page_of(result, texts=True)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "default-src 'none'" in html


def test_unmarked_on_top(result):
    html = page_of(result)
    assert html.index('<th scope="row">tools') < html.index('<th scope="row">sampled')
    assert "These classes leave unmarked: tools." in html


def test_signature(result, tmp_path):
    files = write_page(result, tmp_path / "out", signing=tmp_path / "keys")
    assert [path.name for path in files] == ["probe.json", "probe.html", "probe.report.json", "probe.keys.json"]
    check = runpy.run_path(str(CHECK_REPORT))["check"]
    report, plain, keys = (files[place].read_bytes() for place in (2, 0, 3))
    assert check(report, plain, keys)["type"] == "brickscan probe report 1"
    with pytest.raises(ValueError, match="another text"):
        check(report, plain + b" ", keys)
    again = write_page(result, tmp_path / "out", signing=tmp_path / "keys")
    assert json.loads(again[3].read_bytes()) == json.loads(keys)


def test_unsigned(result, tmp_path):
    assert [path.name for path in write_page(result, tmp_path)] == ["probe.json", "probe.html"]
    assert json.loads((tmp_path / "probe.json").read_text())["keys"][0]["key_id"] == "k"


def test_differences_are_in_the_short_words(result):
    key = replace(result.keys[0], differences=("the server uses γ = 0.5, the key says 0.25",))
    (first, *_) = in_short(replace(result, keys=(key,)))
    assert first.startswith("Key k: the server marks, and differs: the server uses γ = 0.5, the key says 0.25. These ")


def test_a_page_of_nothing_found(result):
    nothing = replace(result, keys=tuple(replace(key, named=None, differences=()) for key in result.keys))
    assert "no mark is found, neither as the key says nor under any of" in page_of(nothing)


def test_a_folder_that_cannot_be(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="name another folder"):
        write_page(result, tmp_path / "file")

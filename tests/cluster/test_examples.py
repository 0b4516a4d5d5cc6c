"""The scripts of docs/examples that need no model do their work."""

import runpy
import sys

import brickscan
import pytest

from scanner.watermark.formats import FORMATS
from tests.support.examples import FOLDER, example
from tests.support.two_keys import TOKENIZER, message_of

ELSEWHERE = {"mark_and_find", "serve_with_vllm", "check_report", "to_parquet", "send_to_coop", "send_to_ozone"}
"""Scripts with a test in tests/generation, in tests/infra/vllm on a real server, in tests/service or tests/input, or in
tests/test_senders.py.
"""


def test_every_script_has_a_test():
    assert {path.stem for path in FOLDER.glob("*.py")} == ELSEWHERE | {"scan_and_query", "add_a_format"}


@pytest.mark.parametrize("name", ["scan_and_query", "add_a_format", "to_parquet", "send_to_coop", "send_to_ozone"])
def test_a_script_without_its_arguments_says_how_it_is_called(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=f"python docs/examples/{name}.py"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


@pytest.mark.usefixtures("without_ray")
def test_a_scan_and_a_question(night, registry, marked, plain, capsys):
    alice = message_of(registry, "green", "alice")
    night.write("a", [marked(alice, 60, 1), marked(alice, 60, 2), plain(60, 3), "short"])
    script = example("scan_and_query")
    script.main(night.config)
    (row,) = script.users_found(brickscan.results(night.results)).rows()
    assert row[:2] == ("alice", 2)
    assert row[2] < -6
    assert capsys.readouterr().out.splitlines()[-3:-1] == ["user  distinct texts  log10 of the smallest p", str(row)]


def test_a_format_of_ones_own(tmp_path, monkeypatch, capsys):
    script = example("add_a_format")
    monkeypatch.setitem(FORMATS, script.HalfOfAll.name, None)  # so that monkeypatch takes it out again
    script.main(TOKENIZER, tmp_path / "registry")
    first, found, plain = capsys.readouterr().out.splitlines()
    assert first == "Opened(half-of-all;salt=3) commitment: None"
    (hits, scored), of_all = (line.split(" count")[0].split(" of ") for line in (found, plain))
    assert (hits == scored, of_all[0] == hits, of_all[1]) == (True, True, "50")

"""What people are shown of a pass of a model: before it, at its end, and of a night that it did not end."""

import json

import pytest

from scanner.looks.levels.follow_up import ModelPass
from tests.support.command_line import call
from tests.support.foregone import chain_key, chain_model, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import USERS, held
from tests.support.night import Night
from tests.support.two_keys import words_of_one_token

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray")]


@pytest.fixture
def foregone(tmp_path, chain_key, chain_model) -> Night:  # noqa: F811
    """Two files; by levels alone a text of the first is flagged."""
    write = writer_of_foregone(chain_key[1], words_of_one_token())
    night = Night(tmp_path, chain_key[0])
    night.write("a", [write(held(chain_key)[USERS[3]], 25, 3), write(None, 25, 11)])
    night.write("b", [write(None, 25, 12)])
    night.configure(more=f'[levels]\nmodel = "{chain_model}"\n')
    return night


def check(night: Night) -> tuple[str, dict[str, object]]:
    """The lines of `--check` on the model, and its facts."""
    lines = call("scan", night.config, "--check")[1].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("model"))
    code, out, err = call("scan", night.config, "--check", "--summary", "json")
    assert (code, err) == (0, "")
    facts = json.loads(out)["model"]
    return " ".join(" ".join(lines[first : first + 2]).split()), facts


def test_a_night_that_the_model_has_not_read_is_not_final_and_is_gone_on_with(foregone: Night, monkeypatch) -> None:
    said, facts = check(foregone)
    assert (
        "0 of 2 shards read; of the others at most 1 of the unmarked texts, and marked ones: where one text in 10"
        in said
    )
    assert facts["core_hours"] > 0
    assert len(str(facts["reader_sha256"])) == 64

    file, real, kept = next(foregone.input.glob("a.parquet")), ModelPass.run, foregone.folder / "kept"

    def without_a_file(*given: object) -> object:
        file.rename(kept)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(ModelPass, "run", without_a_file)
        code, out, _ = call("scan", foregone.config)
    kept.rename(file)
    summary = " ".join(out.split())
    assert "levels 1 text read by the model; 0 more documents flagged by their levels" in summary
    assert "NOT FINAL: the model has not read 1 shard; run the same command again to continue" in summary
    assert "its night is not final: the model has not read 1 shard" in call("status", foregone.results)[1]
    report = call("report", foregone.config, "--out", foregone.folder / "report")[1]
    assert "the model has not read everything that scan" in report
    said, left = check(foregone)
    assert "1 of 2 shards read" in said
    assert left["core_hours"] > 0

    code, out, _ = call("scan", foregone.config, "--summary", "json")
    levels = json.loads(out)["levels"]
    assert (code, levels["texts"], levels["flagged"], levels["left"]) == (0, 2, 1, 0)
    assert "not final" not in call("status", foregone.results)[1]
    said, left = check(foregone)
    assert "2 of 2 shards read" in said
    assert left["core_hours"] == 0


def test_a_summary_without_a_model_says_nothing_of_one(foregone: Night) -> None:
    foregone.configure()
    assert "levels" not in call("scan", foregone.config)[1]
    assert "model" not in json.loads(call("scan", foregone.config, "--check", "--summary", "json")[1])

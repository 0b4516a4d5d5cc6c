"""Flags by levels, without the model: explained, replayed, erased, dropped."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from scanner import generation
from scanner.errors import Refused
from scanner.evidence.case import find_case
from scanner.evidence.explainer import Explainer
from scanner.evidence.page import page
from scanner.evidence.replay import replay, write_claim
from scanner.evidence.sentences import record_of, what_was_found
from scanner.looks.levels.on_record import LevelScoring, read_surprise
from scanner.registry import check_secret
from scanner.results.retention import erase_user, retain
from scanner.results.transactions import read_whole
from scanner.watermark.formats import format_of
from schemas.words import LEVELS
from tests.support.foregone import chain_key, chain_model, unknowing, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import GROUPS, USERS, held, make_key
from tests.support.night import Night
from tests.support.signed_results import take_as_it_is
from tests.support.signed_tables import sign_as_it_is
from tests.support.two_keys import words_of_one_token

pytestmark = [pytest.mark.costly]


@pytest.fixture(scope="module")
def flagged(tmp_path_factory, chain_key, chain_model) -> Night:  # noqa: F811
    """A night with a text that weights alone flag; its model is gone since."""
    return flagged_night(tmp_path_factory.mktemp("flagged"), chain_key, chain_model)


@pytest.fixture(scope="module")
def group_key(tmp_path_factory):
    return make_key(tmp_path_factory.mktemp("group") / "registry", "gumbel-v3", groups=GROUPS, seeds=8)


@pytest.fixture(scope="module")
def flagged_in_group(tmp_path_factory, group_key, chain_model) -> Night:  # noqa: F811
    return flagged_night(tmp_path_factory.mktemp("flagged-in-group"), group_key, chain_model, chosen=35)


def flagged_night(folder: Path, key, chain_model: Path, chosen: int = 25) -> Night:  # noqa: F811
    from tests.support.without_ray import put_in_the_place_of_ray

    night = Night(folder, key[0])
    write, message = writer_of_foregone(key[1], words_of_one_token()), held(key)[USERS[3]]
    night.write("a", [write(None, 25, 1), write(message, chosen, 3)])
    model = night.folder / "model"
    shutil.copytree(chain_model, model)
    night.configure(more=f'[levels]\nmodel = "{model}"\n')
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        night.scan()
    shutil.rmtree(model)
    return night


def place(night: Night) -> str:
    return f"{next(night.input.glob('*.parquet'))}:1"


def test_an_explanation_says_how_tokens_counted_and_agrees_with_the_row(flagged: Night) -> None:
    explained = Explainer(flagged.config).explain(place(flagged))
    row = explained.row
    assert (row["look"], row["user_id"], row["naming"]) == (LEVELS, USERS[3], "named")
    assert explained.text_evidence is not None
    assert explained.text_evidence.score == pytest.approx(row["score"])
    assert explained.text_evidence.log10_p == pytest.approx(row["log10_p"])
    said = " ".join(sentence for _, sentence in what_was_found(explained))
    assert "counts more the less a language model expected it" in said
    legend = page(explained).split('class="legend"')[1].split("</p>")[0]
    assert "A token counts more the less a language model expected it." in legend


def test_an_explanation_says_what_tells_the_user_from_the_group_as_the_slow_path_does(flagged_in_group, group_key):
    explained = Explainer(flagged_in_group.config).explain(place(flagged_in_group))
    registry, test = group_key
    text = pl.read_parquet(next(flagged_in_group.input.glob("*.parquet")))["text"][1]
    case = find_case(flagged_in_group.results, 1e-6, place(flagged_in_group))
    steps = read_surprise(flagged_in_group.results, case.row, case.scan, case.where)
    form = format_of(test.key)
    proof = LevelScoring(text, steps, case.where).slow_path(form.proof(check_secret(registry, test.key)), test)
    ids = test.tokenizer.reference.encode([text]).ids
    scored, (score,), group = proof.user_evidence(ids, [explained.row["message"]], "ngram")
    assert explained.user_evidence is not None
    assert explained.user_evidence[:2] == (scored, group) == (explained.user_evidence.scored, GROUPS)
    log10_p = explained.user_evidence.log10_p
    assert log10_p == pytest.approx(proof.log10_p(score, scored), rel=1e-9)
    assert explained.row["log10_p"] < log10_p < -6  # steps of the group are left out
    among = 1 - (1 - 10**log10_p) ** group
    corrected = 1 - (1 - among) ** explained.row["correction"]
    assert 10**explained.log10_p_own == pytest.approx(corrected, rel=1e-3)
    assert record_of(explained)["name"]["log10_p"] == explained.log10_p_own
    assert f"{scored:,} scored tokens tell them apart" in dict(what_was_found(explained))["How sure the name is"]


def test_a_replay_computes_the_verdict_again_without_the_model(flagged: Night, chain_model: Path) -> None:  # noqa: F811
    """Where the model is there, it reads again."""
    found = replay(flagged.config, place(flagged))
    assert "name the same model in [levels]" in (found.fields[-1].why or "")
    model = flagged.folder / "model"
    model.symlink_to(chain_model)
    read = replay(flagged.config, place(flagged)).fields[-1]
    model.unlink()
    assert (read.field, read.equal, read.recorded) == ("reading", True, pytest.approx(read.again))
    assert {field.field: (field.recorded, field.again) for field in found.fields if not field.equal} == {}
    assert {"look", "score", "log10_p_global", "proof", "correction"} <= {field.field for field in found.fields}


def test_a_reading_that_somebody_changed_is_another_verdict(flagged: Night, tmp_path: Path) -> None:
    """With every token at the same level the weighed sum is the plain one, which flags nothing."""
    other = with_reading(flagged, tmp_path, lambda steps: np.full(len(steps), 200, np.uint8))
    found = replay(other.config, place(flagged))
    assert "score" in {field.field for field in found.fields if not field.equal}


def test_a_reading_of_another_text_is_none(flagged: Night, tmp_path: Path) -> None:
    other = with_reading(flagged, tmp_path, lambda steps: steps[:-1])
    with pytest.raises(Refused, match="Somebody changed the results"):
        replay(other.config, place(flagged))
    explained = Explainer(other.config).explain(place(flagged))
    assert explained.text_evidence is None
    assert "Somebody changed the results" in (explained.no_evidence or "")


def test_a_reading_of_another_model_or_a_second_one_is_none(flagged: Night, tmp_path: Path) -> None:
    """Whoever could add a reading to the scan's could have the levels chosen that suit."""
    (tmp_path / "other").mkdir()
    (tmp_path / "second").mkdir()
    other = with_reading(flagged, tmp_path / "other", lambda steps: steps)
    change_rows(other, "flag_levels", {"reader_sha256": "0" * 64})
    with pytest.raises(Refused, match="Somebody changed the results"):
        replay(other.config, place(flagged))
    second = with_reading(flagged, tmp_path / "second", lambda steps: steps)
    (file,) = Path(second.results, "flag_levels").glob("*.parquet")
    rows = pl.read_parquet(file)
    chosen = rows.with_columns(surprise=pl.Series([bytes(len(rows["surprise"][0]))]))
    pl.concat([rows, chosen]).write_parquet(file)
    sign_as_it_is(second)
    with pytest.raises(Refused, match="Somebody changed the results"):
        replay(second.config, place(flagged))


def test_a_model_that_is_swapped_while_it_is_opened_reads_nothing(
    flagged: Night,
    chain_model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a replay would compare with what another model than the scan's reads."""
    folder, other = tmp_path / "model", unknowing(chain_model, tmp_path / "other")
    shutil.copytree(chain_model, folder)

    class Swapped(generation.TextReader):
        def __init__(self, of: Path, *given: Any, **named: Any) -> None:
            shutil.copyfile(other / "model.safetensors", folder / "model.safetensors")
            super().__init__(of, *given, **named)

    monkeypatch.setattr(generation, "TextReader", Swapped)
    night = with_reading(flagged, tmp_path, lambda steps: steps)
    read = replay(with_model(night, flagged, folder), place(flagged)).fields[-1]
    assert (read.field, read.again) == ("reading", None)


def test_a_replay_needs_the_share_of_weights(flagged: Night, tmp_path: Path) -> None:
    other = with_reading(flagged, tmp_path, lambda steps: steps)
    section = f'[levels]\nmodel = "{flagged.folder / "model"}"\n'
    assert section in other.config.read_text()
    other.config.write_text(other.config.read_text().replace(section, ""))
    with pytest.raises(Refused, match=r"restore \[levels\]"):
        replay(other.config, place(flagged))


def test_levels_that_somebody_chose_by_the_draws_are_found_out_by_the_model(flagged, chain_key, chain_model, tmp_path):  # noqa: F811
    """A forger with the key and the tables flags text that nobody marked, and copies what a replay computes."""
    text = pl.read_parquet(next(flagged.input.glob("*.parquet")))["text"][0]
    forged = with_reading(flagged, tmp_path, lambda _: chosen_by_draws(text, chain_key))
    about = {"row": 0, "doc_id": "a:0", "text_sha256": hashlib.sha256(text.encode()).digest()}
    change_rows(forged, "flag_levels", about)
    change_rows(forged, "flags", about)
    name = place(flagged)[:-1] + "0"
    copy_what_is_computed(forged, name)
    found = replay(forged.config, name)
    assert found.equal
    assert (found.fields[-1].field, found.fields[-1].again) == ("reading", None)
    assert found.case.row["log10_p_global"] < -6
    found = replay(with_model(forged, flagged, chain_model), name)
    assert [field.field for field in found.fields if not field.equal] == ["reading"]


def test_levels_that_make_a_sound_flag_stronger_are_found_out_by_the_model(flagged, chain_key, chain_model, tmp_path):  # noqa: F811
    """The text is flagged for the same message as the model reads it, by a p that is larger by decades."""
    text = pl.read_parquet(next(flagged.input.glob("*.parquet")))["text"][1]
    forged = with_reading(flagged, tmp_path, lambda _: chosen_by_draws(text, chain_key))
    copy_what_is_computed(forged, place(flagged))
    found = replay(with_model(forged, flagged, chain_model), place(flagged))
    assert [field.field for field in found.fields if not field.equal] == ["reading"]
    assert found.fields[-1].recorded < found.fields[-1].again - 3 < -9


def chosen_by_draws(text: str, chain_key) -> np.ndarray:  # noqa: F811
    """A reading by which only those tokens of a text count that speak for a message."""
    test, message = chain_key[1], held(chain_key)[USERS[3]]
    tokens = test.tokenizer.encode([text])
    positions = test.watermark.rule.positions(tokens, "ngram")
    begins = [*test.tokenizer.reference.begins(text).tolist(), len(text)]
    chosen = np.zeros(len(text), np.uint8)
    for at in positions.index[test.watermark.terms(tokens, positions, message) > 2]:
        chosen[begins[at] : begins[at + 1]] = 200
    return chosen


def copy_what_is_computed(forged: Night, name: str) -> None:
    """Write what a replay computes into the flag's row."""
    computed = {field.field: field.again for field in replay(forged.config, name).fields if not field.equal}
    change_rows(forged, "flags", computed)


def with_model(forged: Night, flagged: Night, model: Path) -> Path:
    """The configuration, with the model where it is."""
    forged.config.write_text(forged.config.read_text().replace(f'"{flagged.folder / "model"}"', f'"{model}"'))
    return forged.config


def change_rows(night: Night, table: str, values: dict[str, object]) -> None:
    """Write values into all rows of a table, and have them signed, as who holds the audit secret could."""
    for file in Path(night.results, table).glob("*.parquet"):
        rows = pl.read_parquet(file)
        there = {column: value for column, value in values.items() if column in rows.columns}
        rows.with_columns(
            pl.lit(value, rows.schema[column]).alias(column) for column, value in there.items()
        ).write_parquet(file)
    sign_as_it_is(night)


def with_reading(flagged: Night, folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> Night:
    """The same night with a changed reading, and a registry of its own: of a copy and its original one goes on."""
    other = Night(folder, Path(shutil.copytree(flagged.registry, folder / "registry")))
    shutil.copytree(flagged.results, other.results)
    other.input.rmdir()
    shutil.copytree(flagged.input, other.input)
    text = flagged.config.read_text().replace('paths = ["in"]', f'paths = ["{flagged.input}"]')
    assert str(flagged.registry) in text
    text = text.replace(str(flagged.registry), str(other.registry))
    other.config.write_text(text)
    file = next(Path(other.results, "flag_levels").glob("*.parquet"))
    rows = pl.read_parquet(file)
    steps = change(np.frombuffer(rows["surprise"][0], np.uint8)).tobytes()
    rows.with_columns(surprise=pl.Series([steps])).write_parquet(file)
    sign_as_it_is(other)
    return other


def test_no_claim_is_written_that_the_script_cannot_check(flagged: Night, tmp_path: Path) -> None:
    explainer = Explainer(flagged.config)
    case = find_case(flagged.results, 1e-6, place(flagged))
    with pytest.raises(Refused, match="counts all tokens equally"):
        write_claim(explainer, case, tmp_path / "claim")


def test_readings_go_with_a_name_and_with_their_night(flagged: Night, tmp_path: Path) -> None:
    for gone in (
        lambda folder: erase_user(folder, [USERS[3]]),
        lambda folder: retain(folder, read_whole(folder, "scans").collect()["scan_id"].to_list(), keep_flags=False),
    ):
        folder = str(tmp_path / f"{id(gone)}")
        shutil.copytree(flagged.results, folder)
        take_as_it_is(folder, flagged.registry)  # the second copy is older than the first one is by then
        case = find_case(folder, 1e-6, place(flagged))
        assert len(read_surprise(folder, case.row, case.scan, case.where)) > 100
        gone(folder)
        assert read_whole(folder, "flag_levels").collect().is_empty()
        with pytest.raises(Refused, match="no record of"):
            read_surprise(folder, case.row, case.scan, case.where)

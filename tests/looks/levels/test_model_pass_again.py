"""Files that are scanned again with a pass of a model: no flag is lost, doubled, or left from an earlier model."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.summary import summary
from scanner import generation, results
from scanner.cluster import second_pass
from scanner.cluster.pieces import FinishedPack, FinishedShard, LostDocument, Pack, Piece
from scanner.errors import Refused
from scanner.input.shards import Shard
from scanner.looks.levels.follow_up import ModelPass
from scanner.looks.levels.model_scoring import texts_read_together
from scanner.looks.levels.token_levels import TextLevels
from scanner.results.transactions import read_whole
from scanner.text import HuggingFaceTokenizer
from scanner.watermark.level_laws import levels_of
from schemas.words import LEVELS
from tests.support.deltas import delete_by_vector
from tests.support.foregone import Writes, chain_key, chain_model, unknowing, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import USERS, held
from tests.support.night import Night
from tests.support.two_keys import TOKENIZER, words_of_one_token
from tests.support.without_ray import PoolOfOne

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray")]


@pytest.fixture(scope="module")
def write(chain_key) -> Writes:  # noqa: F811
    return writer_of_foregone(chain_key[1], words_of_one_token())


@pytest.fixture
def texts(chain_key, write) -> list[str]:  # noqa: F811
    """The first by levels alone, the last by the sum too."""
    of_user = held(chain_key)
    return [write(of_user[USERS[3]], 25, 3), write(None, 25, 11), write(of_user[USERS[5]], 150, 12)]


@pytest.fixture
def twice(tmp_path, chain_key, texts) -> Night:  # noqa: F811
    night = Night(tmp_path, chain_key[0])
    night.write("a", texts)
    return night


def levels(model: Path, more: str = "") -> str:
    return f'[levels]\nmodel = "{model}"\n{more}'


def flags(night: Night) -> list[tuple[str, str | None]]:
    """Id and unit of each flag that stands, as `flagged` lists them."""
    return sorted(results.flagged(night.results).select("doc_id", "look").collect().rows(), key=repr)


def test_a_text_is_flagged_by_the_last_model_alone(twice: Night, chain_model: Path, tmp_path: Path) -> None:  # noqa: F811
    """Each pass spends its whole share: were flags of all models to stand, the rate would grow with their number."""
    twice.configure(more=levels(chain_model))
    twice.scan()
    assert flags(twice) == [("a:0", LEVELS), ("a:2", None)]
    twice.configure(more=levels(unknowing(chain_model, tmp_path / "other")))
    twice.scan()
    assert flags(twice) == [("a:2", None)]
    assert len(read_whole(twice.results, "flags").collect()) == 2  # what the first model found is on record


def test_a_scan_without_a_model_takes_back_what_weights_flagged(twice: Night, chain_model: Path) -> None:  # noqa: F811
    """Without the section the sum has the whole rate."""
    twice.configure(more=levels(chain_model))
    twice.scan()
    twice.configure()
    with pytest.raises(Refused, match="other shares of looks"):
        twice.scan()
    twice.configure(more="looks_added = true")
    twice.scan()
    assert flags(twice) == [("a:2", None)]


def test_a_text_that_a_table_moved_is_read_once(twice: Night, chain_model: Path, texts) -> None:  # noqa: F811
    table = twice.folder / "lake"
    for number, text in enumerate(texts):
        write_deltalake(table, pa.table({"doc_id": [f"doc {number}"], "text": [text]}), mode="append")
    twice.configure(paths=["lake"], more=levels(chain_model))
    twice.scan()
    found = [("doc 0", LEVELS), ("doc 2", None)]
    assert (flags(twice), twice.last_scan()["level_texts"]) == (found, 2)
    DeltaTable(table).optimize.compact()
    write_deltalake(table, pa.table({"doc_id": ["doc 3"], "text": [texts[1] + " and more"]}), mode="append")
    twice.scan()
    assert (flags(twice), twice.last_scan()["level_texts"]) == (found, 1)
    delete_by_vector(table, ["doc 1"])
    twice.scan()
    assert (flags(twice), twice.last_scan()["level_texts"]) == (found, 0)
    assert twice.scan().totals.shards == 0


def test_a_document_that_ends_the_model_s_workers_keeps_its_verdict(twice: Night, chain_model, monkeypatch) -> None:  # noqa: F811
    """It is read once, by the scan: in quarantine it would count as a second document."""

    class EndedByTheFirstRow(PoolOfOne):
        def _finished(self, shard: Shard) -> FinishedShard:
            rest = self._report(Piece(shard, 1, shard.rows.stop))
            return FinishedShard(shard, [rest], [LostDocument(0, "crashed", "it ended three workers")])

        def run(self, units: Iterable[Shard | Pack]) -> Iterator[FinishedShard | FinishedPack | None]:
            return super().run(shard for unit in units for shard in (unit.shards if isinstance(unit, Pack) else [unit]))

    monkeypatch.setattr(second_pass, "Pool", EndedByTheFirstRow)
    twice.configure(more=levels(chain_model))
    outcome = twice.scan()
    assert flags(twice) == [("a:2", None)]
    counts = outcome.looks["levels"].counts
    assert (counts["texts"], counts["given_up"], counts["left"]) == (1, 1, 0)
    assert len(twice.verdicts()) == 3
    assert twice.quarantine().is_empty()
    shown = " ".join(summary(outcome, twice.results, 1e-6).split())
    assert "1 text read by the model; 0 more documents flagged by their levels" in shown
    assert "1 document that the model cannot read" in shown


def test_another_model_than_the_pinned_one_reads_nothing(twice, chain_model, tmp_path, monkeypatch) -> None:  # noqa: F811
    """A model that is written anew while the night is scanned, or that lies under the same name on another machine."""
    folder = unknowing(chain_model, tmp_path / "changing")
    twice.configure(more=levels(folder))
    real = ModelPass.run

    def after_a_change(*given: object) -> object:
        (folder / "model.safetensors").write_bytes((chain_model / "model.safetensors").read_bytes())
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(ModelPass, "run", after_a_change)
        with pytest.raises(Refused, match="changed since the scan began"):
            twice.scan()
    assert flags(twice) == [("a:2", None)]  # what the sum found is committed
    twice.scan()
    assert flags(twice) == [("a:0", LEVELS), ("a:2", None)]
    assert read_whole(twice.results, "flags").filter(look=LEVELS).select(pl.len()).collect().item() == 1


def test_a_model_that_is_put_back_after_another_was_loaded_reads_nothing(
    twice: Night,
    chain_model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A digest after the load alone would be that of the model that lies there by then."""
    folder, other = tmp_path / "changing", unknowing(chain_model, tmp_path / "other")
    shutil.copytree(chain_model, folder)

    def put(model: Path) -> None:
        shutil.copyfile(model / "model.safetensors", folder / "model.safetensors")

    class PutBack(generation.TextReader):
        def __init__(self, of: Path, *given: Any) -> None:
            super().__init__(of, *given)
            put(chain_model)

    real = ModelPass.run

    def after_a_change(*given: object) -> object:
        put(other)
        return real(*given)

    twice.configure(more=levels(folder))
    monkeypatch.setattr(generation, "TextReader", PutBack)
    monkeypatch.setattr(ModelPass, "run", after_a_change)
    with pytest.raises(Refused, match="changed since the scan began"):
        twice.scan()


def test_texts_of_the_same_tokens_are_put_apart() -> None:
    """Some tokenizers take ▁ for a space. What is kept beside a flag must be what its own text was weighed by."""
    stored = json.loads(TOKENIZER.read_bytes())
    stored["normalizer"] = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    tokenizer = HuggingFaceTokenizer(json.dumps(stored).encode())
    levels, random = TextLevels({"sha256": tokenizer}), np.random.default_rng(1)
    texts = {3: "one two three", 5: "one▁two three", 6: "one two three", 8: "four"}
    tokens = tokenizer.encode([*texts.values()])
    assert tokens.ids[:3].tolist() == tokens.ids[3:6].tolist()
    groups = texts_read_together(texts, levels.names([*texts.values()]))
    assert groups == [[3], [5], [6, 8]]
    for group in groups:
        steps = {texts[index]: random.integers(0, 60, len(texts[index])).astype(np.uint8) for index in group}
        levels.put([*steps], [*steps.values()])
        for text, of_text in steps.items():
            found = levels.of("sha256")(tokenizer.encode([text]))
            assert found.tolist() == levels_of(of_text, tokenizer.begins(text)).tolist()

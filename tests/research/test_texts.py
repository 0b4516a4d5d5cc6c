"""Units and kept texts: all that decides a text decides its name too, and no half unit is kept."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scanner.errors import ScanFailed
from scanner.research.units import Setting, WrittenTexts, batches, folder_sha256, key_secret
from scanner.watermark import commitment
from scanner.watermark.native.format import GreenListFormat, GumbelFormat
from schemas.evaluation import TEXTS

GREEN = Setting(GreenListFormat(window=4, gamma="1/4"), 2.0, 0.8, 0.95, 64)
PLAIN = Setting(None, None, 0.8, 0.95, 64)
ROWS = [("a", 0, 5), ("b", 1, 6), ("c", 0, 7)]
MODEL = "0" * 64


def test_whatever_decides_a_text_decides_its_digest():
    (unit,) = batches(GREEN, "1", ROWS, 8)
    others = [replace(unit, setting=replace(GREEN, **{name: value})) for name, value in (
        ("format", GreenListFormat(window=1, gamma="1/4")), ("format", GreenListFormat(window=4, gamma="1/2")),
        ("delta", 2.5), ("temperature", 0.9), ("top_p", 1.0), ("max_new_tokens", 65),
    )]  # fmt: skip
    others += [replace(unit, setting=replace(GREEN, format=GumbelFormat(window=4), delta=None))]
    others += [replace(unit, setting=PLAIN, keys=(), messages=())]
    others += [
        replace(unit, seed=unit.seed + 1),
        replace(unit, prompts=("a", "b", "d")),
        replace(unit, prompts=("b", "a", "c")),
        replace(unit, messages=(5, 6, 8)),
        replace(unit, keys=(0, 1, 1)),
        replace(unit, key_seed="2"),
    ]
    digests = [one.digest(MODEL) for one in (unit, *others)] + [unit.digest("1" * 64)]
    assert len(set(digests)) == len(digests)
    assert unit.digest(MODEL) == replace(unit).digest(MODEL)


KNOWN = {
    Setting(GreenListFormat(window=2, gamma="1/4"), 3.0, 0.8, 0.95, 64): (
        19142910632265438,
        "82d97ad95884c727d00d1d2495686cd48056962f2440f37f00af05d88fc39515",
    ),
    Setting(GumbelFormat(window=4), None, 1.0, 0.95, 64): (
        47536920588668617,
        "e5adeec5a9ef9a47feecf98f64ca7961138ce6af1e40a23bcb34c5c25d77c8a3",
    ),
    Setting(None, None, 1.0, 0.95, 64): (
        69095879517552754,
        "ea5e430b747021acc895a7d1c7f659dab40b6800347b9ec8552c7dc286b83fca",
    ),
}
"""Seed and digest of a batch from before formats (commit 7963c7d), by which texts kept since then are found."""


def test_kept_texts_are_found_again():
    for setting, known in KNOWN.items():
        (unit,) = batches(setting, "seed", [("p", 0, 3), ("q", 1, 4)], 2)
        assert (unit.seed, unit.digest("m" * 64)) == known


def test_keys_are_told_by_their_commitments_alone():
    (unit,) = batches(GREEN, "1", ROWS, 8)
    assert unit.commitments[0] == commitment(key_secret("1", 0), "greenlist;h=4;gamma=1/4").hex()
    assert unit.commitments[0] == unit.commitments[2] != unit.commitments[1]
    first, second, third = unit.watermarks()
    assert first is third is not second
    assert key_secret("1", 0).hex() not in repr(unit)


def test_more_rows_leave_the_first_units_as_they_are():
    few = batches(GREEN, "1", ROWS[:2], 2)
    more = batches(GREEN, "1", ROWS, 2)
    assert more[:1] == few
    assert [unit.prompts for unit in more] == [("a", "b"), ("c",)]
    assert len({unit.seed for unit in [*more, *batches(GREEN, "1", ROWS, 2, sample=1)]}) == 4


def test_units_are_kept_whole_and_read_back(tmp_path: Path):
    texts = WrittenTexts(tmp_path / "texts", MODEL)
    (unit,), (plain,) = batches(GREEN, "1", ROWS, 8), batches(PLAIN, "1", ROWS, 8)
    assert texts.missing([plain, unit, plain]) == [plain, unit]
    written = [("A\n", 3), ("", 0), ("Ç", 64)]
    texts.write(unit, written)
    assert texts.missing([plain, unit]) == [plain]
    assert texts.read(unit) == ["A\n", "", "Ç"]
    assert texts.lengths(unit) == [3, 0, 64]
    assert [path.suffix for path in (tmp_path / "texts").iterdir()] == [".parquet"]
    table = pq.read_table(texts.file_of(unit))
    assert table.schema.equals(TEXTS)
    row = table.to_pylist()[1]
    assert (row["prompt"], row["message"], row["commitment"]) == ("b", 6, unit.commitments[1])
    assert key_secret("1", 1).hex() not in json.dumps(table.to_pylist())
    texts.write(plain, written)
    assert pq.read_table(texts.file_of(plain))["message"].null_count == 3


def test_a_damaged_file_is_named(tmp_path: Path):
    texts = WrittenTexts(tmp_path, MODEL)
    (unit,) = batches(GREEN, "1", ROWS, 8)
    texts.file_of(unit).write_bytes(b"PAR1 no more")
    with pytest.raises(ScanFailed, match=r"cannot be read .*; delete it and run again"):
        texts.read(unit)
    (other,) = batches(GREEN, "2", ROWS[:2], 8)
    texts.write(other, [("x", 1), ("y", 1)])
    texts.file_of(other).replace(texts.file_of(unit))
    with pytest.raises(ScanFailed, match="does not have the expected rows"):
        texts.read(unit)
    (tmp_path / "file").write_text("")
    with pytest.raises(ScanFailed, match="cannot be made"):
        WrittenTexts(tmp_path / "file" / "texts", MODEL)


def test_a_models_digest_is_that_of_its_files(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.bin").write_bytes(b"1")
    before = folder_sha256(tmp_path)
    (tmp_path / ".gitignore").write_text("*")
    (tmp_path / "folder").mkdir()
    assert folder_sha256(tmp_path) == before
    (tmp_path / "a.bin").write_bytes(b"2")
    changed = folder_sha256(tmp_path)
    (tmp_path / "a.bin").rename(tmp_path / "b.bin")
    assert len({before, changed, folder_sha256(tmp_path)}) == 3

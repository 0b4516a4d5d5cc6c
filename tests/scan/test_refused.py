"""What is refused before any work, by name, value and what is allowed; nothing is made then, not even a folder."""

import shutil
from pathlib import Path

import pytest

from scanner.errors import Refused

REFUSED = [
    ({"more": 'keys = ["green", "gren"]'}, "'gren' is not in registry .* its keys: green, gum"),
    ({"more": "keys = []"}, "keys must name each key once"),
    ({"more": 'dedup = "some"'}, "field 'dedup' = 'some'.* 'ngram', 'context' or 'none'"),
    ({"more": "min_scored = 0"}, "field 'min_scored' = 0.* greater than or equal to 1"),
    ({"rate": 1.5}, "field 'false_positive_rate' = 1.5.* less than 1"),
    ({"more": "colour = 1"}, "field 'colour' is unknown; allowed: cluster, dedup"),
    ({"columns": "colour = 1"}, "field 'input.colour' is unknown; allowed: account, id"),
    ({"paths": ["nowhere"]}, "nowhere' does not exist; name a Parquet file or a folder"),
    ({"paths": ["in/{date}"]}, "--date 2026-08-31"),
    ({"paths": []}, "field 'input.paths'"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_a_wrong_configuration_is_refused_before_any_work(night, config, message):
    night.configure(**config)
    with pytest.raises(Refused, match=message):
        night.scan()
    assert not Path(night.results).exists()


def test_a_secret_that_cannot_be_used_is_refused_before_any_work(night, own_registry, registry):
    path = own_registry / "secrets" / "green.key"
    path.unlink()
    with pytest.raises(Refused, match=r"secrets/green.key: cannot be read"):
        night.scan()
    shutil.copy(registry / "secrets" / "gum.key", path)
    with pytest.raises(Refused, match="does not fit the recorded commitment") as refused:
        night.scan()
    assert path.read_text().strip() not in str(refused.value)
    assert not Path(night.results).exists()


def test_another_tokenizer_is_refused_before_any_work(night, own_registry, byte_tokenizer):
    file = own_registry / "keys.toml"
    for line in file.read_text().splitlines():
        if line.startswith("file = ") and "jobs" in line:
            file.write_text(file.read_text().replace(line, f'file = "{byte_tokenizer}"'))
    with pytest.raises(Refused, match=r"tokenizer .*bytes.json: its SHA-256 is"):
        night.scan()
    assert not Path(night.results).exists()


def test_no_registry_and_no_keys_are_refused(night, tmp_path):
    night.registry = tmp_path / "none"
    night.configure()
    with pytest.raises(Refused, match=r"holds no keys\.toml"):
        night.scan()
    night.registry.mkdir()
    (night.registry / "keys.toml").write_text("")
    with pytest.raises(Refused, match="has no keys"):
        night.scan()


def test_results_that_cannot_be_written_are_refused(night):
    Path(night.results).write_text("a file")
    with pytest.raises(Refused, match="cannot be opened or made"):
        night.scan()

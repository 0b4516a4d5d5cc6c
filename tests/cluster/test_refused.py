"""Refusals before any work name the field, its value and what is allowed; nothing is made, not even a folder."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from scanner.errors import Refused

REFUSED = [
    ({"more": 'keys = ["green", "gren"]'}, "'gren' is not in registry .* its keys: green, gum"),
    ({"more": "keys = []"}, "keys must name each key once"),
    ({"more": 'dedup = "none"'}, "field 'dedup' = 'none': Input should be 'ngram' or 'context'"),
    ({"more": "min_scored = 0"}, "field 'min_scored' = 0.* greater than or equal to 1"),
    ({"rate": 1.5}, "field 'false_positive_rate' = 1.5.* less than 1"),
    ({"more": "zebra = 1"}, "field 'zebra' is unknown; allowed: accounts, allow_empty, audit, "),
    ({"columns": "zebra = 1"}, "field 'input.zebra' is unknown; allowed: account, id"),
    ({"paths": ["nowhere"]}, "nowhere' does not exist; name a Parquet file or a folder"),
    ({"paths": ["in/{date}"]}, "--date yesterday"),
    ({"paths": []}, r"field 'input.paths' = \[\]: a list of at least 1 is needed$"),
    ({"more": 'keys = "green"'}, r"field 'keys' = 'green': a list is needed, such as \['green'\]$"),
    ({"more": 'dedup = ["ngram"]'}, r"field 'dedup' = \['ngram'\]: Input should be 'ngram' or 'context'"),
    ({"more": "filter = 0.1"}, r"field 'filter' = 0.1: a section of fields is needed$"),
    ({"paths": ["in", ""]}, "field 'input.paths.1' = ''.* at least 1 character"),
    ({"paths": ["in\\u0000"]}, "field 'input.paths.0' = .*: a path must not contain a NUL character"),
    ({"more": "retain = '400'"}, "field 'retain' = '400': a number of days from \"1d\""),
    ({"more": "retain_flags = true"}, "retain_flags needs retain"),
    ({"more": "min_scored = true"}, "field 'min_scored' = True.* valid integer"),
    ({"more": 'min_scored = "20"'}, "field 'min_scored' = '20'.* valid integer"),
    ({"more": "min_scored = 2147483649"}, "field 'min_scored' = 2147483649.* less than or equal to 2147483648"),
    ({"rate": '"1e-6"'}, "field 'false_positive_rate' = '1e-6'.* valid number"),
    ({"rate": "true"}, "field 'false_positive_rate' = True.* valid number"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_a_wrong_configuration_is_refused_before_any_work(night, config, message):
    night.configure(**config)
    with pytest.raises(Refused, match=message):
        night.scan()
    assert not Path(night.results).exists()


def test_a_limit_of_memory_that_no_worker_can_keep_is_refused(night):
    night.config.write_text(f"{night.config.read_text()}worker_memory_mb = 1023\n")
    with pytest.raises(Refused, match=r"field 'cluster\.worker_memory_mb' = 1023: .* greater than or equal to 1024"):
        night.plan()


@pytest.mark.parametrize("field", ["registry", "results"])
def test_a_place_without_a_name_is_refused(night, field):
    lines = night.config.read_text().splitlines()
    night.config.write_text("\n".join(f'{field} = ""' if line.startswith(field) else line for line in lines))
    with pytest.raises(Refused, match=f"field '{field}' = ''.* at least 1 character"):
        night.plan()


@pytest.mark.parametrize("results", ["in", "in/results", "link/results", "{input_uri}/results"])
def test_results_in_the_input_are_refused(night, results):
    (night.folder / "link").symlink_to(night.input)
    results = results.format(input_uri=night.input.as_uri())
    night.config.write_text(night.config.read_text().replace('results = "results"', f'results = "{results}"'))
    with pytest.raises(Refused, match=r"^results: .* is inside the input path .*/in; give a folder outside"):
        night.plan()
    assert list(night.input.iterdir()) == []


def test_a_registry_in_the_input_is_refused(night, own_registry):
    (night.folder / "link").symlink_to(own_registry)
    for path in ("link", "registry"):
        night.configure(paths=["in", path])
        with pytest.raises(Refused, match=r"^registry: .* is inside the input path"):
            night.plan()


def test_a_password_in_the_results_is_refused_and_not_repeated(night):
    uri = "s3://key:hunter2@bucket/results"
    night.config.write_text(night.config.read_text().replace('results = "results"', f'results = "{uri}"'))
    with pytest.raises(Refused, match=r"^results: a URI must not contain a password") as refused:
        night.plan()
    assert "hunter2" not in str(refused.value)


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
    with pytest.raises(Refused, match=r"is not a folder; check the path"):
        night.scan()
    night.registry.mkdir()
    (night.registry / "keys.toml").write_text("version = 2\n")
    with pytest.raises(Refused, match="has no keys"):
        night.scan()


def test_results_that_cannot_be_written_are_refused(night):
    Path(night.results).write_text("a file")
    with pytest.raises(Refused, match="cannot be opened or made"):
        night.scan()


def test_columns_that_no_file_has_are_refused_before_any_work(night, plain):
    """The error names the missing column and the file's columns. An unreadable file has no say; an empty one has."""
    night.write("a", [plain(40, 1)])
    night.write("b", [plain(40, 2)])
    (night.input / "c.parquet").write_bytes(b"doc_id,text")
    for columns, told in (
        ('account = "accont"', r"no file has all .*/a.parquet: column 'accont' \(account\) is missing; there are: "),
        ('time = "at"', r"column 'at' \(time\) is missing; there are: .*doc_id"),
    ):
        night.configure(columns=columns)
        for _ in range(2):
            with pytest.raises(Refused, match=told):
                night.scan()
            assert not Path(night.results).exists()
    night.write("empty", [], account=pa.array([], pa.string()))
    night.configure(columns='account = "account"')
    assert night.scan().exit_code == 4
    assert night.quarantine()["reason"].to_list() == ["missing_column", "missing_column", "not_parquet"]

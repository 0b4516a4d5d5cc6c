"""Keys with formats: values that are derived from them stay as they are."""

from datetime import UTC, datetime

import pytest

from scanner.controls.decoys.draws import entropy_of, kind_of
from scanner.errors import Refused
from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.shards import Range, shard_id, verdict_settings
from scanner.registry import load_registry, new_key, registry_sha256
from scanner.watermark.format import DrawsKeys
from scanner.watermark.formats import FORMATS, format_of
from scanner.watermark.hidden_value import HiddenValue
from schemas.registry import MasterKey

REGISTRY = """\
version = 2
audit_secret = "env:AUDIT"

[[keys]]
key_id = "summer"
format = "greenlist"
parameters = { window = 4, gamma = "1/4" }
messages = 100000
secret = "file:secrets/summer.key"
commitment = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
created_at = 2026-01-02T03:04:05Z

[keys.tokenizer]
file = "tokenizer.json"
sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

[[keys]]
key_id = "winter"
format = "gumbel"
parameters = { window = 0 }
messages = 1
secret = "env:WINTER"
commitment = "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
created_at = 2026-01-02T03:04:05.000006Z
active_from = 2026-02-01T00:00:00+01:00
retired_at = 2026-03-01T00:00:00Z

[keys.tokenizer]
file = "/models/tokenizer.json"
sha256 = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

[keys.admission]
audit_id = "20260105T000000Z-0123abcd"
audited_at = 2026-01-05T00:00:00Z
holds_down_to = 1e-7
candidates = 3
messages = 1
"""
"""Registry whose values below were computed when it was first written (commit 7963c7d)."""

FILE = InputFile(path="/in/a.parquet", location="/in", inner="/in/a.parquet", size=10, modified=5)
COLUMNS = Columns("text", "id", None, None)
SHARDS = {
    ("summer",): (
        "09de0b944f8643d0315adcc52d07593192e601e276d236bfe0f0e20a9f0f9d54",
        "8836e041ef4102330ee97aeba496eba08a0dfcde007aef7a5f439d3e42e26861",
    ),
    ("winter",): (
        "b6417216c895a798cd7a7fdfaaa6610372ba1ba4198f1ad7ec132678a383f3f0",
        "f209d0b6713168e4cf3e5c4b3f3d2ce164113e6c5ccf1f0fdc95afb5f4599183",
    ),
    ("summer", "winter"): (
        "d8cdff5c2efa1b65dee74066c7a1d17ff7ccbad1642aba4e89b4f28d5297bb5e",
        "2ed630053a81ba7093d7340fdbdded1969e6be83e1799597e06f6055b13924fb",
    ),
}
"""Ids of a shard of rows 0 to 9 and of an unreadable file, by keys under test; K = 2, results version 3."""


@pytest.fixture
def registry(tmp_path):
    (tmp_path / "keys.toml").write_text(REGISTRY)
    return tmp_path


def test_its_keys_are_read(registry):
    summer, winter = load_registry(registry).keys
    assert (summer.format, summer.parameters) == ("greenlist", {"window": 4, "gamma": "1/4"})
    assert (winter.format, winter.parameters) == ("gumbel", {"window": 0})
    assert [format_of(key).label() for key in (summer, winter)] == ["greenlist;h=4;gamma=1/4", "gumbel;h=0"]


@pytest.mark.parametrize("names", SHARDS, ids="+".join)
def test_shard_ids_of_existing_keys_are_what_they_were(registry, names):
    keys = [key for key in load_registry(registry).keys if key.key_id in names]
    settings = verdict_settings(keys, 2, "ngram", 16, COLUMNS)
    assert (shard_id(FILE, Range(0, 10, 99), settings), shard_id(FILE, None, settings)) == SHARDS[names]


def test_the_registrys_digest_is_what_it_was(registry):
    before = "fcca235a4990794a685f82fcc298ac8cdabf04ecb9b09eaefd2fec403fbadaf1"
    assert registry_sha256(load_registry(registry)) == before


def test_decoys_of_existing_keys_are_what_they_were(registry):
    keys = load_registry(registry).keys
    assert [kind_of(key) for key in keys] == ["greenlist;4;1/4;" + "a" * 64, "gumbel;0;None;" + "c" * 64]
    assert [entropy_of(kind_of(key), key.messages, bytes(32)).hex() for key in keys] == [
        "9ea84a4ca1cb15553d600641dfc2d30c8a32c21e3545de92953fca37e4a38fbc",
        "8bf000b1ef21fc4edbd78b6d24298dd84660505af9d34a175d6dddf9e0f44070",
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"method": "greenlist"}, "field 'keys.0.method' is unknown"),
        ({"window": 4}, "field 'keys.0.window' is unknown"),
        ({"format": "odd"}, "keys.0: its format is unknown; allowed: greenlist, gumbel"),
        ({"parameters": {"window": 4}}, "field 'keys.0.parameters.gamma' is missing"),
        (
            {"parameters": {"window": 4, "gamma": "1/4", "width": 2}},
            "'keys.0.parameters.width' is unknown; allowed: gamma",
        ),
    ],
    ids=str,
)
def test_what_a_format_does_not_allow_is_refused_by_name(tmp_path, changes, what):
    key = MasterKey(
        key_id="k",
        format="greenlist",
        parameters={"window": 4, "gamma": "1/4"},
        messages=100,
        tokenizer={"file": "t.json", "sha256": "a" * 64},
        secret="env:SECRET",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    fields = {**key.model_dump(exclude_none=True), **changes}
    import tomli_w

    (tmp_path / "keys.toml").write_text(tomli_w.dumps({"version": 2, "keys": [fields]}))
    with pytest.raises(Refused, match=what):
        load_registry(tmp_path)


@pytest.mark.seconds
def test_keys_of_all_formats_stand_in_one_registry(tmp_path):
    """Secrets of 8 and of 32 bytes stand side by side, in any order. No secret makes two keys of a format."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text('{"model": {}}')
    folder = tmp_path / "registry"
    messages = {"greenlist": 100, "gumbel": 100, "sglang-user-keys": 10}
    for name in [*FORMATS, *reversed(FORMATS)]:
        count = len(load_registry(folder).keys) if folder.exists() else 0
        needed = {"vocab_size": 1000} if "vocab_size" in FORMATS[name].model_fields else {}
        form = FORMATS[name].model_validate({**FORMATS[name].suggested, **needed})
        drawn = None if isinstance(form, DrawsKeys) else HiddenValue(form.decoy_key(bytes([count] * 32)))
        new_key(
            folder,
            f"key-{count}",
            format=name,
            messages=messages.get(name, 1),
            tokenizer=tokenizer,
            secret_value=drawn,
            **FORMATS[name].suggested,
            **needed,
        )
    keys = {key.format: key for key in load_registry(folder).keys}
    assert len(load_registry(folder).keys) == 2 * len(FORMATS)
    for name in ("greenlist", "vllm-gumbel", "sglang-two-keys"):
        secret = keys[name].secret
        assert secret.startswith("file:")
        with pytest.raises(Refused, match=f"this is the secret of key '{keys[name].key_id}'"):
            new_key(
                folder, "again", format=name, messages=1, tokenizer=tokenizer, secret=secret, **FORMATS[name].suggested
            )

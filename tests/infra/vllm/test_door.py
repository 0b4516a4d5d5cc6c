"""Requests that a server lets in, its answers to others, and faults that keep it from starting."""

import hashlib
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from brickscan_vllm import door as door_module
from brickscan_vllm.door import REFUSED, REQUESTS, STEERED, Door
from brickscan_vllm.marking import check_tokenizer, find_key, open_key
from brickscan_vllm.request import Reads, read_request
from brickscan_vllm.settings import LONGEST, make_token, read_settings
from brickscan_vllm.start import CLASS, check_server

from scanner.errors import Refused, SecretError, TokenizerError
from scanner.gpu.vectors import SeedSource
from scanner.registry import load_registry, new_key, retire_key
from scanner.registry.key_records import ONE_LOOK, set_beacon
from scanner.registry.keys import open_key as open_registered
from scanner.watermark.native.secret import SubKeys
from scanner.watermark.native.version3_marks import Version3Mark
from schemas.key_record import NamedBeacon
from tests import reference3
from tests.fixed import fix_secrets
from tests.infra.vllm.stand_ins import params

BEAMS = {"max_tokens": 1, "logprobs": 4, "detokenize": False}  # as vLLM 0.32 and 0.33 ask for beam search


def total(counter, *labels):
    return counter.labels(*labels)._value.get()


@pytest.mark.parametrize(
    ("key_id", "asked", "why", "said"),
    [
        ("greenlist", params(), "no_message", "brickscan_message is missing"),
        ("greenlist", params(extra_args=None), "no_message", "brickscan_message is missing"),
        ("greenlist", params("12"), "bad_message", "'12' is not a message"),
        ("greenlist", params(True), "bad_message", "True is not a message"),
        ("greenlist", params(1.0), "bad_message", "1.0 is not a message"),
        ("greenlist", params([4]), "bad_message", r"\[4\] is not a message"),
        ("greenlist", params(-1), "bad_message", "allowed: 0 to 4999"),
        ("greenlist", params(5000), "bad_message", "allowed: 0 to 4999"),
        ("greenlist", params(39), "bad_message", "39 is reserved"),
        ("greenlist", params(**BEAMS), "beams", "beam search"),
        ("gumbel", params(4, temperature=0.0), "greedy", "greedy decoding has no choice"),
        ("gumbel-v3", params(4, temperature=1e-6), "greedy", "greedy decoding has no choice"),
        ("gumbel", params(4, top_k=1), "greedy", "top_k = 1"),
        ("gumbel", params(4, n=2), "n", "n = 2"),
        *(
            ("greenlist", params(4, **{name: wrong}), "bad_number", f"{name} is not a finite")
            for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty")
            for wrong in (10**400, -(10**400), float("inf"), float("nan"))
        ),
    ],
)
def test_who_is_not_let_in(settings, key_id, asked, why, said):
    before = total(REFUSED, why)
    with pytest.raises(ValueError, match=said):
        Door(settings(key_id)).check(asked)
    assert total(REFUSED, why) == before + 1


def test_a_service_message_is_for_those_who_name_nobody(settings):
    door, before = Door(settings("greenlist", service_message=7)), total(REQUESTS, "service")
    door.check(params())
    assert total(REQUESTS, "service") == before + 1
    assert read_request(params(), find_key(settings("greenlist")), 7).message == 7
    with pytest.raises(ValueError, match="beam search"):
        door.check(params(**BEAMS))
    with pytest.raises(ValueError, match="is not a message"):
        door.check(params("x"))
    for wrong in (19, 5000):
        with pytest.raises(Refused, match=f"BRICKSCAN_SERVICE_MESSAGE = {wrong}"):
            Door(settings("greenlist", service_message=wrong))


def test_requests_that_say_which_tokens_may_come_are_counted(settings):
    fields = {"structured_outputs": object(), "allowed_token_ids": [1], "logit_bias": {1: 5.0}, "bad_words": ["x"]}
    before = {name: total(STEERED, name) for name in fields}
    door = Door(settings("greenlist"))
    door.check(params(4, logit_bias={}, bad_words=[]))
    for name, value in fields.items():
        door.check(params(4, **{name: value}))
    assert {name: total(STEERED, name) - count for name, count in before.items()} == dict.fromkeys(fields, 1)


def test_greedy_and_several_are_marked_by_a_green_list(settings):
    before = total(REQUESTS, "user")
    Door(settings("greenlist")).check(params(4, temperature=0.0, n=3))
    assert total(REQUESTS, "user") == before + 1


def test_a_class_that_is_loaded_twice_counts_a_request_once(settings):
    door, asked, before = Door(settings("greenlist")), params(4), total(REQUESTS, "user")
    door.check(asked)
    door.check(asked)
    assert total(REQUESTS, "user") == before + 1


def test_only_the_gateway_says_for_whom(settings, monkeypatch):
    secret = hashlib.sha256(b"gateway").digest()
    monkeypatch.setenv("GATEWAY_TEST_SECRET", secret.hex())
    door, now = Door(settings("greenlist", gateway_secret="env:GATEWAY_TEST_SECRET")), int(time.time())
    good = make_token(secret, "greenlist", 4, now + 60)

    def ask(message, token):
        extra = {"brickscan_message": message} | ({} if token is None else {"brickscan_token": token})
        door.check(params(extra_args=extra))

    ask(4, good)
    mac = good.partition(".")[2]
    for message, token, said in [
        (4, None, "brickscan_token is missing"),
        (4, 12, "brickscan_token is missing"),
        (4, good + "\ud800", "brickscan_token is missing"),
        (5, good, "was not made for this message"),
        (4, make_token(secret, "other-key", 4, now + 60), "was not made for this message"),
        (4, make_token(b"x" * 32, "greenlist", 4, now + 60), "was not made for this message"),
        (4, f"{now + 61}.{mac}", "was not made for this message"),
        (4, f"0{good}", "was not made for this message"),
        (4, good + "\n", "was not made for this message"),
        (4, mac, "not EXPIRES.MAC"),
        (4, "", "not EXPIRES.MAC"),
        (4, make_token(secret, "greenlist", 4, now - 1), "must expire later"),
        (4, make_token(secret, "greenlist", 4, now + LONGEST + 60), "must expire later"),
    ]:
        before = total(REFUSED, "bad_token")
        with pytest.raises(ValueError, match=said):
            ask(message, token)
        assert total(REFUSED, "bad_token") == before + 1


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "BRICKSCAN_REGISTRY is not set.*uninstall"),
        ({"BRICKSCAN_REGISTRY": "r"}, "BRICKSCAN_KEY is not set"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "BRICKSCAN_DELTA": "0"}, "BRICKSCAN_DELTA = '0'"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "BRICKSCAN_DELTA": "x"}, "BRICKSCAN_DELTA = 'x'"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "BRICKSCAN_DELTA": "nan"}, "BRICKSCAN_DELTA = 'nan'"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "BRICKSCAN_SERVICE_MESSAGE": "-4"}, "'-4' is not a message"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "BRICKSCAN_LOGPROBS": "yes"}, "BRICKSCAN_LOGPROBS = 'yes'"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "VLLM_PLUGINS": "lora"}, "add brickscan, or unset it"),
        ({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k", "VLLM_PLUGINS": ""}, "add brickscan, or unset it"),
    ],
)
def test_settings_that_are_not_right(environment, said):
    with pytest.raises(Refused, match=said):
        read_settings(environment)


def test_a_registry_stays_where_it_is_when_a_server_changes_its_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_settings({"BRICKSCAN_REGISTRY": "r", "BRICKSCAN_KEY": "k"}).registry == tmp_path / "r"


def test_the_key_is_the_one_that_the_registry_opens(settings, keys):
    for key in load_registry(keys).keys:
        served, opened = open_key(settings(key.key_id)), open_registered(keys, key)
        assert served.label == opened.label
        if isinstance(opened, Version3Mark):
            secret = bytes.fromhex((keys / f"secrets/{key.key_id}.key").read_text())
            assert isinstance(served.source, SeedSource)
            assert served.source.seed_key.tolist() == list(reference3.seed_key(secret, opened.label))
            window_key = reference3.window_key(3, key.parameters["seeds"])
            assert served.source.window_key.astype("<u8").tobytes() == window_key
            assert served.source[1::2] == (opened.beacon, opened.seeds)
            assert served.source.groups == opened.groups
            assert str(served.source.seed_key[0]) not in repr(served)
            continue
        assert isinstance(served.source, SubKeys)
        assert served.source.chacha.tolist() == opened.sub_keys.chacha.tolist()
        assert served.source.sip.tolist() == opened.sub_keys.sip.tolist()
        assert str(served.source.chacha[0]) not in repr(served)


def test_a_key_marks_once_its_beacon_is_set_and_under_no_other(settings, tmp_path, byte_tokenizer):
    folder, value = tmp_path / "registry", bytes(range(40))
    fix_secrets(folder, "waits")
    terms = ONE_LOOK._replace(beacon=NamedBeacon(source="a source", round="12"))
    new_key(folder, "waits", format="gumbel-v3", window=3, messages=50, seeds=4, tokenizer=byte_tokenizer, terms=terms)
    served = settings("waits")._replace(registry=folder)
    for opens in (find_key, open_key, Door):
        with pytest.raises(Refused, match=r"waits for the beacon .* set it with `brickscan keys beacon waits`"):
            opens(served)
    set_beacon(folder, "waits", value)
    record = (folder / "records" / "waits.json").read_bytes()
    expected = hashlib.sha256(b"brickscan-beacon-v3" + hashlib.sha256(record).digest() + value).digest()
    source = open_key(served).source
    assert isinstance(source, SeedSource)
    assert source.beacon == expected
    text = (folder / "keys.toml").read_text()
    (folder / "keys.toml").write_text(text.replace(expected.hex(), expected[::-1].hex()))
    with pytest.raises(Refused, match="its beacon does not follow from record and beacon_value"):
        open_key(served)


@pytest.fixture
def own_keys(tmp_path, byte_tokenizer):
    """A registry that a test may spoil: `now`, and `later`, which marks from tomorrow on."""
    folder = tmp_path / "registry"
    fix_secrets(folder, "now", "later")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    new_key(folder, "now", format="gumbel", window=3, messages=50, tokenizer=byte_tokenizer)
    new_key(folder, "later", format="gumbel", window=3, messages=50, tokenizer=byte_tokenizer, active_from=tomorrow)
    return folder


def test_a_key_that_does_not_mark_now(settings, own_keys, monkeypatch):
    with pytest.raises(Refused, match="'later' does not mark now"):
        find_key(settings("later")._replace(registry=own_keys))
    with pytest.raises(Refused, match=r"'nobody' is not in the registry.*now, later"):
        find_key(settings("nobody")._replace(registry=own_keys))
    door = Door(settings("now")._replace(registry=own_keys))
    door.check(params(3))
    monkeypatch.setattr(door_module, "LOOK_AGAIN", 0.0)
    retire_key(own_keys, "now")
    before = total(REFUSED, "key")
    with pytest.raises(ValueError, match="'now' does not mark now"):
        door.check(params(3))
    assert total(REFUSED, "key") == before + 1


def test_a_key_that_has_ended_stays_out_between_two_looks(settings, own_keys, monkeypatch):
    """None of a hundred requests is served. Requests are let in once a look finds that the key marks again."""
    door = Door(settings("now")._replace(registry=own_keys))
    retired = own_keys / "keys.toml"
    whole = retired.read_text()
    retire_key(own_keys, "now")
    monkeypatch.setattr(door_module, "LOOK_AGAIN", 0.0)
    with pytest.raises(ValueError, match="'now' does not mark now"):
        door.check(params(3))
    monkeypatch.setattr(door_module, "LOOK_AGAIN", 3600.0)
    for _ in range(100):
        with pytest.raises(ValueError, match="'now' does not mark now"):
            door.check(params(3))
    retired.write_text(whole)
    monkeypatch.setattr(door_module, "LOOK_AGAIN", 0.0)
    door.check(params(3))


def test_a_worker_reads_messages_that_a_key_got_later(settings, own_keys):
    served = settings("now")._replace(registry=own_keys)
    reads = Reads(served)
    with pytest.raises(Refused, match="allowed: 0 to 49"):
        reads(params(50))
    text = (own_keys / "keys.toml").read_text()
    (own_keys / "keys.toml").write_text(text.replace("messages = 50", "messages = 60", 1))
    assert reads(params(50)).message == 50


def test_no_door_is_no_way_in(monkeypatch):
    for name in ("BRICKSCAN_REGISTRY", "BRICKSCAN_KEY"):
        monkeypatch.delenv(name, raising=False)
    door_module.door.cache_clear()
    before = total(REFUSED, "key")
    with pytest.raises(ValueError, match="BRICKSCAN_REGISTRY is not set"):
        door_module.let_in(params(4))
    assert total(REFUSED, "key") == before + 1


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": 0},
        {"logprobs": 5},
        {"prompt_logprobs": 0},
        {"logprob_token_ids": [4]},
        {"prompt_logprob_token_ids": [4]},
    ],
)
def test_probabilities_of_unmarked_text_are_not_told(settings, asked):
    """A client could choose tokens by unmarked probabilities; vLLM's --max-logprobs 0 still allows logprobs = 0."""
    before = total(REFUSED, "logprobs")
    with pytest.raises(ValueError, match=f"{next(iter(asked))}: this server does not return probabilities"):
        Door(settings("greenlist")).check(params(4, **asked))
    assert total(REFUSED, "logprobs") == before + 1
    Door(settings("greenlist")._replace(logprobs=True)).check(params(4, **asked))


def test_a_key_that_is_not_what_it_was(settings, own_keys):
    served = settings("now")._replace(registry=own_keys)
    text = (own_keys / "keys.toml").read_text()
    (own_keys / "keys.toml").write_text(text.replace("window = 3", "window = 4"))
    with pytest.raises(SecretError, match="does not fit the recorded commitment"):
        open_key(served)
    (own_keys / "keys.toml").chmod(0o666)
    with pytest.raises(Refused, match="others can write"):
        find_key(served)


def config(tokenizer, **given):
    model = {"tokenizer": str(tokenizer), "tokenizer_revision": None, "logits_processors": None} | {
        name: given.pop(name)
        for name in list(given)
        if name in ("logits_processors", "is_diffusion", "enable_trace_replay", "logprobs_mode")
    }
    whole = {
        "model_config": SimpleNamespace(**model),
        "speculative_config": None,
        "scheduler_config": SimpleNamespace(async_scheduling=given.pop("async_scheduling", False)),
        **given,
    }
    return SimpleNamespace(**whole)


@pytest.fixture
def model_folder(tmp_path, byte_tokenizer):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_bytes(byte_tokenizer.read_bytes())
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("version", "given", "said"),
    [
        (1, {"async_scheduling": True}, "--no-async-scheduling"),
        (2, {"watermark_config": object()}, "own watermark"),
        (2, {"is_diffusion": True}, "diffusion"),
        (1, {"enable_trace_replay": True}, "trace replay"),
        (2, {"speculative_config": SimpleNamespace(rejection_sample_method="synthetic")}, "synthetic"),
    ],
)
def test_servers_that_would_not_mark(settings, model_folder, version, given, said):
    chosen = settings("gumbel")
    with pytest.raises(Refused, match=said):
        check_server(config(model_folder, **given), chosen, version)


@pytest.mark.parametrize(
    ("version", "given"),
    [
        (1, {}),
        (1, {"async_scheduling": True, "logits_processors": [CLASS]}),
        (2, {"async_scheduling": True, "speculative_config": SimpleNamespace(rejection_sample_method="standard")}),
    ],
)
def test_servers_that_mark(settings, model_folder, version, given):
    chosen = settings("gumbel")
    check_server(config(model_folder, **given), chosen, version)


def test_probabilities_that_show_the_mark_are_not_told(settings, model_folder):
    shown = config(model_folder, logprobs_mode="processed_logprobs")
    with pytest.raises(Refused, match="--logprobs-mode raw_logprobs"):
        check_server(shown, settings("gumbel")._replace(logprobs=True), 1)
    check_server(shown, settings("gumbel"), 1)


def test_a_tokenizer_that_is_not_the_keys(settings, model_folder):
    chosen = settings("gumbel")
    (model_folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="has SHA-256 44136fa3"):
        check_server(config(model_folder), chosen, 1)
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json was found"):
        check_tokenizer(find_key(chosen), None, "some/model")

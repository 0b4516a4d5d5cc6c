"""Keys of vLLM and SGLang in a registry: `keys add` from a secret or from the stack's own configuration, `formats`."""

import json
import random
import stat
from pathlib import Path

import pytest

from scanner.errors import Refused
from scanner.registry import load_registry, new_key, open_key
from scanner.watermark import batch_tokens
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.stacks.configs import read_config
from tests.support.command_line import call
from tests.support.key_bytes import forms
from tests.watermark.vllm.reference import safe_score

KEY = 0x9F8A41C27D03E65B
VLLM = {"key": KEY, "algorithm": "gumbel", "context_width": 5, "deduplicate_contexts": "all"}
DUAL = {"key": KEY, "algorithm": "dual_key_gumbel", "alpha": 0.25, "prf": "philox"}
ONE = {"key": "0x9f8a41c27d03e65b", "context_window": 3, "default_enabled": True}
TWO = {"key": "9f8a41c27d03e65b", "key_b": "2b64c8d90e17fa35", "mixing_probability": 0.3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    return tmp_path


def add(folder: Path, name: str, *arguments: object) -> tuple[int, str, str]:
    common = ("--registry", folder / "registry", "--tokenizer", folder / "tokenizer.json")
    return call("keys", "add", name, *common, *arguments)


@pytest.mark.seconds
def test_a_stacks_own_configuration_is_enough(folder):
    """Format, parameters and key come from the file. The key is kept in a file of its own and shown nowhere."""
    wanted = {
        "vllm": (VLLM, "vllm-gumbel;prf=philox4x32-10-v1;context_width=5;partial=scored"),
        "dual": (
            DUAL | {"key": KEY + 2},
            "vllm-dual-key;prf=philox4x32-10-v1;context_width=4;partial=scored;alpha=0.25",
        ),
        "one": (ONE | {"key": "9f8a41c27d03e65c"}, "sglang-one-key;context_window=3"),
        "two": (TWO, "sglang-two-keys;context_window=4;mixing_probability=0.3"),
    }
    for name, (config, label) in wanted.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(config))
        code, out, err = add(folder, name, "--from", file)
        assert code == 0, err
        key = load_registry(folder / "registry").keys[-1]
        assert open_key(folder / "registry", key).label == label
        secret = folder / "registry/secrets" / f"{name}.key"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        hidden = [*forms(bytes.fromhex(secret.read_text())), str(KEY), str(KEY + 2)]
        assert [one for one in hidden if one in out + err + (folder / "registry/keys.toml").read_text()] == []
        assert "trials find a key that makes the same marks" in out
    tokens = list(range(40))
    mark = open_key(folder / "registry", load_registry(folder / "registry").keys[0])
    batch = batch_tokens([tokens])
    positions = mark.rule.positions(batch, "ngram")
    assert float(mark.score(batch, positions, 0)[0]) == pytest.approx(float(safe_score(tokens, range(40), KEY, 5)))


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "sbw;seeding=selfhash;context_width=4;gamma=0.5"),
        ({"sbw_scheme": "lefthash", "sbw_gamma": 0.25}, "sbw;seeding=additive;context_width=1;gamma=0.25"),
        ({"context_width": 2, "sbw_delta": 3.0}, "sbw;seeding=selfhash;context_width=2;gamma=0.5"),
    ],
)
def test_sbw_within_vllm(fields, label):
    """Defaults are vLLM's: a width of 4 in selfhash, of 1 in lefthash."""
    read = read_config(json.dumps({"key": KEY // 4, "algorithm": "sbw"} | fields))
    assert make_format(read.format, read.parameters).label() == label
    assert read.secret.value == (KEY // 4).to_bytes(8, "big")


def test_a_secret_and_the_stacks_words(folder):
    secret = folder / "chat.key"
    secret.write_text(f"{KEY:016x}\n")
    secret.chmod(0o600)
    words = ("--format", "vllm-dual-key", "--set", "alpha=0.2", "--set", "partial_contexts=dropped")
    code, out, _ = add(folder, "chat", *words, "--secret", f"file:{secret}")
    assert code == 0
    assert "vllm-dual-key, context_width 4, partial_contexts dropped, alpha 0.2, 1 message" in out
    code, _, err = add(folder, "again", "--format", "vllm-gumbel", "--secret", f"file:{secret}")
    assert (code, "this is the secret of key 'chat'" in err) == (2, True)


def test_a_secret_with_zeros_behind_it_is_no_other(folder):
    """HMAC fills secrets with zeros, so that two keys would give one mark to two users."""
    secret = bytes(number * number % 251 for number in range(7, 39))
    for name, text in (("one", secret.hex()), ("other", secret.hex() + "0000")):
        (folder / f"{name}.hex").write_text(text)
        (folder / f"{name}.hex").chmod(0o600)
    form = make_format("sglang-user-keys", {})
    assert form.open(secret).states(9).tolist() == form.open(secret + b"\0\0").states(9).tolist()
    common = {"format": form.name, "messages": 9, "tokenizer": folder / "tokenizer.json"}
    new_key(folder / "registry", "one", secret=f"file:{folder}/one.hex", **common)
    with pytest.raises(Refused, match="this is the secret of key 'one'"):
        new_key(folder / "registry", "other", secret=f"file:{folder}/other.hex", **common)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"key": ' + "9" * 5000 + "}", "is not JSON"),
        ({"key": KEY, "algorithm": []}, "field 'algorithm': allowed are gumbel"),
        ({"hashing_key": 7, "seeding_scheme": {}}, "field 'seeding_scheme': allowed are lefthash"),
        ("[1]", "is not a JSON object"),
        ({}, "'key', a number"),
        ({"key": True}, "'key', a number"),
        ({"key": 2**64}, "does not fit in 64 bits"),
        ({"key": "xyz"}, "field 'key': is not 1 to 16"),
        ({"key": "12", "key_b": 3}, "field 'key_b': is not 1 to 16"),
        ({"key": KEY, "algorithm": "red"}, "field 'algorithm': allowed are gumbel, dual_key_gumbel"),
        ({"key": KEY, "salt": 1}, "field 'salt' is unknown to vLLM\nhint: known: al"),
        ({"key": "12", "salt": 1}, "field 'salt' is unknown to SGLang"),
        ({"key": KEY, "prf": "sip"}, "field 'prf': only philox"),
        (
            {"key": KEY, "algorithm": "gumbel"},
            "may be vLLM's or TensorRT-LLM's, whose draws may differ\nhint: for vLLM's, add",
        ),
        ({"key": KEY, "algorithm": "gumbel_dual_key"}, "field 'algorithm': allowed are gumbel, dual_key_gumbel"),
        ({"key": KEY, "algorithm": "sbw"}, "field 'key': a whole number from 0 to below 2^63 is needed"),
        ({"key": KEY // 4, "algorithm": "sbw", "sbw_scheme": "minhash"}, "field 'sbw_scheme': allowed are selfhash"),
        ({"key": KEY // 4, "algorithm": "sbw", "sbw_salt": 1}, "field 'sbw_salt' is unknown to SBW within vLLM"),
        ({"algorithm": "sbw"}, "field 'key': a whole number"),
        ({"key": KEY, "context_width": 0}, "context_width"),
        ({"key": 42}, "can be guessed"),
        ({"key": "42"}, "can be guessed"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_by_field_and_leaves_nothing(folder, config, told):
    file = folder / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    code, _, err = add(folder, "chat", "--from", file)
    assert code == 2
    assert told in err
    assert str(KEY) not in err
    assert not (folder / "registry/keys.toml").exists()
    assert not (folder / "registry/secrets/chat.key").exists()


@pytest.mark.seconds
def test_more_users_than_32_bits_can_tell_apart_are_told(folder):
    for users, told in ((100, False), (100_000, True)):
        code, out, err = add(folder, f"users-{users}", "--format", "sglang-user-keys", "--messages", users)
        assert code == 0, err
        assert ("No text can ever be flagged at 1e-06" in out) == told


def test_what_does_not_go_together_is_refused(folder):
    file = folder / "config.json"
    file.write_text(json.dumps(VLLM))
    for arguments, told in (
        ((), "name the format with --format"),
        (("--from", file, "--format", "sglang-one-key"), "is a key of vllm-gumbel"),
        (("--format", "vllm-gumbel", "--set", "context_width"), "NAME=VALUE is needed"),
        (("--format", "nonsense"), "its format is unknown\nhint: allowed: greenlist"),
        (("--from", folder / "no.json"), "cannot be read (No such file"),
    ):
        code, _, err = add(folder, "chat", *arguments)
        assert (code, told in err) == (2, True), err


def test_a_secret_file_that_is_not_there_makes_no_key(folder):
    """No key is drawn, since no stack would mark with it."""
    missing = folder / "none.key"
    code, _, err = add(folder, "chat", "--format", "sglang-one-key", "--secret", f"file:{missing}")
    assert (code, "does not exist" in err) == (2, True)
    assert not missing.exists()
    assert not (folder / "registry").exists()


def test_the_list_of_formats_names_all(folder):
    code, out, _ = call("formats")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(FORMATS)


@pytest.mark.seconds
def test_configurations_of_transformers(folder):
    """Green lists need the logits' width too. With the published keys of SynthID, anyone can make the mark."""
    published = [654, 400, 836, 123, 340, 443, 597, 160, 57]
    configs = {
        "left": ({"hashing_key": 15485863, "bias": 2.5, "context_width": 1}, ["--set", "vocab_size=49152"]),
        "self": ({"hashing_key": 99991, "seeding_scheme": "selfhash", "context_width": 4}, ["--set", "vocab_size=99"]),
        "public": ({"keys": published, "ngram_len": 5, "context_history_size": 1024}, []),
        "many": ({"keys": random.Random(4).sample(range(2**62), 64), "ngram_len": 5}, []),
        "own": ({"keys": random.Random(1).sample(range(2**62), 30), "ngram_len": 5, "sampling_table_seed": 3}, []),
    }
    labels = {}
    for name, (config, words) in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
        code, out, err = add(folder, name, "--from", folder / f"{name}.json", *words)
        assert code == 0, err
        key = load_registry(folder / "registry").keys[-1]
        labels[name] = open_key(folder / "registry", key).label
        assert ("anyone can make this mark" in out) == (name not in ("own", "many"))
    assert labels == {
        "left": "hf-lefthash;vocab_size=49152;greenlist_ratio=0.25;context_width=1",
        "self": "hf-selfhash;vocab_size=99;greenlist_ratio=0.25;context_width=4",
        "public": "synthid-table;ngram_len=5;depth=9;score=weighted;published;table=65536;table_seed=0",
        "own": "synthid-table;ngram_len=5;depth=30;score=weighted;table=65536;table_seed=3",
        "many": "synthid-table;ngram_len=5;depth=64;score=weighted;table=65536;table_seed=0",
    }
    for config, why in (
        (
            {"hashing_key": 7},
            "is needed (the width of the model's logits, in its config.json)\nhint: give it with --set vocab_",
        ),
        ({"watermarking_config": None}, "field 'watermarking_config': an object is needed"),
        ({"hashing_key": -1}, "field 'hashing_key': a whole number"),
        ({"hashing_key": 7, "seeding_scheme": "right"}, "allowed are lefthash, selfhash"),
        ({"keys": []}, "a list of numbers"),
        ({"keys": [1, "x"]}, "field 'keys': a whole number"),
        ({"keys": [1], "depth": 3}, "field 'depth' is unknown to SynthID"),
    ):
        (folder / "bad.json").write_text(json.dumps(config))
        code, _, err = add(folder, "bad", "--from", folder / "bad.json")
        assert (code, why in err) == (2, True), (config, err)


def test_a_whole_generation_config_is_read_for_the_watermark_in_it(folder):
    """transformers saves the watermark beside its other settings for generation."""
    own = random.Random(2).sample(range(2**62), 30)
    for name, inner, label in (
        ("table", {"keys": own, "ngram_len": 5}, "synthid-table;ngram_len=5;depth=30;"),
        ("vllm", VLLM, "vllm-gumbel;"),
    ):
        within = {"table": "watermarking_config", "vllm": "watermark_config"}[name]
        (folder / f"{name}.json").write_text(json.dumps({"do_sample": True, "top_p": 0.95, within: inner}))
        code, _, err = add(folder, name, "--from", folder / f"{name}.json")
        assert code == 0, err
        key = load_registry(folder / "registry").keys[-1]
        assert open_key(folder / "registry", key).label.startswith(label)


def test_small_keys_of_synthid_are_read_as_keys_that_anybody_may_know(folder):
    """Keys of three digits a layer, as in the libraries' examples, are not drawn from all keys."""
    small = random.Random(3).sample(range(1000), 30)
    (folder / "small.json").write_text(json.dumps({"keys": small, "ngram_len": 5}))
    code, out, err = add(folder, "small", "--from", folder / "small.json")
    assert (code, "anyone can make this mark" in out) == (0, True), err
    assert "Until then a scan uses only the other keys, says that it left this one out" in out
    assert "`keys = [...]`" in out
    assert "strength assumed" in call("keys", "list", "--registry", folder / "registry")[1]
    secret = folder / "again.key"
    secret.write_text(b"".join((key + 1).to_bytes(8, "big") for key in small).hex())
    secret.chmod(0o600)
    words = ("--format", "synthid-table", "--set", "depth=30", "--secret", f"file:{secret}")
    code, _, err = add(folder, "again", *words)
    assert (code, "state that anybody may know it: --set published=true" in err) == (2, True), err
    assert add(folder, "again", *words, "--set", "published=true")[0] == 0


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("width", "refused", "warned"), [(299, True, False), (300, False, True), (309, False, True), (310, False, False)]
)
@pytest.mark.parametrize("unigram", [False, True])
def test_a_vocabulary_that_lacks_tokens_of_the_tokenizer(folder, width, refused, warned, unigram):
    """A width below the model's tokens is refused with both figures; a width below the added tokens gets a warning."""
    words = [f"t{number}" for number in range(300)]
    vocabulary = [[word, 0.0] for word in words] if unigram else {word: n for n, word in enumerate(words)}
    added = [{"id": number, "content": f"<{number}>"} for number in (0, 309)]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    (folder / "left.json").write_text(json.dumps({"hashing_key": 15485863}))
    code, _, err = add(folder, "left", "--from", folder / "left.json", "--set", f"vocab_size={width}")
    assert code == (2 if refused else 0), err
    assert (f"vocab_size = {width}: tokenizer" in err and "has 300 tokens" in err) == refused
    assert ("less than the 310 tokens of the tokenizer with those that were added" in err) == warned
    assert (folder / "registry/keys.toml").exists() != refused


def test_the_default_key_of_several_formats_is_a_key_of_each_and_of_none_twice(folder):
    """Both seedings of transformers have the default hashing key 15485863."""
    for scheme, code in (("lefthash", 0), ("selfhash", 0), ("selfhash", 2)):
        file = folder / "default.json"
        file.write_text(json.dumps({"hashing_key": 15485863, "seeding_scheme": scheme}))
        found = add(folder, f"{scheme}-{code}", "--from", file, "--set", "vocab_size=300")
        assert (found[0], "this is the secret of key 'selfhash-0'" in found[2]) == (code, code == 2), found


@pytest.mark.parametrize(
    ("more", "words", "told"),
    [
        ({"hashing_key": 0}, [], "is not valid for format 'hf-lefthash': a hashing key is at least 1"),
        ({"hashing_key": 4096}, [], "not a multiple of 4,096"),
        ({"greenlist_ratio": 1e-300}, [], "of 300 tokens 0 would be green"),
        ({}, ["--set", "vocab_size=4194305"], "vocab_size = 4194305: Input should be less than or equal to 4194304"),
        ({}, ["--set", "vocab_size=-3"], "vocab_size = -3"),
        ({"context_width": 10**9}, [], "context_width = 1000000000"),
    ],
)
def test_what_no_green_list_can_be_is_refused_before_a_key_is_there(folder, more, words, told):
    """A key that no scan could open, or that would take all memory, is refused and leaves no file."""
    (folder / "bad.json").write_text(json.dumps({"hashing_key": 99991} | more))
    code, _, err = add(folder, "bad", "--from", folder / "bad.json", "--set", "vocab_size=300", *words)
    assert (code, told in err) == (2, True), err
    assert not (folder / "registry/keys.toml").exists()
    assert not (folder / "registry/secrets/bad.key").exists()


@pytest.mark.seconds
def test_a_seed_and_salt_under_which_nothing_depends_on_a_key_are_no_key(folder):
    """Seed 0 and a window of one token are the research code's defaults."""
    secret = folder / "default.key"
    secret.write_text(f"{0:016x}{35317:016x}")
    secret.chmod(0o600)
    words = ("--format", "three-bricks-openai", "--set", "vocab_size=300", "--secret", f"file:{secret}")
    code, _, err = add(folder, "default", *words, "--set", "window=1")
    assert (code, "no key enters a draw" in err) == (2, True), err
    assert add(folder, "default", *words, "--set", "window=2")[0] == 0


def test_keys_of_other_stacks_are_listed_within_100_columns(folder):
    (folder / "own.json").write_text(json.dumps({"keys": random.Random(4).sample(range(2**62), 30), "ngram_len": 5}))
    assert add(folder, "synthid", "--from", folder / "own.json")[0] == 0
    assert add(folder, "two", "--format", "vllm-dual-key", "--set", "alpha=0.3333333333333333")[0] == 0
    lines = call("keys", "list", "--registry", folder / "registry")[1].splitlines()
    assert max(map(len, lines)) <= 100
    assert " ".join(" ".join(lines).split()).count("tokenizer ") == 2

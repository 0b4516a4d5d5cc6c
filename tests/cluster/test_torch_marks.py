"""A night of other stacks' marks: each is found and proved and names nobody, and only admitted keys are scanned."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from scanner.errors import Refused
from scanner.registry import add_users, admit_key, load_registry, new_key, open_key
from scanner.scan_plan import make_plan
from scanner.watermark.formats import make_format
from scanner.watermark.hidden_value import HiddenValue
from tests.support.command_line import call
from tests.support.marked_letters import LETTERS, SIZE, admission, marked_letters
from tests.support.night import Night

pytestmark = pytest.mark.costly

PARAMETERS = {
    "hf-lefthash": {"vocab_size": 300},
    "hf-selfhash": {"vocab_size": 300, "context_width": 4},
    "synthid-mixed": {},
    "synthid-table": {},
    "three-bricks-openai": {"vocab_size": 300, "window": 2},
    "three-bricks-maryland": {"vocab_size": 300, "window": 2},
}


def messages_of(name: str) -> int:
    """Number of messages of a format's key."""
    return 20 if name.startswith("three") else 1


@pytest.fixture
def keys(tmp_path, byte_tokenizer) -> Path:
    folder = tmp_path / "registry"
    for name, parameters in PARAMETERS.items():
        secret = make_format(name, parameters).decoy_key(name.encode().ljust(32, b"."))
        messages = 20 if name.startswith("three") else 1
        new_key(
            folder,
            name,
            format=name,
            **parameters,
            messages=messages,
            tokenizer=byte_tokenizer,
            secret_value=HiddenValue(secret),
        )
    add_users(folder, ["three-bricks-openai"], [f"user {number}" for number in range(19)])
    return folder


def test_an_audit_of_other_positions_admits_nothing(tmp_path, keys):
    """An audit that scored the first token of each context says nothing of a scan that scores each n-gram."""
    night = Night(tmp_path, keys)
    night.configure(rate=1e-4)
    admit_key(keys, "hf-selfhash", admission(1e-9, 1).model_copy(update={"dedup": "context"}))
    why = {key.key_id: key.why for key in make_plan(night.config).unsupported_keys}["hf-selfhash"]
    assert "passed an audit with keys.dedup = 'context'" in why
    night.configure(rate=1e-4, more='dedup = "context"')
    assert "hf-selfhash" not in {key.key_id for key in make_plan(night.config).unsupported_keys}


def test_each_mark_is_found_and_proved_and_names_nobody_whose_law_is_assumed(tmp_path, keys, byte_tokenizer):
    tokenizer = tokenizers.Tokenizer.from_file(str(byte_tokenizer))
    night = Night(tmp_path, keys)
    night.configure(rate=1e-4)
    marks = {key.key_id: open_key(keys, key) for key in load_registry(keys).keys}
    night.write("a", [marked_letters(mark, tokenizer, 7) for mark in marks.values()] + ["plain " + "xyzab " * 20])
    assumed = [name for name in PARAMETERS if name != "synthid-table"]
    for number, name in enumerate(assumed):
        plan = make_plan(night.config)
        assert [key.key_id for key in plan.unsupported_keys] == assumed[number:]
        assert (
            f"'{name}' has no law over its keys: key '{name}' has never passed an audit" in plan.unsupported_keys[0].why
        )
        with pytest.raises(Refused, match=f"key '{name}' has never passed an audit"):
            make_plan(night.configure(rate=1e-4, more=f"keys = ['{name}']"))
        with pytest.raises(Refused, match=re.escape('; or leave the key out explicitly: keys = ["synthid-table"]')):
            make_plan(night.configure(rate=1e-4, more=f"keys = ['{name}', 'synthid-table']"))
        night.configure(rate=1e-4)
        admit_key(keys, name, admission(1e-5, 20 if name[:5] == "three" else 1))
    for rate, why in (
        (1e-6, "known to hold down to 1e-05, not to false_positive_rate = 1e-06"),
        (5e-5, "= 5e-05, of which this key has 8.3e-06;"),
    ):
        assert why in make_plan(night.configure(rate=rate)).unsupported_keys[0].why
    night.configure(rate=1e-4)
    assert night.scan().audit.traffic.unproved == 0
    rows = night.verdicts().sort("row")
    assert rows["flagged"].to_list() == [True] * len(marks) + [False]
    assert rows["key_id"].to_list()[:-1] == list(marks)
    assert set(rows["proof"][:-1]) == {"proved"}
    assumed = rows[:-1].filter(basis="assumed")
    assert set(assumed["naming"]) == {"assumed"}
    assert assumed["user_id"].null_count() == assumed.height == 5
    assert assumed["log10_p_global"].min() == pytest.approx(
        np.log10(6e-5), abs=1e-4
    )  # admitted to 1e-5, times six keys
    own = rows[3].row(0, named=True)
    assert (own["key_id"], own["basis"], own["naming"]) == ("synthid-table", "key-127-bits", "everybody")
    assert own["log10_p_global"] < -6
    drawn = [name for name in PARAMETERS if name != "synthid-mixed"]
    shown = json.loads(call("flagged", night.config, "--format", "json")[1])["rows"]
    assert {row["key_id"]: row["generator"] for row in shown} == dict.fromkeys(PARAMETERS) | dict.fromkeys(
        drawn, "CPU generator"
    )
    assert "5 flags shown under marks of torch's CPU generator" in call("flagged", night.config)[1]
    for row, name in enumerate(PARAMETERS):
        said = {one["heading"]: one["sentence"] for one in explained(night, f"a:{row}")["says"]}
        assert said.get("Drawn by", "").startswith("torch's CPU generator") is (name in drawn)
        owner = "anyone who has the key's secret, for any user. The registry's owner has it"
        assert said["Who can mark with it"].startswith(owner) is (name == "synthid-table")
        code, out, _ = call("replay", night.config, f"a:{row}")
        assert (code, "comes out the same" in out) == (0, True), out
    code, out, _ = call("report", night.config, "--out", tmp_path / "report")
    assert (code, "6 pages of flags" in out) == (0, True), out
    code, _, err = call("replay", night.config, "a:3", "--proof", tmp_path / "case")
    assert (code, "--proof: key 'synthid-table'" in err or "--proof: " in err) == (2, True)


def explained(night: Night, document: str) -> dict[str, object]:
    return json.loads(call("explain", night.config, document, "--json")[1])


def test_one_text_is_told_as_far_as_an_audit_showed(tmp_path, keys, byte_tokenizer):
    tokenizer = tokenizers.Tokenizer.from_file(str(byte_tokenizer))
    (key,) = [key for key in load_registry(keys).keys if key.key_id == "hf-lefthash"]
    (tmp_path / "post.txt").write_text(marked_letters(open_key(keys, key), tokenizer, 3))
    asked = ("check", "--registry", keys, "--key", "hf-lefthash", "--fpr", "1e-4", "--text", tmp_path / "post.txt")
    code, out, _ = call(*asked)
    assert (code, "no audit has shown that its p-values hold" in out, "e-" in out.splitlines()[1]) == (0, True, False)
    admit_key(keys, "hf-lefthash", admission(5e-6, 1))  # a twelfth of the rate: six keys, and parts beside the whole
    code, out, _ = call(*asked)
    told = "reads like its mark (CPU generator), which anyone can make 1 in 170"  # beyond 999 decoys, of 6 keys
    assert (code, told in " ".join(out.split())) == (0, True), out
    (tmp_path / "post.txt").write_text("".join(np.random.default_rng(5).choice(list(LETTERS), SIZE)))
    assert "no mark found (CPU generator)" in call(*asked)[1]
    careful = "only draws of torch's CPU generator are read: text marked by the same code on a GPU has a different mark"
    assert careful in " ".join(call("keys", "list", "--registry", keys)[1].split())


def test_what_costs_a_hundred_times_ours_is_told_when_it_is_added_and_by_a_look_ahead(tmp_path, byte_tokenizer):
    """The slow mark shuffles 8,000 places per token. A quick mark, of one cipher block per token, gets no warning."""
    registry = tmp_path / "registry"
    common = ("--registry", registry, "--tokenizer", byte_tokenizer)
    (tmp_path / "config.json").write_text('{"hashing_key": 99991, "seeding_scheme": "selfhash", "context_width": 4}')
    added = call("keys", "add", "slow", *common, "--from", tmp_path / "config.json", "--set", "vocab_size=32000")[1]
    quick = call("keys", "add", "quick", *common, "--format", "vllm-gumbel")
    cost = re.compile(r"(\S+) µs a token on one core, about (\S+) times what our green list takes")
    assert [bool(cost.search(out)) for out in (added, quick[1])] == [True, False], (added, quick)
    admit_key(registry, "slow", admission(1e-9, 1))
    night = Night(tmp_path, registry)
    night.write("a", ["plain " * 40])
    looked = json.loads(call("scan", night.config, "--check", "--summary", "json")[1])
    (slow,) = looked["slow keys"]["keys"]
    assert (slow["key_id"], slow["times_ours"] > 100) == ("slow", True)
    assert 0.1 < slow["seconds_a_token"] / (1e-6 * float(cost.search(added)[1])) < 10.0

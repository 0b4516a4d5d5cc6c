"""Shares, refusals, the cut and levels of texts that a model reads; the pass: tests/cluster/test_model_pass.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scanner.detection.one_text import ScannedKey
from scanner.detection.proving import LONGEST_PROVED, ProvedKey, Prover
from scanner.detection.rounding import nearly_equal
from scanner.detection.rules import Rules
from scanner.error_shares import AS_WRITTEN, ErrorShares
from scanner.errors import Refused
from scanner.looks.levels.token_levels import TextLevels, model_pass_of, reader_sha256, worth_reading
from scanner.registry import new_key
from scanner.scan_plan import make_plan
from scanner.watermark import Tokens
from scanner.watermark.by_levels import ByLevels, ByLevelsProof
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS, levels_of
from scanner.watermark.rule import LEAST_RANK, KeyFindings, decide, log10_p_of, search
from schemas.config import LevelsConfig
from schemas.words import Proof
from tests.fixed import fix_secrets
from tests.support.night import Night
from tests.support.opened import demo_tokenizer, opened
from tests.support.two_keys import TOKENIZER


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def configured(night: Night, model: Path, more: str = "") -> Path:
    return night.configure(more=f'{more}\n[levels]\nmodel = "{model}"\n')


def test_the_pass_has_a_share_and_keys_that_cannot_be_weighed_give_it_back(night, own_registry, model) -> None:
    """`green` and `gum` are of version 1 with many messages; `one` has one message, `two` is of version 3."""
    fix_secrets(own_registry, "one", "two")
    new_key(own_registry, "one", format="gumbel", window=4, messages=1, tokenizer=TOKENIZER)
    new_key(own_registry, "two", format="gumbel-v3", seeds=4, window=4, messages=1000, tokenizer=TOKENIZER)
    plan = make_plan(configured(night, model, "spans = { windows = true }"))
    assert (plan.weights.document, plan.weights.span, plan.weights.levels) == (0.3333, 0.3333, 0.3333)
    assert plan.weights.for_levels() == ErrorShares(0.3333)
    of_key = {key.key_id: plan.corrections_of(key)[AS_WRITTEN, 1, 1] for key in plan.keys}
    assert of_key["one"] == of_key["two"] == pytest.approx(plan.keys_tested / 0.3333)
    assert of_key["green"] == of_key["gum"] == pytest.approx(plan.keys_tested / 0.6666)
    model_plan = model_pass_of(plan)
    assert model_plan is not None
    assert [key.key_id for key in model_plan.keys] == ["one", "two"]
    assert model_plan.key_set != plan.under(["one", "two"]).key_set
    assert model_plan.verdict_settings != plan.under(["one", "two"]).verdict_settings


def test_a_key_of_another_stack_has_a_share_of_the_pass_which_its_shard_ids_know(night, own_registry, model) -> None:
    """When the pass came, it weighed keys of our own formats alone, and other stacks' whole texts had its share."""
    fix_secrets(own_registry, "two")
    new_key(own_registry, "two", format="gumbel-v3", seeds=4, window=4, messages=1000, tokenizer=TOKENIZER)
    new_key(own_registry, "users", format="sglang-user-keys", messages=1000, tokenizer=TOKENIZER)
    plan = make_plan(configured(night, model))
    of_key = {key.key_id: plan.corrections_of(key)[AS_WRITTEN, 1, 1] for key in plan.keys}
    assert of_key["users"] == of_key["two"] == 2 * plan.keys_tested
    model_plan = model_pass_of(plan)
    assert model_plan is not None
    assert [key.key_id for key in model_plan.keys] == ["two", "users"]
    assert json.loads(plan.verdict_settings)["weights"] == {
        "document": 0.5,
        "as_written": 1.0,
        "levels": 0.5,
        "levels under users": 0.5,
    }
    assert "levels under users" not in plan.under(["two"]).verdict_settings
    without = make_plan(night.configure(more="weights = { levels = 0.5, document = 0.5 }"))
    assert "levels" not in without.verdict_settings


def test_a_plan_of_tokens_names_the_look_that_it_does_not_count(night, own_registry, model) -> None:
    """`green` is of version 1 with many messages."""
    fix_secrets(own_registry, "two")
    new_key(own_registry, "two", format="gumbel-v3", seeds=4, window=4, messages=1000, tokenizer=TOKENIZER)
    looks = [ScannedKey.of_config(configured(night, model), key_id).looks for key_id in ("two", "green")]
    assert looks[0].endswith("tested, which finds some more: tokens weighted by a model")
    assert "weighted" not in looks[1]


def test_a_pass_that_cannot_be_is_refused_before_any_work(night, model) -> None:
    with pytest.raises(Refused, match="none of the tested keys supports weights"):
        model_pass_of(make_plan(configured(night, model)))
    (model / "tokenizer.json").unlink()
    with pytest.raises(Refused, match=r"has no tokenizer\.json"):
        reader_sha256(model, "float32")
    with pytest.raises(Refused, match=r"weights\.levels is missing"):
        make_plan(configured(night, model, "weights = { document = 0.9 }"))
    with pytest.raises(Refused, match="a share of one GPU, or whole GPUs"):
        make_plan(night.configure(more=f'[levels]\nmodel = "{model}"\ngpus = 1.5'))


def test_a_digest_is_of_every_file_and_of_the_precision(model: Path) -> None:
    before = reader_sha256(model, "float32")
    assert reader_sha256(model, "bfloat16") != before
    (model / "model.safetensors").write_text("{ }")
    assert reader_sha256(model, "float32") != before
    (model / "model.safetensors").write_text("{}")
    assert reader_sha256(model, "float32") == before


@pytest.mark.parametrize("name", ["deep/w.safetensors", "../w.safetensors", "/w.safetensors", 7, []])
def test_a_model_whose_weights_lie_elsewhere_is_refused(model: Path, name: object) -> None:
    """The digest would stay as it is when they are swapped."""
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "w.safetensors"}}))
    reader_sha256(model, "float32")
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(Refused, match=r"names weights outside its folder|does not say where weights are"):
        reader_sha256(model, "float32")
    index.unlink()
    (model / "config.json").write_text(json.dumps({"transformers_weights": name}))
    if name:
        with pytest.raises(Refused, match=r"names weights outside its folder|does not say where weights are"):
            reader_sha256(model, "float32")
    (model / "config.json").write_text(json.dumps({"transformers_weights": "w.safetensors"}))
    reader_sha256(model, "float32")
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(Refused, match="an adapter for a model that is elsewhere"):
        reader_sha256(model, "float32")


def test_the_cut_reads_texts_of_small_p_under_one_message_and_long_ones_under_several(tmp_path, words, plain) -> None:
    folder = tmp_path / "registry"
    fix_secrets(folder, "one", "two")
    new_key(folder, "one", format="gumbel-v3", seeds=4, window=2, messages=1, tokenizer=TOKENIZER)
    new_key(folder, "two", format="gumbel-v3", seeds=4, window=2, messages=1000, tokenizer=TOKENIZER)
    tests, rules = opened(folder), Rules(1e-6, 2)
    texts = [plain(60, seed) for seed in range(200)] + [plain(5, 1)]
    by = LevelsConfig(model="m", cut=0.2)
    assert worth_reading(tests[1:], rules, by, texts).tolist() == [True] * 200 + [False]
    read = worth_reading(tests[:1], rules, by, texts)
    tokens = tests[0].tokenizer.encode(texts)
    positions = tests[0].watermark.rule.positions(tokens, rules.dedup)
    log10_p = log10_p_of(tests[0].watermark.law, tests[0].watermark.score(tokens, positions, 0), positions.scored)
    assert read[:200].tolist() == (log10_p[:200] <= np.log10(0.2)).tolist()
    assert 15 < read.sum() < 70  # 200 texts, each with a chance of a fifth
    assert not read[200]
    assert worth_reading(tests, rules, by, []).tolist() == []


def test_levels_are_those_of_the_text_that_was_put_and_nothing_for_others(tmp_path, words, plain) -> None:
    folder = tmp_path / "registry"
    fix_secrets(folder, "two")
    new_key(folder, "two", format="gumbel-v3", seeds=4, window=2, messages=1000, tokenizer=TOKENIZER)
    (test,) = opened(folder)
    texts = [plain(10, 1), "", plain(7, 2), "Zoë’s naïve 🙂🙂 text"]
    steps = [np.random.default_rng(i).integers(0, 60, len(text)).astype(np.uint8) for i, text in enumerate(texts)]
    levels = TextLevels.of_keys([test])
    levels.put(texts, steps)
    found = levels.of(test.key.tokenizer.sha256)(test.tokenizer.encode([texts[3], "unread text", texts[0]]))
    sizes = np.diff(test.tokenizer.encode([texts[3], "unread text", texts[0]]).offsets)
    parts = np.split(found, np.cumsum(sizes)[:-1])
    for part, place in ((parts[0], 3), (parts[2], 0)):
        assert part.tolist() == levels_of(steps[place], test.tokenizer.reference.begins(texts[place])).tolist()
    assert not parts[1].any()
    assert levels.of("another tokenizer")(Tokens(np.zeros(3, np.uint32), np.array([0, 3]))).tolist() == [0, 0, 0]


@pytest.mark.costly
def test_a_long_text_of_two_keys_at_the_threshold_is_proved() -> None:
    """The law of two keys of vLLM adds some 4e-8 to ln p for rounding, more than 1e-9 of ln p at this threshold."""
    form: Any = make_format("vllm-dual-key", {"alpha": 0.1})
    secret = form.draw_key(bytes([4]) * 32)
    mark, tokenizer = form.open(secret), demo_tokenizer().reference
    letters = np.random.default_rng(3).integers(ord("a"), ord("z") + 1, (30_000, 5)).astype(np.uint8)
    text = " ".join(word.tobytes().decode() for word in letters)[:115_000]
    tokens = demo_tokenizer().encode([text])
    assert 50_000 < len(tokens.ids) <= LONGEST_PROVED

    def of_tokens(tokens: Tokens) -> NDArray[np.uint8]:
        return np.where(tokens.ids % 100 == 1, 1, LEVELS).astype(np.uint8)

    positions = mark.rule.positions(tokens, "ngram")
    found = search(ByLevels(mark, of_tokens), tokens, positions, 1)
    found = found._replace(p_rank=np.full(found.message.shape, LEAST_RANK))
    path = ByLevelsProof(form.proof(secret), of_tokens, form)
    _, (score,) = path.scores(tokens.ids, [0], "ngram")
    assert not nearly_equal(score, found.score[0, 0])  # else this text shows nothing
    rate = 1.0001 * 10.0 ** found.log10_p_global[0, 0]

    def proof_of(found: KeyFindings) -> list[Proof]:
        prover = Prover([ProvedKey(lambda: path, tokenizer, 1, np.ones((1, 2, 2)))], bytes(16), Rules(rate, 1))
        decided = decide([found], rate)
        each = prover.prove(lambda _: text, [np.array([len(tokens.ids)])], [found], decided, b"", np.zeros(1, np.bool_))
        return [Proof(one) for one in each]

    assert proof_of(found) == [Proof.PROVED]
    larger = found.score + 2e-7
    log10_p = -larger / np.log(10.0)
    assert proof_of(found._replace(score=larger, log10_p=log10_p, log10_p_global=log10_p)) == [Proof.DIFFERS]

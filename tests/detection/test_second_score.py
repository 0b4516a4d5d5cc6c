"""The second score of flagged documents: its value, when it is computed, and that it decides nothing."""

import json
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scanner import results
from scanner.cluster import passes, todo
from scanner.cluster.work import find_work, inspect_input
from scanner.errors import Refused, ScanFailed, TokenizerError
from scanner.generation import load_model, token_log_probabilities
from scanner.input.files import list_files
from scanner.scan_plan import make_plan
from scanner.text.normal_form import normalise
from scanner.watermark import LogGumbel, neyman_pearson, scored_positions
from tests import reference2
from tests.chaos.worker import PLAN, FaultySecondWorker
from tests.support.encodings import found
from tests.support.groups import GROUPS, USERS, held, make_key, writer
from tests.support.night import Night
from tests.support.opened import opened
from tests.support.submitted import files_of, ray_logs, secrets_of
from tests.support.two_keys import message_of, words_of_one_token

LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ,.", np.uint8)
LN_R = '[second_score]\nscore = "ln_r"'


@pytest.fixture(scope="module")
def gum(registry):
    """The Gumbel key, opened, its record and its tokenizer."""
    gum = next(test for test in opened(registry) if test.key.key_id == "gum")
    return gum.watermark, gum.key, gum.tokenizer


@pytest.fixture(scope="module")
def gumbel_text(gum):
    """Text of so many bytes that the Gumbel key marked for a message, under laws drawn anew for every byte."""
    mark, _, tokenizer = gum
    ids = tokenizer.encode([LETTERS.tobytes().decode()]).ids
    letter_of = dict(zip(ids.tolist(), LETTERS.tobytes().decode(), strict=True))

    def make(message: int, length: int, seed: int) -> str:
        generator = np.random.default_rng(seed)
        text = list(generator.choice(ids, mark.window))
        while len(text) < length:
            weights = np.zeros(int(ids.max()) + 1)
            weights[ids] = generator.exponential(size=len(ids))
            nonce = mark.window_nonces(np.array([text[-mark.window :]], np.uint32))[0]
            text.append(mark.choose(nonce, message, weights))
        return "".join(letter_of[int(token)] for token in text)

    return make


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory, gum) -> Path:
    """A random model over the Gumbel key's tokenizer."""
    folder = tmp_path_factory.mktemp("byte-model")
    torch.manual_seed(2)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=257, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, **sizes)
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(Path(gum[1].tokenizer.file).read_bytes())
    return folder


pytestmark = pytest.mark.usefixtures("without_ray")  # except in tests that ask for Ray


@pytest.fixture
def mixed(night, registry, gumbel_text, marked, plain) -> Night:
    """Two shards: documents marked under the Gumbel key and under the green list, and plain ones."""
    bob, alice = message_of(registry, "gum", "bob"), message_of(registry, "green", "alice")
    night.write("a", [gumbel_text(bob, 300, 1), plain(60, 1), marked(alice, 80, 1), gumbel_text(bob, 400, 2)])
    night.write("b", [plain(60, 2), gumbel_text(bob, 350, 3)])
    return night


def scores(night: Night) -> pl.DataFrame:
    return results.second_scores(night.results).collect().sort("score_name", "path", "row")


def texts_of(night: Night, rows: pl.DataFrame) -> list[str]:
    return [pl.read_parquet(path)["text"][row] for path, row in rows.select("path", "row").iter_rows()]


def test_a_hidden_mark_is_found_in_the_normalised_text_whose_second_score_it_gets(
    night, registry, gumbel_text, marked, plain, gum
):
    bob, alice = message_of(registry, "gum", "bob"), message_of(registry, "green", "alice")
    texts = [marked(alice, 80, 1), gumbel_text(bob, 400, 2), plain(60, 1)]
    night.write("a", ["\u200b".join(text) for text in texts] + texts)
    night.scan()
    before = night.verdicts().sort("row")
    assert before["flagged"].to_list() == [False, False, False, True, True, False]
    night.configure(more="variants = { normalised = true }\n" + LN_R)
    outcome = night.scan()
    assert (outcome.totals.shards, outcome.second_scores, outcome.exit_code) == (1, 2, 0)
    rows = results.verdicts(night.results).collect().sort("row")
    assert rows["user_id"].to_list() == ["alice", "bob", None] * 2
    assert rows["variant"][:2].to_list() == ["normalised"] * 2
    assert rows["keys_tested"].to_list() == [4, 4, None, 2, 2, None]  # the others are their own normal form
    tokens = gum[2].encode([normalise("\u200b".join(texts[1]))])  # normalising also makes one space of two
    (scored,) = scored_positions(tokens, gum[1].parameters["window"], "ngram").scored.tolist()
    assert (rows["scored"][1], rows["tokens"][1]) == (scored, len(tokens.ids))
    assert scores(night).filter(pl.col("row") == 1)["scored"].to_list() == [scored]
    hidden = pl.col("variant") == "normalised"
    assert {0, 1} <= set(results.flagged(night.results).filter(hidden).collect()["row"])


@pytest.mark.costly
def test_flagged_documents_get_their_ln_r_score_once_and_verdicts_stay(mixed, gum):
    mixed.scan()
    before = mixed.verdicts()
    assert before["flagged"].sum() == 4
    mixed.configure(more=LN_R)
    shards = find_work(mixed.plan(), inspect_input(mixed.plan(), list_files(mixed.plan().locations))).found
    plan = mixed.plan()
    flagged = passes.flagged_without(plan, plan.second, shards)  # as a driver that comes too late
    outcome = mixed.scan()
    assert (outcome.totals.shards, outcome.second_scores) == (0, 3)  # nothing is scanned again
    rows = scores(mixed)
    assert mixed.verdicts().equals(before)
    assert rows["key_id"].unique().to_list() == ["gum"]
    _, key, tokenizer = gum
    tokens = tokenizer.encode(texts_of(mixed, rows))
    positions = scored_positions(tokens, key.parameters["window"], "ngram")
    secret = next((Path(mixed.registry) / "secrets").glob("gum*")).read_text().strip()
    plain_mark = LogGumbel(bytes.fromhex(secret), key.parameters["window"])
    wanted = plain_mark.score(tokens, positions, rows["message"].to_numpy())
    assert rows["score"].to_list() == wanted.tolist()
    assert rows["log10_p_not_independent"].to_list() == plain_mark.law.log10_p(wanted, positions.scored).tolist()
    assert (rows["log10_p_not_independent"] < -3).all()
    assert rows["fault"].null_count() == 3
    assert mixed.scan().second_scores == 0
    assert passes.second_pass(plan, plan.second, "late", shards, flagged) == 0
    assert scores(mixed).equals(rows)


@pytest.mark.costly
def test_flags_of_groups_get_a_score_of_whom_they_name_and_none_where_that_is_undecided(tmp_path):
    """The score counts all steps of the named message: a third are its group's, the others its own."""
    folder, key = make_key(tmp_path / "registry", "gumbel-v2", groups=GROUPS)
    messages, write = held((folder, key)), writer((folder, key), words_of_one_token())
    texts = [write(messages[USERS[3]], 140, 1), write(messages[USERS[3]], 700, 5, shared=True)]
    night = Night(tmp_path, folder)
    night.write("a", texts)
    night.configure(more=LN_R)
    assert night.scan().second_scores == 1
    assert night.verdicts()["naming"].to_list() == ["named", "undecided"]
    (row,) = scores(night).iter_rows(named=True)
    assert (row["row"], row["message"]) == (0, messages[USERS[3]])
    secret = bytes.fromhex((folder / "secrets" / "k.key").read_text())
    plain = reference2.Method("gumbel-log", secret, 2, groups=GROUPS)
    ids = key.tokenizer.encode(texts[:1]).ids.tolist()
    score, of_group = plain.scores(ids, row["message"])
    assert of_group < 0
    assert row["scored"] == len(plain.steps(ids))
    assert row["score"] == pytest.approx(score, rel=1e-12)
    assert row["log10_p_not_independent"] == pytest.approx(plain.log10_p(score, row["scored"]), rel=1e-9)


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_neyman_pearson_asks_the_model_and_shows_no_key(mixed, gum, byte_model, capfd):
    began = time.time()
    more = f'[second_score]\nscore = "neyman_pearson"\nmodel = "{byte_model}"\ntemperature = 1.2'
    mixed.configure(more=more)
    assert mixed.scan().second_scores == 3
    rows = scores(mixed)
    mark, key, tokenizer = gum
    tokens = tokenizer.encode(texts_of(mixed, rows))
    positions = scored_positions(tokens, key.parameters["window"], "ngram")
    split = np.split(tokens.ids, tokens.offsets[1:-1])
    log_p = np.concatenate(token_log_probabilities(load_model(byte_model), split, temperature=1.2))
    draws = mark.draws_of(tokens, positions, rows["message"].to_numpy())
    wanted = neyman_pearson(draws, log_p[positions.index], positions.offsets)
    assert rows["score"].to_list() == pytest.approx(wanted.score.tolist(), rel=1e-4)
    assert rows["log10_p_not_independent"].to_list() == pytest.approx(wanted.log10_p.tolist(), rel=1e-3)
    mixed.configure(more=LN_R)
    assert mixed.scan().second_scores == 3  # other settings get rows of their own
    assert scores(mixed)["score_name"].value_counts().sort("score_name")["count"].to_list() == [3, 3]

    logs, said = ray_logs(began), capfd.readouterr()
    assert any(name.startswith("worker") for name in logs)
    shown = {"rows": repr(scores(mixed).rows()), "output": said.out, "errors": said.err}
    tables = files_of(Path(mixed.results))
    assert any(name.startswith("second_scores") for name in tables)
    assert found(secrets_of(mixed.registry), {k: v.encode() for k, v in shown.items()} | tables | logs) == set()


@pytest.mark.costly
def test_an_interrupted_pass_goes_on_from_what_was_committed(mixed, monkeypatch):
    mixed.configure(more=LN_R)
    commit, calls = passes.commit, []

    def interrupted(*arguments):
        if calls:
            raise KeyboardInterrupt
        calls.append(arguments)
        return commit(*arguments)

    monkeypatch.setattr(passes, "commit", interrupted)
    assert mixed.scan().exit_code == 130
    assert 0 < scores(mixed).height < 3
    monkeypatch.undo()

    class Refusing:
        def __init__(self, *given: object) -> None:
            pass

        def prepare(self) -> None:
            raise Refused("no model on this machine")

    monkeypatch.setattr(passes, "SecondWorker", Refusing)
    with pytest.raises(ScanFailed, match="a worker cannot begin: no model on this machine"):  # of the second pass
        mixed.scan()
    assert mixed.last_scan()["exit_code"] == 1
    monkeypatch.undo()

    def no_table(*_) -> None:
        raise Refused("no table here")

    monkeypatch.setattr(passes, "open_tables", no_table)
    with pytest.raises(ScanFailed, match="no table here"):
        mixed.scan()
    monkeypatch.undo()
    mixed.scan()
    assert scores(mixed).select("path", "row").n_unique() == scores(mixed).height == 3


@pytest.mark.costly
def test_a_text_that_eats_memory_or_never_ends_gets_a_fault_and_the_others_a_score(
    night, registry, gumbel_text, ray_cluster, monkeypatch
):
    bob = message_of(registry, "gum", "bob")
    night.write("a", [gumbel_text(bob, 300, seed) for seed in range(3)])
    night.configure(more=LN_R)
    night.config.write_text(night.config.read_text() + "stall_seconds = 5\nworker_memory_mb = 1024\n")
    (night.folder / PLAN).write_text(json.dumps({"documents": {"a.parquet:1": "memory", "a.parquet:2": "endless"}}))
    monkeypatch.setattr(passes, "SecondWorker", FaultySecondWorker)
    monkeypatch.setattr(todo, "ATTEMPTS", 1)
    outcome = night.scan()
    assert (outcome.exit_code, outcome.second_scores) == (0, 3)
    rows = scores(night)
    assert rows["score"].is_null().to_list() == [False, True, True]
    assert [str(fault).split(":")[0] for fault in rows["fault"]] == ["None", "out_of_memory", "timed_out"]


@pytest.mark.costly
def test_without_the_gpus_that_it_asks_for_it_is_computed_on_cpus_and_says_so(
    night, registry, gumbel_text, ray_cluster, caplog
):
    night.write("a", [gumbel_text(message_of(registry, "gum", "bob"), 300, 1)])
    night.configure(more=LN_R + "\ngpus = 0.5")
    assert night.scan().second_scores == 1
    assert [record.message for record in caplog.records if "GPU" in record.message] == [
        "second_score.gpus = 0.5: the cluster has 0 GPUs, too few for one worker; second scores are computed on CPUs"
    ]


def test_what_cannot_be_computed_is_refused_before_any_work(mixed, byte_model, tmp_path):
    def refused(words: str, more: str, error: type = Refused) -> None:
        mixed.configure(more=more)
        with pytest.raises(error, match=words):
            mixed.scan()
        assert not results.exist(mixed.results)

    refused("no key under test is of method 'gumbel' or 'gumbel-v2'", f'keys = ["green"]\n{LN_R}')
    model = '[second_score]\nscore = "neyman_pearson"\nmodel = "{}"'
    refused("holds no tokenizer.json", model.format(tmp_path / "none"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    refused("'gum' is pinned to", model.format(other), TokenizerError)
    refused("needs model, the folder of a language model", '[second_score]\nscore = "neyman_pearson"')
    refused("'ln_r' asks none", f'{LN_R}\nmodel = "{byte_model}"')
    refused("a share of one GPU or whole ones", f"{LN_R}\ngpus = 1.5")
    refused("field 'second_score.score'", '[second_score]\nscore = "confirmation"')
    assert make_plan(mixed.configure(more=model.format("beside"))).second.model == str(mixed.folder / "beside")

"""Plans for configurations, and refusals of configurations before any work, in words."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from scanner.errors import Refused, TokenizerError
from scanner.research.attacks import ATTACKS_OF_REPORT
from scanner.research.plan import EvaluationPlan, plan_evaluation, read_evaluation, user_messages
from tests.research.conftest import PROMPTS

ROBUST = (
    "[robustness]\nprompts = 6\nkeys = 4\nkeys_a_prompt = 2\nwindows = [0, 4]\ntemperatures = [1.0]\ndeltas = [2.0]\n"
)
NAMED = "[identification]\nusers = 5\ntexts = 3\n"
SHORT = "max_new_tokens = 200\n"  # the model has 256 positions


def config(folder: Path, model: Path, more: str, top: str = "") -> Path:
    path = folder / "evaluation.toml"
    path.write_text(f'results = "out"\nmodel = "{model}"\nprompts = "prompts.txt"\nbatch = 4\n{SHORT}{top}{more}')
    return path


def plan(path: Path, prompts: list[str] = PROMPTS, paper_size: bool = False) -> EvaluationPlan:
    return plan_evaluation(read_evaluation(path, paper_size), path.parent, prompts)


def test_every_prompt_is_written_under_its_keys_and_twice_without(tmp_path, tiny_folder):
    made = plan(config(tmp_path, tiny_folder, ROBUST))
    assert [(c.setting.format.name, c.setting.format.window, c.setting.strength) for c in made.robustness] == [
        ("gumbel-v3", 0, 1.0), ("greenlist-v3", 0, 2.0), ("gumbel-v3", 4, 1.0), ("greenlist-v3", 4, 2.0),
    ]  # fmt: skip
    for cell in made.robustness:
        assert [len(unit.prompts) for unit in cell.units] == [4, 4, 4]
        pairs = [(p, k) for unit in cell.units for p, k in zip(unit.prompts, unit.keys, strict=True)]
        assert len(set(pairs)) == 12
        assert Counter(p for p, _ in pairs) == dict.fromkeys(PROMPTS[:6], 2)
        assert {message for unit in cell.units for message in unit.messages} == {0}
        assert cell.setting.temperature == (1.0 if cell.setting.format.name == "gumbel-v3" else 0.8)
    assert [pair[0].setting.temperature for pair in made.unmarked] == [0.8, 1.0]
    for first, second in made.unmarked:
        assert [unit.prompts for unit in first.units] == [unit.prompts for unit in second.units]
        assert not {unit.seed for unit in first.units} & {unit.seed for unit in second.units}
        assert not any(unit.keys or unit.messages for unit in first.units + second.units)
    assert made.attacks == tuple(a for a in ATTACKS_OF_REPORT if not a.startswith("paste") and a != "retokenise")
    assert made.identification == ()


def test_each_user_has_a_message_and_prompts_of_its_own(tmp_path, tiny_folder):
    made = plan(config(tmp_path, tiny_folder, NAMED, "version = 1\n"))
    assert [cell.setting.format.name for cell in made.identification] == ["gumbel", "greenlist"]
    assert {cell.searched for cell in made.identification} == {tuple(10**k for k in range(1, 7))}
    for cell in made.identification:
        rows = [(m, p) for unit in cell.units for m, p in zip(unit.messages, unit.prompts, strict=True)]
        assert len(set(rows)) == len(rows) == 15
        assert Counter(message for message, _ in rows) == dict.fromkeys(user_messages("1", 5), 3)
        assert {key for unit in cell.units for key in unit.keys} == {0}
    assert user_messages("1", 9)[:5] == user_messages("1", 5)
    assert user_messages("1", 9) != user_messages("2", 9)


def test_of_version_2_many_messages_are_searched_in_texts_under_keys_with_groups(tmp_path, tiny_folder):
    made = plan(config(tmp_path, tiny_folder, NAMED))
    few, many = tuple(10**k for k in range(1, 5)), tuple(10**k for k in range(5, 10))
    groups = 31623  # the least number whose square exceeds 10^9
    assert [(cell.setting.format.name, cell.setting.format.groups, cell.searched) for cell in made.identification] == [
        (name, count, searched)
        for count, searched in ((None, few), (groups, many))
        for name in ("gumbel-v3", "greenlist-v3")
    ]
    for cell in made.identification[2:]:
        messages = {message for unit in cell.units for message in unit.messages}
        assert len(messages) == 5
        assert {message // groups < 317 and message % groups < 317 for message in messages} == {True}
    alone = plan(config(tmp_path, tiny_folder, NAMED + "messages = [100000]\n"))
    assert [cell.setting.format.groups for cell in alone.identification] == [317, 317]


def test_the_papers_size_is_one_flag_away(tmp_path, tiny_folder):
    path = config(tmp_path, tiny_folder, ROBUST + NAMED)
    read = read_evaluation(path, True)
    assert read.robustness is not None
    assert read.identification is not None
    assert (read.robustness.prompts, read.robustness.keys, read.robustness.keys_a_prompt) == (1000, 10, 10)
    assert (read.identification.users, read.identification.texts) == (1000, 100)
    assert read.robustness.windows == (0, 4)
    with pytest.raises(Refused, match=r"robustness\.prompts = 1000: the file has 12 distinct prompts"):
        plan(path, paper_size=True)


@pytest.mark.parametrize(
    ("top", "more", "message"),
    [
        ("", "", "nothing to do: add a section"),
        ("top_k = 50\n", ROBUST, "field 'top_k' is unknown"),
        ("", ROBUST.replace("keys = 4", "keys = 1"), "'robustness.keys' = 1"),
        ("", ROBUST.replace("keys = 4", "keys = 3").replace("prompt = 2", "prompt = 4"), "keys_a_prompt = 4 is more"),
        ("", ROBUST.replace("[1.0]", "[]").replace("[2.0]", "[]"), "temperatures and deltas are both empty"),
        ("", ROBUST.replace("[1.0]", "[0.0]"), r"temperatures\.0' = 0\.0"),
        ("", ROBUST + 'attacks = ["typo:0.1"]\n', r"attacks\.0' = 'typo:0\.1'"),
        ("", ROBUST + 'attacks = ["substitute:0.0"]\n', r"attacks\.0' = 'substitute:0\.0'"),
        ("", ROBUST + 'attacks = ["paste:0.5"]\n', "paste needs text written by people"),
        ("", ROBUST + 'attacks = ["retokenise"]\n', "retokenise needs other_tokenizer or sentence_model"),
        ("", ROBUST + 'sentence_model = "nowhere"\n', r"sentence_model: no config\.json in .*nowhere"),
        ("", NAMED.replace("texts = 3", "texts = 13"), r"identification\.texts = 13: the file has 12"),
        ("", NAMED.replace("users = 5", "users = 600000"), "at most 500000 users can have texts"),
        ("", NAMED + "messages = [1]\n", r"messages\.0' = 1"),
        ("", NAMED + "false_positive_rates = [1.0]\n", r"false_positive_rates\.0' = 1\.0"),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(tmp_path, tiny_folder, top, more, message):
    with pytest.raises(Refused, match=message):
        plan(config(tmp_path, tiny_folder, more, top))


def test_a_prompt_shorter_than_its_window_is_refused_before_any_work(tmp_path, tiny_folder):
    made = config(tmp_path, tiny_folder, ROBUST)
    with pytest.raises(Refused, match=r"prompt 1 \(of 0 to 12\), 'Hi', has 1 tokens, fewer than the window of 4"):
        plan(made, [PROMPTS[0], "Hi", *PROMPTS[1:]])
    assert plan(config(tmp_path, tiny_folder, ROBUST.replace("[0, 4]", "[0, 1]")), ["Hi", *PROMPTS]).robustness


def test_a_prompt_too_long_for_the_model_is_refused_before_any_work(tmp_path, tiny_folder):
    """A prompt's length is that of the model's input: with its chat template, if it has one."""
    long = " ".join(["w3"] * 56)
    assert plan(config(tmp_path, tiny_folder, ROBUST), [long, *PROMPTS]).robustness
    words = r"prompt 0 \(of 0 to 12\), 'w3 .* has {} tokens, .* max_new_tokens = 200 do not fit .* 256 pos"
    with pytest.raises(Refused, match=words.format(57)):
        plan(config(tmp_path, tiny_folder, ROBUST), [f"{long} w3", *PROMPTS])
    chat = shutil.copytree(tiny_folder, tmp_path / "chat")
    template = "{% for m in messages %}<end> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w7{% endif %}"
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (chat / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(Refused, match=words.format(58)):
        plan(config(tmp_path, chat, ROBUST), [long, *PROMPTS])
    (tmp_path / "task.yaml").touch()
    assert plan(config(tmp_path, chat, '[utility]\ntasks = ["task.yaml"]\n'), [long]).exams  # continue no prompts


def test_files_that_are_not_there_are_named(tmp_path, tiny_folder):
    with pytest.raises(Refused, match=r"model = .*nowhere.*: no config\.json"):
        plan(config(tmp_path, tmp_path / "nowhere", ROBUST))
    with pytest.raises(TokenizerError, match=r"other\.json: cannot be loaded"):
        plan(config(tmp_path, tiny_folder, ROBUST + 'other_tokenizer = "other.json"\n'))
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be read"):
        plan(config(tmp_path, bare, ROBUST))
    path = config(tmp_path, tiny_folder, ROBUST)
    path.write_text(path.read_text().replace('"out"', '"s3://bucket/out"'))
    with pytest.raises(Refused, match="texts are kept in a folder"):
        plan(path)

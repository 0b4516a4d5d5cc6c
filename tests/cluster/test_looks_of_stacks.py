"""Which looks keys of other stacks get: what is done is what the check and the summary say."""

import pytest
import tokenizers

from jobs.summary import summary
from scanner.registry import admit_key, load_registry, new_key, open_key
from scanner.scan_plan import make_plan
from scanner.watermark.formats import make_format
from scanner.watermark.hidden_value import HiddenValue
from tests.support.command_line import call
from tests.support.marked_letters import admission, marked_letters
from tests.support.night import Night

pytestmark = pytest.mark.usefixtures("without_ray")

FORMS = {"vllm-gumbel": {}, "synthid-table": {}, "hf-selfhash": {"vocab_size": 300}}
NORMAL = "abcdefghijklmnopqrstuvwxyz.,;"
LOOKS = "variants = { normalised = true }\nspans = { windows = true }"


@pytest.fixture
def stacks_night(tmp_path, byte_tokenizer):
    """A night under keys of three stacks: a text of each mark, with a character between letters that is not seen."""
    folder, tokenizer = tmp_path / "registry", tokenizers.Tokenizer.from_file(str(byte_tokenizer))
    for name, parameters in FORMS.items():
        secret = HiddenValue(make_format(name, parameters).decoy_key(name.encode().ljust(32, b".")))
        new_key(folder, name, format=name, **parameters, messages=1, tokenizer=byte_tokenizer, secret_value=secret)
    admit_key(folder, "hf-selfhash", admission(1e-9, 1))
    night = Night(tmp_path, folder)
    texts = [marked_letters(open_key(folder, key), tokenizer, 7, NORMAL) for key in load_registry(folder).keys]
    night.write("a", ["\u200b".join(text) for text in texts])
    night.configure(rate=1e-4, more=LOOKS)
    return night


def test_disguised_text_is_found_where_the_law_is_of_a_drawn_key(stacks_night):
    """Laws of vLLM's and SynthID's drawn keys hold for any text; one that was audited says nothing of other texts."""
    done = stacks_night.scan()
    rows = stacks_night.verdicts().sort("row")
    assert rows["flagged"].to_list() == [True, True, False]
    assert rows["key_id"].to_list() == ["vllm-gumbel", "synthid-table", None]
    assert rows["variant"].to_list() == ["normalised", "normalised", None]
    assert set(rows["proof"][:2]) == {"proved"}
    plan = make_plan(stacks_night.config)
    said = " ".join(summary(done, plan.results, 1e-4, plan.cautions).split())
    assert "key hf-selfhash: scans do not look at normalised text" in said
    assert "keys vllm-gumbel, synthid-table, hf-selfhash: scans do not look at parts of texts" in said


def test_check_says_which_look_is_taken_under_which_key(stacks_night):
    out = call("scan", stacks_night.config, "--check")[1]
    assert "a look at normalised text: under vllm-gumbel, synthid-table alone" in out
    assert "a look at parts of texts: under none of the keys" in out
    assert "second look" not in out

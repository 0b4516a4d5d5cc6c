"""Attacks: what each changes and leaves alone in any text, with word tokens and with a real tokenizer's tokens."""

import string
from functools import cache
from pathlib import Path

import c2pa_text
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from jobs.demo import TOKENIZER
from scanner.errors import TokenizerError
from scanner.printable import without_manifests
from scanner.research.attacks import (
    ATTACKS_OF_REPORT,
    HOMOGLYPHS,
    Tools,
    attack,
    attack_texts,
    followers,
    imitate_text,
    new_share,
)
from schemas.evaluation import RobustnessConfig
from tests.watermark.strategies import few

WORDS = 500


@cache
def real_tools() -> Tools:
    return Tools.load(TOKENIZER, TOKENIZER, ["Once upon a time there was a village by the sea.", " \n", "It rained."])


def word_tools(human: tuple[str, ...] = ()) -> Tools:
    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tools(inner, inner, human)


PLAIN = word_tools(("w1 w2 w3", "w4"))
SEEDS = st.integers(0, 2**32 - 1)
RATES = st.floats(0.01, 1.0)
IDS = st.lists(st.integers(1, WORDS - 1), max_size=60)


def words(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def done(name: str, text: str, seed: int, tools: Tools = PLAIN) -> str:
    return attack(name, text, np.random.default_rng(seed), tools)


def is_subsequence(small: list[int], large: list[int]) -> bool:
    rest = iter(large)
    return all(item in rest for item in small)


@few
@given(IDS, SEEDS)
def test_substitution_at_rate_1_changes_every_token_and_keeps_their_number(ids, seed):
    after = PLAIN.ids(done("substitute:1.0", words(ids), seed))
    assert len(after) == len(ids)
    assert all(a != b for a, b in zip(after, ids, strict=True))


@few
@given(IDS, RATES, SEEDS)
def test_what_is_deleted_or_inserted_leaves_the_others_in_their_order(ids, rate, seed):
    assert is_subsequence(PLAIN.ids(done(f"delete:{rate}", words(ids), seed)), ids)
    assert is_subsequence(ids, PLAIN.ids(done(f"insert:{rate}", words(ids), seed)))


@pytest.mark.parametrize(("name", "rate"), [("substitute", 0.3), ("delete", 0.1), ("insert", 0.1)])
def test_rates_are_rates(name, rate):
    """40,000 tokens: within five standard deviations of the binomial law, so wrong once in 1.7 million seeds."""
    ids = np.random.default_rng(1).integers(1, WORDS, 40_000).tolist()
    after = PLAIN.ids(done(f"{name}:{rate}", words(ids), 2))
    count = {
        "substitute": lambda: sum(a != b for a, b in zip(ids, after, strict=True)),
        "delete": lambda: len(ids) - len(after),
        "insert": lambda: len(after) - len(ids),
    }[name]()
    assert abs(count - rate * len(ids)) < 5 * (rate * (1 - rate) * len(ids)) ** 0.5


def test_every_other_token_is_as_likely():
    """One token is replaced 60,000 times: chi-square over the other 499; its 1e-6 limit by Wilson and Hilferty."""
    after = np.array(PLAIN.ids(done("substitute:1.0", words([7] * 60_000), 3)))
    counts = np.delete(np.bincount(after, minlength=WORDS), 7)
    statistic = ((counts - 60_000 / 499) ** 2).sum() / (60_000 / 499)
    assert statistic < 498 * (1 - 2 / (9 * 498) + 4.7534 * (2 / (9 * 498)) ** 0.5) ** 3


@few
@given(IDS.filter(bool), st.sampled_from([0.1, 0.25, 0.5]), SEEDS)
def test_pasted_text_stands_whole_in_text_by_people_and_makes_up_its_share(ids, share, seed):
    text = words(ids)
    tools = word_tools((" ".join(["w0"] * 7),))
    result = done(f"paste:{share}", text, seed, tools)
    assert text in result
    before, _, behind = result.partition(text)
    around = tools.ids(before) + tools.ids(behind)
    assert set(around) <= {0}
    assert len(around) == round(len(ids) * (1 - share) / share)


@pytest.mark.seconds
@few
@given(st.text(max_size=80), SEEDS)
def test_homoglyphs_can_be_undone_letter_by_letter(text, seed):
    latin = {twin: letter for letter, twin in HOMOGLYPHS.items()}
    plain = "".join(c for c in text if c not in latin)
    after = done("homoglyphs:0.5", plain, seed)
    assert "".join(latin.get(c, c) for c in after) == plain
    assert not set(done("homoglyphs:1.0", plain, seed)) & set(HOMOGLYPHS)


def test_homoglyphs_are_other_letters_that_look_the_same():
    assert all(latin in string.ascii_letters and 0x400 <= ord(twin) < 0x500 for latin, twin in HOMOGLYPHS.items())


@few
@given(st.text(max_size=80), SEEDS)
def test_zero_width_characters_are_all_that_is_added(text, seed):
    plain = text.replace("\u200b", "")
    assert done("zero-width:0.5", plain, seed).replace("\u200b", "") == plain
    assert len(done("zero-width:1.0", plain, seed)) == 2 * len(plain)


@few
@given(st.text(string.printable, max_size=80))
def test_lower_case_and_a_lossless_tokenizer(text):
    assert done("lower", text, 0) == text.lower()
    assert done("retokenise", text, 0, real_tools()) == text


def test_a_tokenizer_that_loses_something_shows():
    assert attack("retokenise", "w1   unheard w2", np.random.default_rng(0), PLAIN) == "w1 w0 w2"


@few
@given(st.text(max_size=60), st.sampled_from(ATTACKS_OF_REPORT), SEEDS)
def test_any_text_survives_any_attack_with_a_real_tokenizer(text, name, seed):
    after = done(name, text, seed, real_tools())
    assert isinstance(after, str)
    after.encode()
    assert after == done(name, text, seed, real_tools())


def test_an_attack_on_a_text_does_not_depend_on_its_neighbours():
    texts = [words([i] * 20) for i in range(1, 9)]
    together = attack_texts("substitute:0.3", texts, "1", PLAIN)
    assert together[3:5] == attack_texts("substitute:0.3", texts[3:5], "1", PLAIN)
    assert together != attack_texts("substitute:0.3", texts, "2", PLAIN)


def test_what_cannot_be_attacked_is_told():
    with pytest.raises(ValueError, match=r"attack 'typo' is unknown; allowed: substitute:0\.3"):
        done("typo", "w1", 0)
    with pytest.raises(ValueError, match="paste needs text written by people"):
        done("paste:0.5", "w1", 0, word_tools((" ",)))
    with pytest.raises(ValueError, match="retokenise needs another tokenizer"):
        done("retokenise", "w1", 0, Tools(PLAIN.tokenizer))
    with pytest.raises(TokenizerError, match=r"tokenizer missing\.json: cannot be loaded"):
        Tools.load(Path("missing.json"))


def test_the_configuration_knows_the_same_attacks():
    how = RobustnessConfig(
        attacks=ATTACKS_OF_REPORT, sentence_model="x", human={"paths": ("x",)}  # type: ignore[arg-type]
    )  # fmt: skip
    assert how.attacks == ATTACKS_OF_REPORT


@few
@given(st.text(max_size=200), SEEDS)
def test_a_manifest_is_cut_off_again_and_is_the_one_of_the_specification(text, seed):
    text += "."  # unseen characters before a wrapper would be one run with it
    after = done("c2pa", text, seed)
    assert without_manifests(after) == without_manifests(text)
    assert after == text + c2pa_text.encode_wrapper(bytes(range(256)) * 6)


@few
@given(IDS, SEEDS, RATES)
def test_parts_are_parts(ids, seed, rate):
    text = words(ids)
    assert text.startswith(done(f"truncate:{rate}", text, seed))
    assert sorted(done("rearrange", text.replace(" ", ". "), seed).replace(".", "").split()) == sorted(text.split())
    assert done("quote", text, seed) == f"> {text}"
    assert done("strip-unicode", done("zero-width:1.0", text, seed), seed) == text


@few
@given(st.lists(st.sampled_from(["word", "long", "words", "However", "use", "the"]), max_size=40), SEEDS)
def test_removers_change_words_and_keep_their_number(chosen, seed):
    text = " ".join(chosen)
    swapped, other = done("swap-letters:1.0", text, seed).split(), done("synonyms", text, seed).split()
    assert [sorted(word) for word in swapped] == [sorted(word) for word in chosen]
    assert all((a != b) == (len(b) > 3 and b[1] != b[2]) for a, b in zip(swapped, chosen, strict=True))
    assert all((a != b) == (b in ("However", "use")) for a, b in zip(other, chosen, strict=True))
    assert all(a[0].isupper() == b[0].isupper() for a, b in zip(other, chosen, strict=True))


@few
@given(st.lists(IDS, max_size=4), st.integers(0, 4), SEEDS)
def test_every_ngram_of_a_forgery_was_in_a_text_or_begins_it_anew(texts, window, seed):
    made = imitate_text(followers(texts, window), window, 30, str(seed))
    known = {tuple(ids[i : i + window + 1]) for ids in texts for i in range(len(ids) - window)}
    assert len(made) == (30 if known else 0)
    anew = sum(tuple(made[end - window : end + 1]) not in known for end in range(window, len(made)))
    begun = 30 / (window + 1)  # each time that the chain begins, its first tokens follow others than in a text
    assert anew <= window * begun
    if window == 0 and known:
        assert {(token,) for token in made} <= known


def test_the_new_share_of_a_copy_is_nothing():
    ids = list(range(50))
    assert new_share(ids[5:30], [ids]) == 0.0
    assert new_share(list(range(100, 130)), [ids]) == 1.0

"""Marks of Hugging Face, SynthID and the paper's code: known answers, transformers' own classes, what is refused."""

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor, WatermarkLogitsProcessor

from scanner.watermark import Positions, batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.stacks.huggingface.format import CACHE_BYTES, KgwLefthashFormat, KgwSelfhashFormat
from scanner.watermark.stacks.synthid.format import PUBLISHED_KEYS, SynthIdMixedFormat, SynthIdTableFormat
from scanner.watermark.stacks.three_bricks.format import ThreeBricksMarylandFormat, ThreeBricksOpenaiFormat
from tests.watermark.known import cases, wrong

FORMS = {
    KgwLefthashFormat: 19,
    KgwSelfhashFormat: 17,
    SynthIdTableFormat: 13,
    SynthIdMixedFormat: 12,
    ThreeBricksOpenaiFormat: 32,
    ThreeBricksMarylandFormat: 29,
}
"""Formats, and the number of released answers of each: 36 of Hugging Face, 25 of SynthID and 61 of the paper."""


@pytest.mark.parametrize("form", FORMS)
def test_known_answers(form):
    ((group, some),) = cases(form).items()
    assert len(some) == FORMS[form]
    assert [line for case in some for line in wrong(form, group, case)] == []


def test_a_wrong_answer_is_noticed():
    for form, field, other in (
        (KgwLefthashFormat, "num_green_tokens", 8.0),
        (SynthIdTableFormat, "mean_score", 0.48148148),
        (ThreeBricksOpenaiFormat, "sum_float64_payload0", 61.7118),
    ):
        ((group, some),) = cases(form).items()
        assert wrong(form, group, some[0] | {"out": some[0]["out"] | {field: other}})


@pytest.mark.parametrize("seeding", ["lefthash", "selfhash"])
def test_green_lists_are_those_of_transformers(seeding):
    """The library's processor agrees on each scored token, under a key and width that no released answer has."""
    key, width, size = 2**40 + 12345, 3, 500
    theirs = WatermarkLogitsProcessor(
        vocab_size=size, device="cpu", hashing_key=key, seeding_scheme=seeding, context_width=width
    )
    form = (KgwLefthashFormat if seeding == "lefthash" else KgwSelfhashFormat)(vocab_size=size, context_width=width)
    mark = form.open(key.to_bytes(8, "big"))
    ids = np.random.default_rng(4).integers(1, size, 60).tolist()
    tokens = batch_tokens([[1, 2], ids])
    positions = mark.rule.positions(tokens, "none")
    wanted = []
    for place in positions.index.tolist():
        until = place + 1 if seeding == "selfhash" else place
        window = torch.tensor(tokens.ids[:until].astype(np.int64))
        wanted.append(int(tokens.ids[place]) in theirs._get_greenlist_ids(window).tolist())
    assert mark.green(tokens, positions).tolist() == wanted
    assert 0 < sum(wanted) < len(wanted)


def test_green_lists_that_are_kept_are_those_that_are_not():
    form = KgwLefthashFormat(vocab_size=49152)
    mark = form.open((15485863).to_bytes(8, "big"))
    tokens = batch_tokens([np.random.default_rng(1).integers(1, 60000, 3000).tolist()])
    positions = mark.rule.positions(tokens, "none")
    together = mark.green(tokens, positions)
    assert mark._lists._lists is not None
    assert mark._lists._lists[2].nbytes <= CACHE_BYTES
    few = Positions(positions.index[:300], np.array([0, 300]))
    assert form.open((15485863).to_bytes(8, "big")).green(tokens, few).tolist() == together[:300].tolist()


def test_bits_are_those_of_transformers():
    form = SynthIdTableFormat(depth=4, ngram_len=3, sampling_table_size=2**10, sampling_table_seed=5)
    keys = [7, 2**62 + 1, 99, 2**63 - 1]
    theirs = SynthIDTextWatermarkLogitsProcessor(3, keys, 2**10, 5, 1024, torch.device("cpu"))
    mark = form.open(b"".join(key.to_bytes(8, "big") for key in keys))
    ids = np.random.default_rng(2).integers(0, 10**5, 40)
    each = Positions(np.arange(2, 40), np.arange(39))
    ours = mark.ones(batch_tokens([ids.tolist()]), each).tolist()
    assert ours == theirs.compute_g_values(torch.tensor(ids[None]))[0].tolist()


def test_positions_whose_draw_no_key_changes_are_left_out():
    tokens = batch_tokens([[5, 0, 7, 8, 0, 9, 5, 6]])
    left = KgwLefthashFormat(vocab_size=100).rule().positions(tokens, "ngram")
    assert left.index.tolist() == [1, 3, 4, 6, 7]
    form = ThreeBricksMarylandFormat(vocab_size=100, window=1, seeding="skip")
    mark = form.open(form.decoy_key(bytes(range(32))))
    assert mark.rule.positions(tokens, "ngram").index.tolist() == [3, 4, 6, 7]


def test_windows_of_one_seed_count_once():
    """Under lefthash the token before decides alone, whatever the context width, so a pair of tokens counts once."""
    tokens = batch_tokens([[1, 2, 3, 9, 2, 3, 8, 2, 4]])
    rule = KgwLefthashFormat(vocab_size=100, context_width=2).rule()
    assert rule.positions(tokens, "ngram").index.tolist() == [2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize(
    ("form", "secret", "why"),
    [
        (KgwLefthashFormat(vocab_size=100), (4096).to_bytes(8, "big"), "not a multiple of 4,096"),
        (KgwSelfhashFormat(vocab_size=100), (2**63).to_bytes(8, "big"), r"below 2\^63"),
        (KgwLefthashFormat(vocab_size=100), bytes(7), "has 8 bytes"),
        (ThreeBricksOpenaiFormat(vocab_size=100, window=1), bytes(8) + (35317).to_bytes(8, "big"), "no key enters"),
        (ThreeBricksOpenaiFormat(vocab_size=100, window=1), b"\xff" * 8 + (35317).to_bytes(8, "big"), "no key enters"),
        (ThreeBricksOpenaiFormat(vocab_size=100), b"\1" * 8 + bytes(8), "no key enters"),
        (ThreeBricksMarylandFormat(vocab_size=100, window=2), b"\1" * 8 + b"\xff" * 8, "no key enters"),
        (ThreeBricksOpenaiFormat(vocab_size=100, window=0, seeding="min"), bytes(15) + b"\1", "window of 1 or more"),
        (ThreeBricksOpenaiFormat(vocab_size=100), bytes(8), "have 16 bytes"),
        (SynthIdTableFormat(), b"".join(key.to_bytes(8, "big") for key in PUBLISHED_KEYS), "anybody may make"),
        (
            SynthIdMixedFormat(depth=9),
            b"".join(key.to_bytes(8, "big") for key in PUBLISHED_KEYS[:9]),
            "published = true",
        ),
        (
            SynthIdTableFormat(depth=2, sampling_table_size=2**20),
            bytes(6) + b"\7\0" + bytes(5) + b"\1\0\0",
            "all below",
        ),
        (SynthIdTableFormat(depth=2), b"\xff" * 16, r"below 2\^63"),
        (SynthIdTableFormat(depth=2), bytes(8), "have 16 bytes"),
    ],
)
def test_keys_that_cannot_be(form, secret, why):
    with pytest.raises(ValueError, match=why):
        form.open(secret)


def test_payloads_are_fewer_than_the_vocabulary_and_published_keys_are_nobodys():
    form = ThreeBricksMarylandFormat(vocab_size=100)
    form.check_messages(100)
    with pytest.raises(ValueError, match="give 1 to 100"):
        form.check_messages(101)
    mark, tokens = form.open(form.decoy_key(bytes(32))), batch_tokens([list(range(50))])
    with pytest.raises(ValueError, match="0 to 99"):
        mark.score(tokens, mark.rule.positions(tokens, "ngram"), 100)
    assert SynthIdTableFormat(published=True).basis().assumed
    assert not SynthIdTableFormat().basis().assumed


@pytest.mark.parametrize("key", [(2**64 - 1) // 3, 2**62 - 1, 2**11 * 99991, 15485863])
def test_seeds_that_collide_count_once(key):
    """Under some keys different tokens name one seed; a pair of seed and token counts once, and seed 0 never."""
    form = KgwLefthashFormat(vocab_size=200, context_width=2)
    mark, proof = (opened(key.to_bytes(8, "big")) for opened in (form.open, form.proof))
    tokens = batch_tokens([np.random.default_rng(5).integers(0, 60, 400).tolist()])
    places = mark.rule.positions(tokens, "ngram").index
    seeds = [key * before % (2**64 - 1) % 2**32 for before in [0, *tokens.ids[:-1].tolist()]]
    wanted = {(seeds[t], int(tokens.ids[t])) for t in range(2, 400) if seeds[t]}
    assert len(places) == len(wanted) == len({(seeds[t], int(tokens.ids[t])) for t in places.tolist()})
    assert proof.scores(tokens.ids, [0], "ngram")[0] == len(places)


@pytest.mark.parametrize("name", ["hf-lefthash", "hf-selfhash", "three-bricks-openai"])
def test_a_rule_of_a_key_shows_nothing_to_try_keys_on(name):
    """Two openings of a key share their positions, another key has its own, and a repr has no digest of either."""
    form = make_format(name, {"vocab_size": 100})
    secrets = [form.decoy_key(bytes([first] * 32)) for first in (1, 1, 2)]
    one, again, other = (form.open(secret).rule for secret in secrets)
    assert one == again != other
    assert one.key not in repr(one)
    assert secrets[0].hex() not in repr(one)


@pytest.mark.parametrize("name", ["three-bricks-openai", "three-bricks-maryland"])
def test_what_no_key_decides_is_not_scored(name):
    """Under seed 0 a window of zeros hands on its last token under every salt; tokens beyond the vocabulary alias."""
    form = make_format(name, {"vocab_size": 100, "window": 2})
    salted = [form.open(seed + salt.to_bytes(8, "big")) for seed, salt in ((bytes(8), 35317), (b"\xff" * 8, 99991))]
    tokens = batch_tokens([[5, 0, 7, 8, 0, 9, 10, 105, 11, 12]])
    for mark in salted:
        scored = mark.rule.positions(tokens, "ngram").index.tolist()
        assert scored == [4, 5, 8, 9]  # not 3 and 6, after zeros, and not 7, which is token 105
    of_zeros = [mark.seeds(tokens)[3] for mark in salted]
    assert of_zeros == [7, 7]  # seeds of the window (0, 7)
    proof = form.proof(bytes(8) + (35317).to_bytes(8, "big"))
    assert proof.scores(tokens.ids, [0], "ngram")[0] == salted[0].rule.positions(tokens, "ngram").scored[0]


def test_a_share_of_which_no_token_is_green_is_refused():
    """Without green tokens the code would take the list for the other mark, whose scores are larger."""
    with pytest.raises(ValueError, match="of 300 tokens 0 would be green"):
        ThreeBricksMarylandFormat(vocab_size=300, gamma=0.001)

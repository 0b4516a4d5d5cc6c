"""SBW's green lists: what no key decides, which schemes are read, and how the law is spoken for."""

import json

import numpy as np
import pytest
from scipy import stats

from scanner.watermark import batch_tokens
from scanner.watermark.stacks.configs import read_config
from scanner.watermark.stacks.sbw.format import OF_NOTHING, SbwFormat, read_scheme
from scanner.watermark.stacks.sbw.proof import hashed
from scanner.watermark.stacks.shared import hashing_key

SEEDINGS = ("selfhash", "minhash", "additive")


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.mark.seconds
def test_windows_whose_draw_no_key_changes_are_left_out():
    tokens = batch_tokens([[0, 0, 0, 5, 0, 0, 7, 8]])
    additive = SbwFormat(seeding="additive", context_width=2).open(key(15485863))
    assert additive.rule.positions(tokens, "ngram").index.tolist() == [
        4,
        7,
    ]  # not after two zeros, and 5 after (5, 0) is 4 after (0, 5)
    minhash = SbwFormat(seeding="minhash", context_width=2)
    streams = [minhash.open(key(number)).streams(tokens)[2:4].tolist() for number in (15485863, 2**40 + 1)]
    assert streams[0] == streams[1] == [OF_NOTHING, OF_NOTHING]
    assert hashed(0) % 2**32 == OF_NOTHING
    assert not {2, 3, 6} & {*minhash.open(key(15485863)).rule.positions(tokens, "ngram").index.tolist()}


@pytest.mark.parametrize("seeding", SEEDINGS)
def test_equal_windows_count_once_and_words_of_one_call_differ(seeding):
    form = SbwFormat(seeding=seeding)
    mark = form.open(key(99991))
    text = [*range(100, 120)]
    once, twice = batch_tokens([text]), batch_tokens([text + text])
    seen = mark.rule.positions(once, "ngram")
    assert seen.scored[0] == len(text) - form.before
    assert mark.rule.positions(twice, "ngram").scored[0] == len(text)  # new windows where the copies meet
    assert mark.rule.positions(twice, "none").scored[0] == 2 * len(text) - form.before


@pytest.mark.parametrize(
    ("secret", "why"), [(4096, "not a multiple of 4,096"), (0, "at least 1"), (2**63, r"below 2\^63")]
)
def test_keys_that_cannot_be(secret, why):
    with pytest.raises(ValueError, match=why):
        hashing_key(key(secret))
    with pytest.raises(ValueError, match="has 8 bytes"):
        hashing_key(bytes(7))


def test_a_share_of_none_or_all_is_refused():
    with pytest.raises(ValueError, match="all tokens green, or none"):
        SbwFormat(gamma=1e-12)
    with pytest.raises(ValueError, match="all tokens green, or none"):
        SbwFormat(gamma=1 - 1e-12)


def test_schemes_of_the_package_are_read():
    for name, (seeding, width) in {
        "gpu-fused-selfhash-fullvocab": ("selfhash", 4),
        "gpu-fused-selfhash-100": ("selfhash", 4),
        "gpu-selfhash": ("selfhash", 4),
        "gpu-minhash": ("minhash", 4),
        "gpu-simple_1": ("additive", 1),
        "gpu-fused-simple_4-fullvocab": ("additive", 4),
    }.items():
        assert read_scheme(name) == {"seeding": seeding, "context_width": width}
    for name in ("selfhash", "simple_1", "gpu-selfhash-cpuhash", "gpu-skipgram", 7, None):
        with pytest.raises(ValueError, match="are not supported"):
            read_scheme(name)
    found = read_config(json.dumps({"hash_key": 15485863, "gamma": 0.25, "delta": 2.0}))
    assert (found.format, found.secret.value) == ("sbw", key(15485863))
    assert found.parameters == {"seeding": "selfhash", "context_width": 4, "gamma": 0.25}
    with pytest.raises(ValueError, match="field 'seeding_scheme': allowed are gpu-selfhash"):
        read_config('{"hash_key": 7, "seeding_scheme": "lefthash"}')


@pytest.mark.seconds
@pytest.mark.parametrize("seeding", SEEDINGS)
def test_marked_text_is_found_and_under_no_other_key(seeding):
    """Each token is a green one of eight: with 160 tokens p is at its floor of 2^-32, and other keys see nothing."""
    form, random = SbwFormat(seeding=seeding), np.random.default_rng(4)
    mark, ids = form.open(key(2**40 + 1234)), random.integers(1, 50_000, 4).tolist()
    for _ in range(160):
        some = batch_tokens([[*ids[-4:], token] for token in random.integers(1, 50_000, 8).tolist()])
        last = form.rule().positions(some, "none")
        green = np.flatnonzero(mark.score(some, last, 0) == mark.score(some, last, 0).max())
        ids.append(int(some.ids[some.offsets[green[0] + 1] - 1]))
    text = batch_tokens([ids])

    def p(number: int) -> float:
        other = form.open(key(number))
        positions = other.rule.positions(text, "ngram")
        return float(10.0 ** form.law().log10_p(float(other.score(text, positions, 0)[0]), int(positions.scored[0])))

    assert p(2**40 + 1234) == pytest.approx(2.0**-32, rel=1e-6)
    least = min(p(number) for number in range(1, 401, 2))
    assert stats.binom.sf(0, 200, least) > 1e-3

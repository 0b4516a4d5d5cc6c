"""What every format of another stack keeps: nothing of its key is shown, labels tell parameters apart, p is uniform."""

import copy
import hashlib
import pickle

import numpy as np
import pytest
from scipy import stats

from scanner.watermark import ragged
from scanner.watermark.format import Commits, DrawsKeys
from scanner.watermark.formats import FORMATS
from scanner.watermark.search import log10_p_of
from tests.watermark.test_no_key_shown import forms

PARAMETERS = {
    "vllm-gumbel": [{}, {"context_width": 5}, {"partial_contexts": "dropped"}],
    "vllm-dual-key": [{}, {"context_width": 5}, {"partial_contexts": "dropped"}, {"alpha": 0.2}],
    "sglang-one-key": [{}, {"context_window": 5}],
    "sglang-two-keys": [{}, {"context_window": 5}, {"mixing_probability": 0.3}],
    "sglang-user-keys": [{}, {"context_window": 5}],
}
ALL = [FORMATS[name].model_validate(parameters) for name, some in PARAMETERS.items() for parameters in some]
BITS = {"vllm": 64, "sglang": 32}


def secret_of(form, number: int = 0) -> bytes:
    return form.draw_key(hashlib.sha256(f"{form.label()} {number}".encode()).digest())


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_nothing_of_the_key_is_shown(form):
    secret = secret_of(form)
    mark = form.open(secret)
    tokens = ragged([list(range(30))])
    mark.score(tokens, mark.rule.positions(tokens, "ngram"), 0)
    whole = [str(int.from_bytes(secret[i : i + 8], "big")) for i in range(0, len(secret), 8)]
    hidden = forms(secret) + whole + [hex(int(number))[2:] for number in whole]
    for shown in (repr(mark), str(mark), repr([mark]), repr(vars(mark))):
        assert [form for form in hidden if form in shown] == []
    assert form.label() in repr(mark)
    for save in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            save(mark)


def test_labels():
    """Pinned: they stand in tables, shard ids and commitments."""
    labels = [form.label() for form in ALL]
    assert len(set(labels)) == len(labels)
    assert [FORMATS[name]().label() for name in PARAMETERS] == [
        "vllm-gumbel;prf=philox4x32-10-v1;context_width=4;partial=scored",
        "vllm-dual-key;prf=philox4x32-10-v1;context_width=4;partial=scored;alpha=0.1",
        "sglang-one-key;context_window=4",
        "sglang-two-keys;context_window=4;mixing_probability=0.5",
        "sglang-user-keys;context_window=4",
    ]


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_short_keys(form):
    """No commitment, which anybody could search; no p-value below what the key's bits can tell apart."""
    bits = BITS[form.name.split("-")[0]]
    assert not isinstance(form, Commits)
    assert isinstance(form, DrawsKeys)
    assert (form.basis().bits, str(form.basis())) == (bits, f"key-{bits}-bits")
    assert float(form.law().log10_p(1e5, 100)) == pytest.approx(-bits * np.log10(2.0))
    assert form.open(secret_of(form)).basis == form.basis()


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_p_is_uniform_over_drawn_keys(form):
    """One text with repeats, 4,000 keys: Kolmogorov-Smirnov at 1e-7."""
    rng = np.random.default_rng(3)
    tokens = ragged([rng.integers(0, 40, 90).tolist()])
    scores = []
    for number in range(4000):
        mark = form.open(secret_of(form, number))
        positions = mark.rule.positions(tokens, "ngram")
        scores.append(float(mark.score(tokens, positions, 0)[0]))
    p = 10.0 ** log10_p_of(form.law(), np.array(scores), positions.scored[0])
    assert stats.kstest(p, "uniform").pvalue > 1e-7


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_only_parameters_of_the_format(form):
    with pytest.raises(ValueError, match="window_size"):
        type(form).model_validate({"window_size": 4})
    assert form == type(form).model_validate(form.model_dump())

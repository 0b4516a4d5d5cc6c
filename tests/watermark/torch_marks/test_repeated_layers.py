"""SynthID lists that hold a key more than once: its layer is one source of bits, and counts once."""

import hashlib
import math

import numpy as np
import pytest

from scanner.watermark import batch_tokens
from scanner.watermark.formats import make_format

TEXT = batch_tokens([np.random.default_rng(3).integers(0, 32_000, 200).tolist()])
LISTS = 1500


def repeated(form, number: int, times: int, apart: int = 0) -> bytes:
    """A drawn list of 30 keys, in which each key stands so often; apart: by how much its places differ."""
    drawn = np.frombuffer(form.decoy_key(hashlib.sha256(b"%d" % number).digest()), ">u8")[: 30 // times]
    keys = [(key + apart * i) % 2**63 for i in range(times) for key in drawn.tolist()]
    return b"".join(key.to_bytes(8, "big") for key in keys)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "times", "apart"),
    [("synthid-table", 2, 0), ("synthid-table", 3, 2**16), ("synthid-mixed", 2, 0), ("synthid-mixed", 3, 0)],
)
def test_rate_of_repeated_keys(name, times, apart):
    """Of 1,500 lists no more than the stated share reaches a level, up to five standard errors."""
    form = make_format(name, {})
    marks = [form.open(repeated(form, number, times, apart)) for number in range(LISTS)]
    positions = form.rule().positions(TEXT, "ngram")
    p = np.exp([-float(mark.score(TEXT, positions, 0)[0]) for mark in marks])
    for level in (0.1, 0.01, 0.001):
        assert (p <= level).sum() <= LISTS * level + 5 * math.sqrt(LISTS * level)


@pytest.mark.parametrize("name", ["synthid-table", "synthid-mixed"])
def test_proof_of_repeated_keys(name):
    form = make_format(name, {})
    secret = repeated(form, 1, 3)
    mark, proof = form.open(secret), form.proof(secret)
    positions = form.rule().positions(TEXT, "ngram")
    assert proof.scores(TEXT.ids, [0], "ngram")[1] == pytest.approx(mark.score(TEXT, positions, 0).tolist(), rel=1e-9)


@pytest.mark.parametrize("name", ["synthid-table", "synthid-mixed"])
def test_decoys_repeat_as_the_key_does(name):
    form = make_format(name, {})
    ones = form.open(repeated(form, 1, 3)).decoy(1).ones(TEXT, form.rule().positions(TEXT, "ngram"))[0]
    assert ones[:10].tolist() == ones[10:20].tolist() == ones[20:].tolist()
    assert len(set(ones[:10].tolist())) > 3

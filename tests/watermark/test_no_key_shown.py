"""Neither the master key nor a sub-key appears in what a watermark shows of itself (no key byte in logs)."""

import copy
import pickle

import pytest

from tests import reference
from tests.support.key_bytes import forms
from tests.watermark.pairs import SECRET, greenlist, gumbel, log_gumbel

MAKERS = [greenlist, gumbel, log_gumbel]


def keys_of(pair) -> list[bytes]:
    chacha = b"".join(word.to_bytes(4, "little") for word in pair.plain.keys.chacha)
    return [SECRET, chacha, pair.plain.keys.sip]


@pytest.mark.parametrize("make", MAKERS)
def test_repr_and_str(make):
    pair = make(4)
    for shown in (repr(pair.fast), str(pair.fast), f"{pair.fast}", repr([pair.fast])):
        assert pair.fast.label in shown
        for key in keys_of(pair):
            assert [form for form in forms(key) if form in shown] == []


@pytest.mark.parametrize("make", MAKERS)
def test_every_attribute(make):
    """Debuggers and crash reports print attributes."""
    pair = make(4)
    shown = repr(vars(pair.fast))
    for key in keys_of(pair):
        assert [form for form in forms(key) if form in shown] == []


@pytest.mark.parametrize("make", MAKERS)
def test_it_can_not_be_pickled_or_copied(make):
    """A pickle would carry the sub-keys through Ray's object store or onto a disk."""
    for save in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            save(make(4).fast)


@pytest.mark.parametrize("make", MAKERS)
def test_a_refused_secret_is_not_in_the_message(make):
    for secret in (SECRET[:15], SECRET * 3):
        with pytest.raises(ValueError, match="16 to 64 bytes") as refused:
            make(4, secret=secret)
        assert [form for form in forms(secret[:12]) if form in str(refused.value)] == []


def test_the_commitment_is_no_sub_key():
    label = reference.label("gumbel", 4)
    assert not reference.commitment(SECRET, label).startswith(gumbel(4).plain.keys.sip)

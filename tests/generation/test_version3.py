"""Marking with keys of version 3: single steps against its reference, and what a tiny model writes, read again."""

import gc
from fractions import Fraction

import brickscan
import numpy as np
import pytest
import torch

from scanner.errors import ScanFailed
from scanner.generation import GreenListProcessor, GumbelProcessor
from scanner.generation.mark import Sampling, complete
from scanner.registry import load_registry, open_key
from scanner.registry.leases import HeldLease, readers_before
from scanner.registry.shown_seeds import read_shown
from scanner.watermark import batch_tokens, scored_positions
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.rule import search
from tests import reference3
from tests.generation import slow
from tests.generation.batches import LENGTHS, SAMPLING, SECRET, batch
from tests.support.showing import SEEDS, make_seeded_registry, show_text

MESSAGES = {None: [0, 17, 2**32 - 1, 300], 40: [0, 17, 1599, 840]}
GAMMA, BEACON = Fraction(3, 8), bytes(range(32))


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("groups", [None, 40])
def test_green_list_adds_delta_to_green_tokens_only(groups, extra):
    ids, own, logits = batch(1, extra)
    plain = reference3.Method("greenlist", SECRET, 2, GAMMA, groups, 12, BEACON)
    mark, messages = Version3GreenList(SECRET, 2, GAMMA, groups, 12, BEACON), MESSAGES[groups]
    found = GreenListProcessor(mark, messages, LENGTHS, delta=2.5)(ids, logits)
    for row, (previous, message) in enumerate(zip(own, messages, strict=True)):
        steps = [plain.step(previous[-2:], token) for token in range(logits.shape[1])]
        green = torch.tensor([plain.term(step, plain.number(message, step.of_group)) for step in steps])
        assert torch.equal(found[row], logits[row] + 2.5 * green)


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLING)
def test_gumbel_chooses_as_specified(groups, temperature, top_k, top_p):
    plain = reference3.Method("gumbel", SECRET, 2, None, groups, 12, BEACON)
    mark, messages = Version3Gumbel(SECRET, 2, groups, 12, BEACON), MESSAGES[groups]
    for seed in range(5):
        ids, own, logits = batch(seed, 1)
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        found = GumbelProcessor(mark, messages, LENGTHS, **how)(ids, logits)
        for row, (previous, message) in enumerate(zip(own, messages, strict=True)):
            p = slow.distribution(logits[row].tolist(), temperature, top_k, top_p)
            steps = [plain.step(previous[-2:], token) for token in range(len(p))]
            draws = [plain.draw(step, plain.number(message, step.of_group)) for step in steps]
            assert int(found[row].argmax()) == slow.chosen(draws, p)


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_what_a_model_writes_is_found(tiny, method, groups):
    mark = (
        Version3GreenList(SECRET, 2, GAMMA, groups, 12, BEACON)
        if method == "greenlist"
        else Version3Gumbel(SECRET, 2, groups, 12, BEACON)
    )
    messages = [17, 1599]
    written = complete(tiny, ["w5 w6 w7", "w9 w3 w40"], Sampling(150, delta=6.0), 1, mark, messages)
    ids = [[int(word[1:]) for word in one.text.split()] for one in written]
    assert min(map(len, ids)) > 100
    tokens = batch_tokens(ids)
    found = search(mark, tokens, scored_positions(tokens, 2, "ngram"), 1600)
    assert found.message[:, 0].tolist() == messages
    assert (found.log10_p_global[:, 0] < -6).all()


@pytest.mark.parametrize(("groups", "message"), [(None, 2**32), (40, 1600)])
def test_a_message_that_the_key_does_not_have_is_refused(groups, message):
    ids, _, logits = batch(1)
    mark = Version3GreenList(SECRET, 2, GAMMA, groups, 12, BEACON)
    processor = GreenListProcessor(mark, [message] * 4, LENGTHS, delta=2.5)
    with pytest.raises(ValueError, match=f"message {message} is out of range"):
        processor(ids, logits)


@pytest.mark.parametrize("groups", [None, 40])
def test_steps_whose_seeds_were_shown_are_not_marked(groups):
    """A green list leaves their logits; Gumbel samples the same token for every message."""
    ids, own, logits = batch(1)
    buckets = [reference3.bucket_of(reference3.window_nonces(previous[-2:], 12)[0], 12) for previous in own]
    assert len({*buckets}) == 4
    shown = np.array(sorted(buckets[:2]), np.int64)
    green = Version3GreenList(SECRET, 2, GAMMA, groups, 12, BEACON)
    before, after = (
        GreenListProcessor(mark, MESSAGES[groups], LENGTHS, delta=2.5)(ids, logits)
        for mark in (green, green.leave_out(shown))
    )
    assert torch.equal(after[:2], logits[:2])
    assert torch.equal(after[2:], before[2:])
    assert not torch.equal(before[:2], logits[:2])
    gumbel = Version3Gumbel(SECRET, 2, groups, 12, BEACON)
    chosen = [
        [
            GumbelProcessor(mark, [message] * 4, LENGTHS, seed=5)(ids, logits).argmax(dim=1).tolist()
            for message in range(30)
        ]
        for mark in (gumbel, gumbel.leave_out(shown))
    ]
    with_mark, without = np.array(chosen)
    assert (without[:, :2] == without[0, :2]).all()
    assert (with_mark[:, :2] != with_mark[0, :2]).any(axis=0).all()
    assert (with_mark[:, 2:] == without[:, 2:]).all()


def test_the_command_and_the_library_leave_out_what_the_registry_says(tmp_path):
    folder = make_seeded_registry(tmp_path / "registry")
    (key,) = load_registry(folder).keys
    assert not open_key(folder, key).leaves_out_any
    show_text(folder, "one two three four five six seven")
    shown = read_shown(folder, key).buckets
    for mark in (open_key(folder, key), brickscan.open(folder).mark("seeded")):
        nonces = np.stack([shown.astype(np.uint64) << np.uint64(64 - SEEDS)] * 2, axis=1)
        assert mark.are_shown(nonces).all()
        assert mark.are_shown(nonces + np.uint64(1 << 63)).mean() < 0.5


def test_a_mark_holds_a_lease_and_refuses_once_it_is_over(tmp_path):
    folder = make_seeded_registry(tmp_path / "registry")
    mark = brickscan.open(folder).mark("seeded")
    gc.collect()
    (lease,) = readers_before(folder, "seeded", 1)
    assert (lease.kind, lease.events) == ("program", {"seeded": 0})
    ids, _, logits = batch(1)
    lengths = [max(length, 3) for length in LENGTHS]
    processor = GreenListProcessor(mark, [3] * 4, lengths, delta=2.5)
    processor(ids, logits)
    (file,) = (folder / "leases").glob("*.json")
    file.unlink()
    (held,) = (one for one in gc.get_objects() if isinstance(one, HeldLease) and one._path == file)
    held.renew()
    with pytest.raises(ScanFailed, match="this lease could not be renewed"):
        processor(ids, logits)
    again = brickscan.open(folder).mark("seeded")
    GreenListProcessor(again, [3] * 4, lengths, delta=2.5)(ids, logits)
    del again
    gc.collect()
    assert readers_before(folder, "seeded", 1) == []

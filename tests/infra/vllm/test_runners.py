"""Under stand-ins for vLLM's two model runners, the plugin makes transformers' logits, bit for bit."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from brickscan_vllm import door
from brickscan_vllm.marking import Marker, find_key, open_key
from brickscan_vllm.request import read_request
from brickscan_vllm.runners import BatchRows, SlotRows

from scanner.generation import GreenListProcessor, GumbelProcessor
from scanner.gpu.vectors import RowSampling
from scanner.registry import load_registry
from scanner.registry import open_key as open_registered
from scanner.watermark import GreenList
from scanner.watermark.native.version3_marks import Version3GreenList
from tests import reference3
from tests.generation import slow
from tests.infra.vllm.conftest import KINDS
from tests.infra.vllm.stand_ins import CPU, Direction, States, Update, params, step

VOCABULARY = 97
REQUESTS = {
    0: params(0, temperature=0.8, top_p=0.9),
    1: params(17, temperature=1.3, top_k=7),
    2: params(4998, top_k=20, top_p=0.6),
    3: params(5),
    4: params(2000, temperature=0.7),
}
PROMPTS = {0: [5, 9, 12, 80], 1: [7, 7, 7], 2: [1, 2, 3, 4, 5, 6], 3: [96, 0, 44], 4: [8, 8, 9]}
OUTPUTS = {0: [33, 34], 1: [], 2: [90, 91, 92, 93], 3: [2], 4: [50, 51, 52]}


def logits_of(rows: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (rows, VOCABULARY)).astype(np.float32))


def no_penalties(logits, asked):
    raise AssertionError("nobody asked for a penalty")


def batch_rows(settings, penalise=no_penalties):
    record = find_key(settings)
    marker = Marker(open_key(settings), CPU)
    return BatchRows(marker, lambda asked: read_request(asked, record, None), CPU, 16, penalise)


def slot_rows(settings, states):
    record = find_key(settings)
    return SlotRows(Marker(open_key(settings), CPU), lambda asked: read_request(asked, record, None), states)


def by_transformers(registry, key_id, tokens, asked, logits):
    """The logits of one row, alone in its batch, after brickscan's own processor for transformers."""
    key = next(key for key in load_registry(registry).keys if key.key_id == key_id)
    mark = open_registered(registry, key)
    ids, message = torch.tensor([tokens]), [asked.extra_args["brickscan_message"]]
    if isinstance(mark, GreenList | Version3GreenList):
        return GreenListProcessor(mark, message, [len(tokens)], delta=2.5)(ids, logits[None])[0]
    how = {"temperature": asked.temperature, "top_k": asked.top_k, "top_p": asked.top_p}
    return GumbelProcessor(mark, message, [len(tokens)], **how)(ids, logits[None])[0]


@pytest.mark.parametrize("key_id", KINDS)
def test_v1_makes_what_transformers_makes(settings, keys, key_id):
    rows, before = batch_rows(settings(key_id)), logits_of(5)
    rows.update_state(Update(added=[(row, REQUESTS[row], PROMPTS[row], OUTPUTS[row]) for row in REQUESTS]))
    found = rows.apply(before.clone())
    for row, asked in REQUESTS.items():
        wanted = by_transformers(keys, key_id, PROMPTS[row] + OUTPUTS[row], asked, before[row])
        assert torch.equal(found[row], wanted)


@pytest.mark.parametrize("key_id", KINDS)
def test_v2_makes_what_transformers_makes(settings, keys, key_id):
    """Slots and rows differ in order. The second request has two drafts, and each of its rows has its own window."""
    states, before = States(), logits_of(7)
    rows = slot_rows(settings(key_id), states)
    slots = {0: 6, 1: 2, 2: 0, 3: 7, 4: 3}
    for request, slot in slots.items():
        states.put(slot, PROMPTS[request] + OUTPUTS[request], len(PROMPTS[request]))
        assert rows.add_request(slot, REQUESTS[request])
    rows.apply_staged_writes()
    order, drafts = [3, 1, 4, 0, 2], {1: [60, 61]}
    committed = {request: PROMPTS[request] + OUTPUTS[request] for request in order}
    found = rows.apply(before.clone(), step([(slots[r], committed[r], drafts.get(r, [])) for r in order]))
    expanded = [(request, at) for request in order for at in range(1 + len(drafts.get(request, [])))]
    for row, (request, at) in enumerate(expanded):
        tokens = committed[request] + drafts.get(request, [])[:at]
        wanted = by_transformers(keys, key_id, tokens, REQUESTS[request], before[row])
        assert torch.equal(found[row], wanted)


@pytest.mark.parametrize("key_id", ["greenlist-v3", "gumbel-v3", "greenlist-groups", "gumbel-groups"])
def test_version_3_makes_what_the_reference_makes(settings, keys, key_id):
    rows, before = batch_rows(settings(key_id)), logits_of(5)
    rows.update_state(Update(added=[(row, REQUESTS[row], PROMPTS[row], OUTPUTS[row]) for row in REQUESTS]))
    found = rows.apply(before.clone())
    secret = bytes.fromhex((keys / f"secrets/{key_id}.key").read_text())
    record = find_key(settings(key_id))
    beacon = bytes.fromhex(record.parameters["beacon"])
    gamma = Fraction(record.parameters["gamma"]) if "gamma" in record.parameters else None
    seeds, groups = record.parameters["seeds"], record.parameters.get("groups")
    plain = reference3.Method("gumbel" if gamma is None else "greenlist", secret, 3, gamma, groups, seeds, beacon)
    for row, asked in REQUESTS.items():
        steps = [plain.step((PROMPTS[row] + OUTPUTS[row])[-3:], token) for token in range(VOCABULARY)]
        number = plain.number(asked.extra_args["brickscan_message"], steps[0].of_group)
        if gamma is not None:
            bias = [2.5 * plain.term(step, number) for step in steps]
            assert torch.equal(found[row], before[row] + torch.tensor(bias))
        else:
            p = slow.distribution(before[row].tolist(), asked.temperature, asked.top_k, asked.top_p)
            chosen = slow.chosen([plain.draw(step, number) for step in steps], p)
            assert found[row].tolist() == [0.0 if v == chosen else -np.inf for v in range(VOCABULARY)]


@pytest.mark.costly
def test_rows_follow_their_requests(settings):
    """Requests come, go, move and change places for 60 steps; each row is marked as if its request were alone."""
    chosen = settings("greenlist")
    rows, random = batch_rows(chosen), np.random.default_rng(4)
    batch: list[SimpleNamespace] = []
    for number in range(60):
        removed = [row for row in range(len(batch)) if random.random() < 0.2]
        staying = [one for row, one in enumerate(batch) if row not in removed]
        moved = []
        for to in removed:  # the last rows move into the holes, as vLLM does it
            last = max((row for row in range(len(batch)) if row not in removed), default=-1)
            if last > to:
                moved.append((last, to, Direction.UNIDIRECTIONAL))
                batch[to] = batch[last]
                removed = [*removed, last]
        batch = batch[: len(staying)]
        holes = [row for row in removed if row not in [one for one, _, _ in moved]]
        rows.update_state(Update(removed=holes, moved=moved))
        if len(batch) > 1:
            batch[0], batch[-1] = batch[-1], batch[0]
            rows.update_state(Update(moved=[(0, len(batch) - 1, Direction.SWAP)]))
        if len(batch) < 6:
            message = int(random.integers(0, 4999))
            new = SimpleNamespace(
                asked=params(message - (message % 20 == 19)), prompt=random.integers(0, 97, 3).tolist(), output=[]
            )
            rows.update_state(Update(added=[(len(batch), new.asked, new.prompt, new.output)]))
            batch.append(new)
        rows.update_state(None)
        before = logits_of(len(batch), number)
        found = rows.apply(before.clone())
        for row, one in enumerate(batch):
            alone = batch_rows(chosen)
            alone.update_state(Update(added=[(0, one.asked, one.prompt, one.output)]))
            assert torch.equal(found[row], alone.apply(before[row : row + 1].clone())[0])
            one.output.append(int(random.integers(0, 97)))


def steps_counted():
    return {name: door.STEPS.labels(name)._value.get() for name in door.OUTCOMES}


@pytest.mark.parametrize("key_id", ["greenlist", "gumbel"])
def test_what_cannot_be_marked_is_left_and_counted(settings, key_id):
    """Two cases: a text of fewer tokens than the window, and a step with one possible token."""
    rows, before = batch_rows(settings(key_id)), logits_of(2)
    rows.update_state(Update(added=[(0, REQUESTS[0], [5, 9], []), (1, REQUESTS[3], PROMPTS[3], OUTPUTS[3])]))
    before[1, 1:] = -torch.inf
    counted = steps_counted()
    found = rows.apply(before.clone())
    assert torch.equal(found[0], before[0])
    assert int(found[1].argmax()) == 0
    rows.apply(before.clone())  # the same step again, without a new token, is not counted
    after = steps_counted()
    assert {name: after[name] - counted[name] for name in after} == {"marked": 0, "forced": 1, "unmarked": 1}
    finished = door.FINISHED.labels("none")._value.get()
    rows.update_state(Update(removed=[0]))
    rows._counts.tell()
    assert door.FINISHED.labels("none")._value.get() == finished + 1


@pytest.mark.parametrize(("temperature", "outcome"), [(1.0, "marked"), (0.01, "forced")])
def test_a_temperature_near_0_is_counted(settings, temperature, outcome):
    """A temperature near 0 makes greedy text, which carries no Gumbel mark."""
    rows, counted = batch_rows(settings("gumbel")), steps_counted()
    rows.update_state(Update(added=[(0, params(4, temperature=temperature), PROMPTS[0], [])]))
    rows.apply(logits_of(1))
    after = steps_counted()
    assert {name for name in after if after[name] > counted[name]} == {outcome}


def test_v2_counts_neither_slots_without_a_request_nor_prompts_that_are_read_in_parts(settings):
    states = States()
    rows = slot_rows(settings("gumbel"), states)
    for slot in (1, 2, 3):
        states.put(slot, [1, 2, 3, 4, 5, 6], 6)
        rows.add_request(slot, REQUESTS[0])
    rows.apply_staged_writes()
    counted = steps_counted()
    before = logits_of(4)
    context = step([(1, [1, 2, 3, 4], []), (2, [1, 2, 3, 4, 5, 6], []), (3, [1, 2], []), (-1, [4], [])])
    found = rows.apply(before.clone(), context)
    assert torch.equal(found[2:], before[2:])
    after = steps_counted()
    assert {name: after[name] - counted[name] for name in after} == {"marked": 1, "forced": 0, "unmarked": 0}


def test_a_slot_forgets_whose_it_was(settings):
    states, before = States(), logits_of(1)
    rows = slot_rows(settings("greenlist"), states)
    states.put(4, PROMPTS[2], 6)
    found = []
    for request in (2, 3):
        rows.add_request(4, REQUESTS[request])
        rows.apply_staged_writes()
        found.append(rows.apply(before.clone(), step([(4, PROMPTS[2], [])])))
    alone = batch_rows(settings("greenlist"))
    alone.update_state(Update(added=[(0, REQUESTS[3], PROMPTS[2], [])]))
    assert torch.equal(found[1], alone.apply(before.clone()))
    assert not torch.equal(found[0], found[1])


def test_hidden_tokens_are_refused(settings):
    """V1 puts −1 in the place of tokens that are still on their way to the host."""
    rows = batch_rows(settings("greenlist"))
    rows.update_state(Update(added=[(0, REQUESTS[0], PROMPTS[0], [4, -1])]))
    with pytest.raises(RuntimeError, match="--no-async-scheduling"):
        rows.apply(logits_of(1))
    with pytest.raises(RuntimeError, match="row 1 of 2 has no request"):
        rows.apply(logits_of(2))


def test_gumbel_takes_penalties_and_min_p_into_its_choice(settings):
    told = []

    def penalise(logits, asked):
        told.extend(asked)
        logits[:, : VOCABULARY - 1] = -torch.inf
        return logits

    rows, before = batch_rows(settings("gumbel"), penalise), logits_of(2)
    least = float((before[1] - before[1].max()).exp().sort().values[-2]) * 1.01  # only the most probable one is left
    asked = [params(1, presence_penalty=0.5), params(2, min_p=least)]
    rows.update_state(Update(added=[(row, asked[row], PROMPTS[row], [3, 4]) for row in (0, 1)]))
    found = rows.apply(before.clone())
    assert told == [(PROMPTS[0], [3, 4], (1.0, 0.0, 0.5))]
    assert int(found[0].argmax()) == VOCABULARY - 1
    assert int(found[1].argmax()) == int(before[1].argmax())


def test_large_batches_are_marked_in_parts(settings, monkeypatch):
    found = []
    for at_once in (1 << 23, 2 * VOCABULARY):
        monkeypatch.setattr("brickscan_vllm.marking.AT_ONCE", at_once)
        marker, logits = Marker(open_key(settings("gumbel")), CPU), logits_of(5)
        windows = torch.arange(15).view(5, 3)
        one = torch.ones(5, dtype=torch.float64)
        how = RowSampling(one, 0.9 * one, 0 * one, torch.arange(5), True)
        marker.mark(logits, windows, torch.arange(5), torch.arange(5) != 3, how)
        found.append(logits)
    assert torch.equal(*found)
    assert (found[0][3] > -torch.inf).all()

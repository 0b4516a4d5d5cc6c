"""A server marks no step whose seed a claim showed, and does not start where it cannot read which these are."""

import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from brickscan_vllm.marking import Marker, open_key, open_marker

from scanner.errors import Refused, ScanFailed
from scanner.gpu.vectors import RowSampling
from scanner.registry.leases import readers_before
from scanner.registry.shown_seeds import append_event, shown_path
from tests import reference3
from tests.infra.vllm.conftest import KINDS
from tests.infra.vllm.stand_ins import CPU

ROWS, VOCABULARY = 60, 97


@pytest.fixture
def own_keys(keys, tmp_path) -> Path:
    return Path(shutil.copytree(keys, tmp_path / "keys"))


def marked(settings):
    generator = np.random.default_rng(3)
    logits = torch.from_numpy(generator.normal(0, 2, (ROWS, VOCABULARY)).astype(np.float32))
    windows = torch.from_numpy(generator.integers(0, VOCABULARY, (ROWS, 3)))
    one, on = torch.ones(ROWS, dtype=torch.float64), torch.arange(ROWS) != 7
    before = logits.clone()
    how = RowSampling(one, one, 0 * one, torch.zeros(ROWS, dtype=torch.int64), False)
    forced = Marker(open_key(settings), CPU).mark(logits, windows, torch.arange(ROWS), on, how)
    return before, logits, windows, forced


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].get("seeds")])
def test_steps_whose_seeds_were_shown_are_not_marked(kind, own_keys, settings):
    served = settings(kind)._replace(registry=own_keys)
    seeds = KINDS[kind]["seeds"]
    before, plain, windows, forced = marked(served)
    buckets = [reference3.bucket_of(reference3.window_nonces(window, seeds)[0], seeds) for window in windows.tolist()]
    shown = sorted({*buckets[::2]})
    leaves = [bucket.to_bytes(32, "big") for bucket in shown]
    append_event(own_keys, kind, b"a text", shown, leaves)
    _, logits, _, forced_then = marked(served)
    are_shown = torch.tensor([bucket in shown for bucket in buckets])
    assert 0 < are_shown.sum() < ROWS
    assert torch.equal(logits[are_shown], before[are_shown])
    assert torch.equal(logits[~are_shown], plain[~are_shown])
    assert not torch.equal(plain[are_shown], before[are_shown])
    assert torch.equal(forced_then, forced | are_shown)
    assert "shown" not in repr(open_key(served))


def test_a_server_that_cannot_read_what_was_shown_does_not_start(own_keys, settings):
    served = settings("gumbel-v3")._replace(registry=own_keys)
    append_event(own_keys, "gumbel-v3", b"a text", [5], [bytes(32)])
    path = Path(shown_path(own_keys, "gumbel-v3"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(Refused, match="its last line has no end; restore the file"):
        open_key(served)


def test_a_server_reads_anew_each_minute_and_marks_nothing_once_its_lease_is_over(own_keys, settings, caplog):
    served = settings("greenlist-v3")._replace(registry=own_keys)
    marker = open_marker(served, CPU)
    before, plain, windows, _ = marked(served)

    def logits_now(marker):
        one, logits = torch.ones(ROWS, dtype=torch.float64), before.clone()
        how = RowSampling(one, one, 0 * one, torch.zeros(ROWS, dtype=torch.int64), False)
        marker.mark(logits, windows, torch.arange(ROWS), torch.arange(ROWS) != 7, how)
        return logits

    assert torch.equal(logits_now(marker), plain)
    seeds = KINDS["greenlist-v3"]["seeds"]
    buckets = [reference3.bucket_of(reference3.window_nonces(window, seeds)[0], seeds) for window in windows.tolist()]
    append_event(own_keys, "greenlist-v3", b"a text", [buckets[0]], [bytes(32)])
    (lease,) = readers_before(own_keys, "greenlist-v3", 1)
    assert (lease.kind, lease.events) == ("server", {"greenlist-v3": 0})
    for holds_before in (True, False):  # what began before the new event was in force is over at the next renewal
        marker._lease.renew()
        assert bool(readers_before(own_keys, "greenlist-v3", 1)) == holds_before
        are_shown = torch.tensor([bucket == buckets[0] for bucket in buckets])
        assert torch.equal(logits_now(marker), torch.where(are_shown[:, None], before, plain))
    path = Path(shown_path(own_keys, "greenlist-v3"))
    content = path.read_bytes()
    path.write_bytes(content[:-2])  # it cannot be read anew
    marker._lease.renew()
    assert not caplog.records
    for _ in range(2):
        assert torch.equal(logits_now(marker), before)
    (said,) = caplog.messages
    assert said.startswith("nothing is marked until this server is restarted: ")
    assert "its last line has no end" in said
    path.write_bytes(content)
    marker._lease.renew()
    assert torch.equal(logits_now(marker), before)  # for good
    assert not torch.equal(logits_now(open_marker(served, CPU)), before)


def test_a_process_that_was_forked_marks_by_what_was_shown_since(own_keys, settings, monkeypatch):
    served = settings("greenlist-v3")._replace(registry=own_keys)
    marker = open_marker(served, CPU)
    before, plain, windows, _ = marked(served)
    seeds = KINDS["greenlist-v3"]["seeds"]
    buckets = [reference3.bucket_of(reference3.window_nonces(window, seeds)[0], seeds) for window in windows.tolist()]
    append_event(own_keys, "greenlist-v3", b"a text", [buckets[0]], [bytes(32)])
    own = os.getpid()
    monkeypatch.setattr("scanner.registry.leases.os.getpid", lambda: own + 1)
    one, logits = torch.ones(ROWS, dtype=torch.float64), before.clone()
    how = RowSampling(one, one, 0 * one, torch.zeros(ROWS, dtype=torch.int64), False)
    marker.mark(logits, windows, torch.arange(ROWS), torch.arange(ROWS) != 7, how)
    are_shown = torch.tensor([bucket == buckets[0] for bucket in buckets])
    assert torch.equal(logits, torch.where(are_shown[:, None], before, plain))
    assert [lease.events for lease in readers_before(own_keys, "greenlist-v3", 1)] == [
        {"greenlist-v3": 0}
    ]  # the parent
    marker._lease.end()


def test_a_server_that_does_not_start_leaves_no_lease(own_keys, settings):
    path = Path(shown_path(own_keys, "gumbel-v3"))
    append_event(own_keys, "gumbel-v3", b"a text", [5], [bytes(32)])
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(Refused, match="its last line has no end"):
        open_marker(settings("gumbel-v3")._replace(registry=own_keys), CPU)
    assert not list((own_keys / "leases").glob("*.json"))


def test_a_server_marks_nothing_more_once_an_older_registry_was_put_back(own_keys, settings):
    path = Path(shown_path(own_keys, "greenlist-v3"))
    append_event(own_keys, "greenlist-v3", b"a text", [5], [bytes(32)])
    older = path.read_bytes()
    append_event(own_keys, "greenlist-v3", b"another", [6], [bytes(31) + b"1"])
    marker = open_marker(settings("greenlist-v3")._replace(registry=own_keys), CPU)
    path.write_bytes(older)
    marker._lease.renew()
    assert not marker._lease.holds
    with pytest.raises(ScanFailed, match="lacks event 2 "):
        marker._lease.check()


def test_a_server_of_a_registry_that_cannot_be_written_does_not_start(own_keys, settings):
    (own_keys / "leases").write_text("")
    with pytest.raises(Refused, match="leases: cannot be written"):
        open_marker(settings("gumbel-v3")._replace(registry=own_keys), CPU)
    open_marker(settings("gumbel")._replace(registry=own_keys), CPU)  # its seeds are never shown


def steps_of_rank(rank, served, store, windows, bucket):
    """Mark steps of a model that is split over two processes, of which the first one reads of a claim first."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # without it, the name of this machine is looked up
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks = torch.distributed.group.WORLD
    marker = open_marker(served, CPU, ranks)

    def step():
        one, logits = torch.ones(len(windows), dtype=torch.float64), torch.zeros(len(windows), VOCABULARY)
        how = RowSampling(one, one, 0 * one, torch.zeros(len(windows), dtype=torch.int64), False)
        marker.mark(logits, windows, torch.arange(len(windows)), one > 0, how)
        return logits

    steps = [step()]
    if rank == 0:
        append_event(served.registry, served.key_id, b"a text", [bucket], [bytes(32)])
        marker._lease.renew()
    steps.append(step())
    if rank == 1:
        marker._lease.renew()
    steps.append(step())
    if rank == 1:
        marker._lease.end()
    steps.append(step())
    torch.save(steps, f"{store}-{rank}")
    torch.distributed.barrier()


@pytest.mark.costly
def test_processes_that_a_model_is_split_over_mark_alike_whichever_reads_of_a_claim_first(own_keys, settings, tmp_path):
    """Each samples every token itself, and goes on from it: if two sampled different tokens, the text would break."""
    served = settings("greenlist-v3")._replace(registry=own_keys)
    windows, seeds = torch.randint(0, VOCABULARY, (ROWS, 3)), KINDS["greenlist-v3"]["seeds"]
    buckets = [reference3.bucket_of(reference3.window_nonces(window, seeds)[0], seeds) for window in windows.tolist()]
    spawn = multiprocessing.get_context("spawn")
    arguments = served, tmp_path / "store", windows, buckets[0]
    both = [spawn.Process(target=steps_of_rank, args=(rank, *arguments)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    first, second = (torch.load(tmp_path / f"store-{rank}") for rank in (0, 1))
    assert all(map(torch.equal, first, second))
    plain, one_knows, both_know, one_has_no_lease = first
    are_shown = torch.tensor([bucket == buckets[0] for bucket in buckets])[:, None]
    assert plain.any(dim=1).all()
    assert torch.equal(one_knows, plain)
    assert torch.equal(both_know, torch.where(are_shown, 0, plain))
    assert not one_has_no_lease.any()

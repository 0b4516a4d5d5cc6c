"""A server marks no step whose seed a claim showed, and does not start where it cannot read which these are."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from brickscan_vllm.marking import Marker, open_key

from scanner.errors import Refused
from scanner.gpu.vectors import RowSampling
from scanner.registry.shown_seeds import show_seeds_of_text, shown_path
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
    show_seeds_of_text(own_keys, kind, b"a text", "as written", shown, leaves)
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
    show_seeds_of_text(own_keys, "gumbel-v3", b"a text", "as written", [5], [bytes(32)])
    path = Path(shown_path(own_keys, "gumbel-v3"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(Refused, match="its last line has no end; bring the file back"):
        open_key(served)

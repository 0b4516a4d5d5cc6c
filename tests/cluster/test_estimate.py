"""The estimated cost of a scan, against plain counts and a clock that the test sets."""

import math
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from scanner.cluster import cost_estimate as estimating
from scanner.cluster.cost_estimate import Sample, estimate, project, shared_out, spread_evenly, time_scores
from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard

FILE = InputFile("/in/a", "/in/a", "/in/a", 1, 1)


def shards_of(sizes) -> list[Shard]:
    return [Shard(str(i), FILE, Range(0, size, size)) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("seed", range(20))
def test_places_are_the_middles_of_equal_parts_of_all_documents(seed):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 10 ** generator.integers(1, 5), size=generator.integers(1, 40)).tolist()
    places = int(generator.integers(1, 30))
    owners = [i for i, size in enumerate(sizes) for _ in range(size)]  # the shard of each document
    places = min(places, len(owners))
    wanted = [owners[len(owners) * (2 * i + 1) // (2 * places)] for i in range(places)]
    found = spread_evenly(shards_of(sizes), places)
    assert {shard.shard_id: number for shard, number in found.items()} == {str(i): wanted.count(i) for i in wanted}


def test_fewer_documents_than_places_are_met_once_each_and_none_is_no_place():
    assert list(spread_evenly(shards_of([1, 2]), 12).values()) == [1, 2]
    assert not spread_evenly([], 12)


def sample(seconds: float) -> Sample:
    return Sample(seconds, 10, 100, 0, 0, 0, 0)


def test_the_mean_of_the_sample_is_that_of_all_with_two_standard_errors():
    costs, documents = [0.001, 0.002, 0.004, 0.001], [100, 300, 50]
    found = project([sample(cost) for cost in costs], documents, 2)
    mean = sum(costs) / 4
    error = math.sqrt(sum((cost - mean) ** 2 for cost in costs) / 3 / 4)
    assert found.core_seconds == pytest.approx(450 * mean)
    assert (found.low, found.high) == pytest.approx((450 * (mean - 2 * error), 450 * (mean + 2 * error)))
    assert found.seconds == pytest.approx(300 * mean)  # the other worker has 150 documents
    assert found.workers == 2
    assert project([sample(1.0)], [5], 64).workers == 1
    assert project([sample(1.0), sample(9.0)], [5], 1).low == 0  # never below 0


def test_workers_share_the_pieces_of_one_slow_file():
    found = project([sample(0.2)], [300], 4)  # five pieces of 12 s
    assert (found.workers, found.seconds) == (4, pytest.approx(24.0))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_work_is_shared_out_to_whoever_is_free_first(workers):
    costs = np.random.default_rng(workers).integers(1, 50, size=60).tolist()
    now, todo, running = 0, list(costs), []
    while todo or running:  # second by second
        running = [end for end in running if end > now]
        while todo and len(running) < workers:
            running.append(now + todo.pop(0))
        now += 1
    assert shared_out(costs, workers) == now - 1


@pytest.mark.parametrize(("a_document", "rows"), [*product([1e-6, 1e-3, 0.3, 10.0], [1, 10, 16, 5000])])
def test_more_documents_are_scored_until_it_takes_long_enough(a_document, rows):
    now, scored = [0.0], []

    def score(batch: pa.RecordBatch) -> tuple[int, int]:
        scored.append(len(batch))
        now[0] += a_document * len(batch)
        return 0, 0, len(batch)

    batch = pa.RecordBatch.from_pydict({"row": range(rows)})
    seconds, taken, (*_, counted) = time_scores(score, batch, lambda: now[0])
    assert seconds == pytest.approx(a_document * len(taken))
    assert counted == len(taken) == scored[-1]
    assert scored[0] == min(rows, estimating.FIRST_SAMPLE)
    assert len(taken) == rows or seconds >= estimating.SECONDS_A_PLACE / 2
    assert sum(scored) * a_document <= max(2 * estimating.SECONDS_A_PLACE, 2 * scored[0] * a_document)


def left_of(night) -> list[Shard]:
    from scanner.cluster.work import inspect_input
    from scanner.input.files import list_files

    plan = night.plan()
    return inspect_input(plan, list_files(plan.locations)).shards


def test_what_the_sample_holds_is_counted(night, plain, monkeypatch):
    night.configure(columns='account = "account"')
    texts = (
        [plain(40, i) for i in range(20)]
        + ["short"] * 7
        + [None] * 5
        + ["long " * (estimating.LONGEST_SAMPLED // 5 + 1)]
    )
    accounts = pa.array([[1]] * len(texts))  # a list is no account
    night.write("a", texts, account=accounts)
    monkeypatch.setattr(estimating, "FIRST_SAMPLE", 100)
    found = estimate(night.plan(), left_of(night), 2)
    sums = [sum(sample[i] for sample in found.samples) for i in range(1, 7)]
    assert sums[0] == len(texts) - 1  # without the text that is too long for a sample
    assert sums[1] == pytest.approx(sum(len(text or "") for text in texts[:-1]), rel=0.2)  # bytes include offsets
    assert sums[2:] == [7, 0, 5, len(texts) - 1]
    assert len(found.samples) == estimating.PLACES_SAMPLED
    assert 0 < found.core_seconds <= found.high
    assert found.workers == 1  # there is one shard
    assert found.memory > 2**20


def test_files_that_are_gone_meanwhile_are_no_sample(night, plain):
    path = night.write("a", [plain(40, 1)])
    left = left_of(night)
    path.unlink()
    assert estimate(night.plan(), left, 2) is None

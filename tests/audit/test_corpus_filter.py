"""Audits of keys that leave common n-grams out: half of the corpus teaches the other, and such a key is admitted."""

import hashlib
import io
import os
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.calibrate import calibrate
from jobs.cli import brickscan, run
from scanner import results
from scanner.audit.calibration.calibration_plan import CORPUS_HALVES, in_halves, lessons, teaching
from scanner.cluster import calibrate as on_ray
from scanner.cluster.calibrate import learn_filter
from scanner.cluster.corpus import Encoding, make_scratch
from scanner.errors import Refused
from scanner.ngram_filter import common_ngrams
from scanner.registry import load_registry, new_key
from scanner.text import sha256_file
from scanner.watermark import GreenList, Tokens, batch_tokens, join_batches, scored_positions
from scanner.watermark.positions import consecutive_positions
from tests.support.demo_texts import DEMO

CONFIG = """\
results = "audit"
[tokenizer]
file = "{demo}/tokenizer.json"
sha256 = "{sha256}"
[input]
paths = ["corpus.parquet"]
[keys]
registry = "registry"
{filter}
[cluster]
workers = 1
"""
TEXTS = 1200


@pytest.fixture(autouse=True)
def small_sketches(monkeypatch):
    monkeypatch.setattr(common_ngrams, "CELLS_OF_A_ROW", 1 << 16)


def digests_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def test_the_texts_that_teach_are_as_many_as_asked_and_of_their_half():
    digests, distinct = [digests_of(500), digests_of(300, 2)], [np.arange(0, 500, 2), np.arange(300)]
    parts = [in_halves(*part) for part in zip(digests, distinct, strict=True)]
    for number, half in enumerate(lessons(digests, distinct, 100)):
        assert sum(len(one.documents) for one in half) == 100
        for one in half:
            assert set(one.documents) <= set(parts[one.part][number])
            assert one.numbers.tolist() == (digests[one.part][one.documents] // np.uint64(CORPUS_HALVES)).tolist()
    every = lessons(digests, distinct, 10**6)
    taught = [sum(len(one.documents) for one in half) for half in every]
    assert sum(taught) == 550
    assert min(taught) > 200
    assert lessons([], [], 9) == [[], []]


def test_no_text_is_scored_without_what_its_own_half_taught(tmp_path):
    """A template of one half alone is left out of the other half, where it is not, and stays in its own."""
    random, digests = np.random.default_rng(3), digests_of(200)
    half, template = (digests % np.uint64(2)).astype(int), list(range(100, 130))
    texts = [[*random.integers(200, 49_000, 20).tolist(), *(template if of else [])] for of in half.tolist()]
    encoding = Encoding("tokenizer.json", "a" * 64, str(tmp_path / "scratch"))
    make_scratch(encoding.scratch)
    tokens = batch_tokens(texts)
    buffer = io.BytesIO()
    np.savez(buffer, ids=tokens.ids, offsets=tokens.offsets)
    file = encoding.write("00000", "npz", buffer.getvalue())
    found = learn_filter(encoding, [file], 2, lessons([digests], [np.arange(200)], 10**6), b"1", 1024, 16)
    assert (found.audited.texts, found.audited.learnt) == (16, np.bincount(half).min())
    one = batch_tokens([[9] * 5 + template])
    stays = [
        found.against(of).without(one, consecutive_positions(np.array([0]), np.array([35]))).scored[0]
        for of in range(CORPUS_HALVES)
    ]
    assert stays == [7, 35]  # the first half has no template, and the second taught it
    assert on_ray.load(file).ids.tolist() == tokens.ids.tolist()


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_tokens_and_filters_that_somebody_else_wrote_are_refused(tmp_path, suffix):
    """They lie among results, which others may write: an audit of other tokens would admit a key that failed."""
    encoding = Encoding("tokenizer.json", "a" * 64, str(tmp_path))
    buffer = io.BytesIO()
    np.save(buffer, np.arange(9, dtype=np.uint8)) if suffix == "npy" else np.savez(buffer, ids=[1], offsets=[0, 1])
    file = Path(encoding.write("00000", suffix, buffer.getvalue()))
    read = {"npz": on_ray.load, "npy": on_ray._read}[suffix]
    read.cache_clear()
    read(str(file))
    read.cache_clear()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(Refused, match="its content was changed after it was written"):
        read(str(file))
    file.unlink()
    os.mkfifo(file)  # which no worker waits for
    with pytest.raises(OSError, match="FIFO"):
        read(str(file))


def test_a_corpus_teaches_no_text_that_a_scan_learns_nothing_from():
    lengths = [np.array([18, 17, 400, 2]), np.array([], np.int64), np.array([17, 18])]
    distinct = [np.array([0, 1, 3]), np.array([], np.int64), np.array([0, 1])]
    assert [places.tolist() for places in teaching(distinct, lengths, 2, 16)] == [
        [0],
        [],
        [1],
    ]


def unlucky(signature: Tokens) -> bytes:
    """The key, out of 300 candidates, under which the most tokens of a signature are green."""
    positions = scored_positions(signature, 2, "ngram")
    secrets = [hashlib.sha256(b"%d" % number).digest() for number in range(300)]
    return max(secrets, key=lambda secret: GreenList(secret, 2, Fraction(1, 4)).score(signature, positions, 0)[0])


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_key_that_signatures_keep_from_admission_is_admitted_with_a_filter(tmp_path, plain, tokenizer, capsys):
    signature = plain(30, 1)
    texts = [plain(40, 100 + i) + signature for i in range(TEXTS)]
    texts += [plain(10, 10_000 + i) for i in range(TEXTS)]  # too short to teach
    pq.write_table(pa.table({"text": texts}), tmp_path / "corpus.parquet")
    (tmp_path / "keys.txt").write_text(unlucky(join_batches([tokenizer.encode([signature])])).hex())
    (tmp_path / "keys.txt").chmod(0o600)
    registry = tmp_path / "registry"
    new_key(
        registry, "short", format="greenlist", window=2, gamma="1/4", messages=1, tokenizer=DEMO / "tokenizer.json",
        secret=f"file:{tmp_path / 'keys.txt'}",
    )  # fmt: skip
    config, admit = tmp_path / "calibration.toml", ["keys", "admit", "short", "--registry", str(registry)]
    admit += ["--results", str(tmp_path / "audit")]
    text = {"demo": DEMO, "sha256": sha256_file(DEMO / "tokenizer.json")}
    config.write_text(CONFIG.format(filter="", **text))
    assert run(calibrate, [str(config)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"worth [2-9] independent pieces: texts of one template or account count as one", said)
    assert run(brickscan, admit) == 2
    refused = capsys.readouterr().err
    assert "is undecided at every threshold" in refused
    assert "[keys.filter]" in refused
    config.write_text(CONFIG.format(filter="filter = {}", **text))
    assert run(calibrate, [str(config)]) == 0
    rows = results.audits(str(tmp_path / "audit")).collect()
    with_it = rows.filter(rows["filter_sha256"].is_not_null())
    assert len(with_it) * 2 == len(rows)
    assert with_it["tests"].unique().to_list() == [2 * TEXTS]  # each text is scored, by the filter of the other half
    learnt = with_it["filter_learnt"][0]
    assert 500 < learnt < 600
    words = f"without n-grams that 16 of {learnt} other texts hold (filter {with_it['filter_sha256'][0][:12]})"
    assert f"short, {words}, can be admitted down to 0.1; for 1e-06 about " in capsys.readouterr().out
    assert run(brickscan, admit) == 0
    assert words in capsys.readouterr().out
    passed = load_registry(registry).keys[0].admission
    assert passed.filter.model_dump() == {"texts": 16, "learnt": learnt, "sha256": with_it["filter_sha256"][0]}
    assert run(brickscan, ["keys", "list", "--registry", str(registry)]) == 0
    assert "to p = 0.1, with a filter" in capsys.readouterr().out

"""Nights in which a model reads under keys of vLLM and SGLang: found, named, proved, explained and replayed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from scanner import results
from scanner.detection.attribution import OpenedKey
from scanner.evidence.explainer import Explainer
from scanner.evidence.replay import replay
from scanner.evidence.sentences import what_was_found
from scanner.registry import add_users, list_users, new_key
from scanner.results.transactions import read_whole
from scanner.watermark.formats import FORMATS
from schemas.words import LEVELS
from tests.fixed import fix_secrets
from tests.support.foregone import chain_model, writer_of_foregone  # noqa: F401 - a fixture
from tests.support.night import Night
from tests.support.opened import opened
from tests.support.two_keys import TOKENIZER, words_of_one_token

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray")]
RATE = 1e-6

KEYS: dict[str, dict[str, Any]] = {
    "vllm-gumbel": {"messages": 1, "context_width": 2, "partial_contexts": "dropped"},
    "vllm-dual-key": {"messages": 1, "context_width": 2, "partial_contexts": "dropped"},
    "sglang-two-keys": {"messages": 1, "context_window": 2},
    "sglang-user-keys": {"messages": 100, "context_window": 2},
}


class Marked(NamedTuple):
    """A night with a registry of one key, and the message and user of its marked texts; None: a key of one message."""

    night: Night
    key: OpenedKey
    message: int
    user: str | None


@pytest.fixture(params=KEYS)
def marked(request, tmp_path: Path, chain_model: Path) -> Marked:  # noqa: F811
    """A text that weights alone find, one that the sum finds too, and unmarked ones."""
    folder = tmp_path / "registry"
    fix_secrets(folder, "k")
    secret = folder / "secrets" / "k.key"
    size = min(32, FORMATS[request.param].secret_bytes.stop - 1)
    secret.write_text(secret.read_text()[: 2 * size])
    new_key(folder, "k", format=request.param, tokenizer=TOKENIZER, **KEYS[request.param])
    (key,) = opened(folder)
    message, user = 0, None
    if key.key.messages > 1:
        add_users(folder, ["k"], ["alice"], datetime.now(UTC) - timedelta(minutes=1))
        message, user = int(list_users(folder, ["k"])["message"][0]), "alice"
    write, night = writer_of_foregone(key, words_of_one_token()), Night(tmp_path, folder)
    unmarked = [write(None, 25, seed) for seed in range(30, 40)]
    night.write("a", [write(None, 25, 11), write(message, 25, 3), *unmarked, write(message, 220, 12)])
    night.configure(rate=RATE, more=f'[levels]\nmodel = "{chain_model}"\n')
    return Marked(night, key, message, user)


def test_a_night_finds_by_weights_what_the_sum_does_not_under_keys_of_other_stacks(marked: Marked) -> None:
    night = marked.night
    assert night.scan().exit_code == 0
    found = results.flagged(night.results).collect().sort("row")
    assert found["row"].to_list() == [1, 12]
    assert found["look"].to_list() == [LEVELS, None]
    assert (set(found["user_id"]), set(found["message"])) == ({marked.user}, {marked.message})
    assert set(found["proof"]) == {"proved"}
    assert found["correction"].to_list() == [2, 2]
    assert set(found["basis"]) == {str(marked.key.watermark.basis)}
    bits = marked.key.watermark.basis.bits
    assert 10 ** found["log10_p"].min() >= 2.0**-bits * (1 - 1e-9)
    counts = read_whole(night.results, "audit_counts").filter(kind="decoy_levels").collect()
    assert counts.filter(threshold=counts["threshold"].max())["tests"].sum() == night.last_scan()["level_texts"]

    row = found.row(0, named=True)
    explained = Explainer(night.config).explain(f"{row['path']}:1")
    assert explained.text_evidence is not None
    assert explained.text_evidence.score == pytest.approx(row["score"])
    assert explained.text_evidence.log10_p == pytest.approx(row["log10_p"])
    assert sum(run.level > 0 for run in explained.text_evidence.runs) > 15
    said = dict(what_was_found(explained))["How rarely chance does this"]
    assert "counts more the less a language model expected it" in said
    assert "or of a decoy" in said

    again = replay(night.config, f"{row['path']}:1")
    assert {field.field: (field.recorded, field.again) for field in again.fields if not field.equal} == {}
    assert {"reading", "score", "log10_p_global", "proof"} <= {field.field for field in again.fields}


def test_without_its_rank_no_weighed_text_is_flagged(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoys score as high as the key: they are the key."""
    night = marked.night
    monkeypatch.setattr(type(marked.key.watermark), "decoy", lambda mark, number: mark)
    night.scan()
    assert results.flagged(night.results).select(pl.len()).collect().item() == 0
    assert night.last_scan()["level_texts"] > 0

"""A pass of a model whose driver and workers are killed half-way: nothing is lost, doubled or different."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from scanner import results
from scanner.results.transactions import read_whole
from scanner.storage.locations import table_uri
from schemas.words import LEVELS
from tests.chaos.processes import command_of, descendants, output_of, wait_for
from tests.support.foregone import chain_key, chain_model, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import USERS, held
from tests.support.night import Night
from tests.support.two_keys import words_of_one_token

pytestmark = pytest.mark.chaos
FILES = 6


def drive(night: Night, **fault: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.chaos.driver", str(night.config), json.dumps(fault)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=Path(__file__).parents[2]
    )


def by_weights(night: Night) -> int:
    """Flags by levels that are committed."""
    if not DeltaTable.is_deltatable(table_uri(night.results, "flag_levels")):
        return 0
    return read_whole(night.results, "flags").filter(look=LEVELS).select(pl.len()).collect().item()


def outcome(night: Night) -> dict[str, list[tuple[object, ...]]]:
    """All that a night left, without times and ids; decoys are drawn by ids of shards, which hash the folder."""
    columns = {
        "verdicts": ["row", "doc_id", "status", "flagged", "tokens", "scored", "p_class"],
        "flags": ["row", "doc_id", "user_id", "message", "look", "proof", "score", "log10_p_global", "naming"],
        "flag_levels": ["row", "text_sha256", "surprise"],
        "quarantine": ["row", "doc_id", "reason"],
        "shards": ["documents", "flagged", "rows"],
    }
    return {
        name: sorted(read_whole(night.results, name).select(wanted).collect().rows(), key=repr)
        for name, wanted in columns.items()
    }


def test_killed_drivers_and_workers_of_the_pass_change_nothing(tmp_path, chain_key, chain_model) -> None:  # noqa: F811
    write, of_user = writer_of_foregone(chain_key[1], words_of_one_token()), held(chain_key)
    nights = []
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        night = Night(tmp_path / name, chain_key[0])
        for number in range(FILES):
            marked = write(of_user[USERS[number]], 30, number)
            night.write(f"f{number}", [marked, *(write(None, 25, 100 * number + seed) for seed in range(20))])
        night.configure(more=f'[levels]\nmodel = "{chain_model}"\n', workers=2)
        nights.append(night)
    undisturbed, killed = nights
    process = drive(undisturbed)
    out = output_of(process)
    assert process.returncode == 0, out
    assert by_weights(undisturbed) == FILES

    died = drive(killed, at="between the commits", commit=FILES + 2, delay=0)  # plain shards are committed before
    output_of(died)
    assert died.returncode == -signal.SIGKILL
    assert 0 < by_weights(killed) < FILES
    assert results.scans(killed.results).collect().is_empty()

    process = drive(killed)
    before = by_weights(killed)
    wait_for(process, lambda: by_weights(killed) > before)
    hit = [pid for pid in descendants(process.pid) if b"ray::Worker" in command_of(pid)][:1]
    for pid in hit:
        os.kill(pid, signal.SIGKILL)
    out = output_of(process)
    assert process.returncode == 0, out
    assert hit, "no worker of the pass was there to be killed"
    assert outcome(killed) == outcome(undisturbed)
    (scan,) = results.scans(killed.results).collect().to_dicts()
    assert scan["level_shards_left"] == 0

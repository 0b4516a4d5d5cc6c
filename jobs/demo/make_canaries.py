"""Makes the demo's canaries: `python -m jobs.demo.make_canaries [--model DIR] [--out DIR] [--seed N]`.

Run after `make model`; some two minutes of one core. Writes, beside the sample, which stays as it is,

    canaries.parquet        doc_id, text, account_id, created_at: texts that canaries' accounts post, marked for them
    canary-users.parquet    which messages the canaries have; only when it is missing

The model writes what it writes: no completion is left out, however short, since a canary that is lost is what counts.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from jobs.demo.demo_keys import CANARY_POWER, CANARY_USERS, HERE, make_registry
from jobs.demo.get_model import DEFAULT_FOLDER
from jobs.demo.make_sample import ALLOCATED_AT, TOP_P, SampleRow, documents_of, times, write_table
from scanner.registry import list_users, load_registry, make_canaries, open_key
from schemas.tables import USER_EVENTS

CANARIES, TEXTS, MOST_TOKENS = 10, 20, 300
SETTINGS = {"demo-greenlist": {"temperature": 0.8, "delta": 3.0}, "demo-gumbel": {"temperature": 1.0}}
"""Keys with their sampling, as for the texts of the sample that users asked for; TEXTS texts of each."""


def make_canary_users(registry: Path) -> None:
    """Give canaries their messages in the demo's registry, and keep these on file."""
    ids = {
        canary.account_id for canary in make_canaries(registry, [*SETTINGS], CANARIES, CANARY_POWER, ALLOCATED_AT).made
    }
    rows = (
        list_users(registry)
        .filter(pl.col("user_id").is_in(sorted(ids)))
        .select("key_id", "message", "user_id", event=pl.lit("allocated"), at=pl.col("allocated_at"))
    )
    pq.write_table(rows.to_arrow().cast(USER_EVENTS), CANARY_USERS)


def canary_rows(folder: Path, registry: Path, seed: int) -> Iterator[tuple[SampleRow, str]]:
    """Texts that the model wrote, each with the canary whom it was marked for, in turns."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    from scanner.generation import Sampling, complete, load_model

    model = load_model(folder)
    prompts = (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines()
    record = load_registry(registry)
    keys = {key.key_id: key for key in record.keys}
    made = record.canaries.made if record.canaries else ()
    for number, (key_id, how) in enumerate(SETTINGS.items()):
        turns = [canary for canary in made if canary.key_id == key_id] * (TEXTS // CANARIES)
        those = np.random.default_rng(seed + number).permutation(prompts)[: len(turns)].tolist()
        sampling = Sampling(max_new_tokens=MOST_TOKENS, top_p=TOP_P, **how)  # type: ignore[arg-type]
        messages = [canary.message for canary in turns]
        done = complete(model, those, sampling, seed + number, open_key(registry, keys[key_id]), messages)
        print(f"{key_id}: {len(done)} texts of {[completion.tokens for completion in done]} tokens", flush=True)
        for completion, canary in zip(done, turns, strict=True):
            yield SampleRow(completion.text.encode(), {}), canary.account_id


def main() -> None:
    """Read the arguments and make the canaries' texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_FOLDER, help="folder that `make model` made")
    parser.add_argument("--out", type=Path, default=HERE, help="where to write the texts")
    parser.add_argument("--seed", type=int, default=2026)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        make_registry(registry, canaries=CANARY_USERS.exists())
        if not CANARY_USERS.exists():
            make_canary_users(registry)
        rows, accounts = zip(*canary_rows(given.model, registry, given.seed), strict=True)
    ids = [f"canary-text-{i:02}" for i in range(1, len(rows) + 1)]
    seconds = times(len(rows), np.random.default_rng(given.seed))
    write_table(documents_of(rows, ids, accounts, seconds), given.out / "canaries.parquet")


if __name__ == "__main__":
    main()

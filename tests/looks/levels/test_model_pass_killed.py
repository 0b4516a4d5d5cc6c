"""A pass of a model that ends at any of its commits: the next scan goes on, and nothing is lost or different."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from scanner.looks.levels.follow_up import ModelPass
from scanner.results.transactions import read_whole
from schemas.words import LEVELS
from tests.support.foregone import chain_key, chain_model, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import USERS, held
from tests.support.night import Night
from tests.support.signed_tables import delete_results
from tests.support.two_keys import words_of_one_token

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("without_ray")]

FILES = 2


class Killed(BaseException):
    """Ends a process: nothing writes after it."""


@pytest.fixture
def night(tmp_path: Path, chain_key, chain_model: Path) -> Night:  # noqa: F811
    """Each file has a text that weights alone find."""
    night, write = Night(tmp_path, chain_key[0]), writer_of_foregone(chain_key[1], words_of_one_token())
    for number in range(FILES):
        marked = write(held(chain_key)[USERS[number]], 30, number)
        night.write(f"f{number}", [marked, *(write(None, 25, 100 * number + seed) for seed in range(3))])
    night.configure(more=f'evidence = {{ keep_text = true }}\n[levels]\nmodel = "{chain_model}"\n')
    return night


def killed_at(night: Night, number: int) -> bool:
    """Scan, and kill the driver before it writes a commit of the pass; whether it came so far."""
    commits, of_pass, dead = 0, False, False
    real_pass, real_write = ModelPass.run, DeltaTable.create_write_transaction

    def begun(*given: object) -> object:
        nonlocal of_pass
        of_pass = True
        return real_pass(*given)

    def write(*given: object, **named: object) -> None:
        nonlocal commits, dead
        commits += of_pass
        dead = dead or commits == number
        if dead:
            raise Killed
        real_write(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelPass, "run", begun)
        patch.setattr(DeltaTable, "create_write_transaction", write)
        try:
            night.scan()
        except Killed:
            return True
    return False


def what_is_left(night: Night) -> dict[str, list[tuple[object, ...]]]:
    """All that stands in the tables, without times and ids of runs."""
    columns = {
        "verdicts": ["shard_id", "row", "status", "flagged", "tokens", "scored", "p_class"],
        "flags": ["shard_id", "row", "user_id", "message", "look", "proof", "score", "log10_p_global", "naming"],
        "flag_texts": ["shard_id", "row", "text"],
        "flag_levels": ["shard_id", "row", "text_sha256", "surprise"],
        "audit_counts": ["shard_id", "kind", "threshold", "hits", "tests"],
        "shards": ["shard_id", "documents", "flagged", "rows"],
    }
    rows = {name: read_whole(night.results, name).select(of).collect().rows() for name, of in columns.items()}
    return {name: sorted(of, key=repr) for name, of in rows.items()}


def test_a_pass_that_is_killed_at_any_commit_goes_on_to_the_same_end(night: Night) -> None:
    night.scan()
    undisturbed, number = what_is_left(night), 0
    assert sum(row[4] == LEVELS for row in undisturbed["flags"]) == FILES
    while True:
        number += 1
        delete_results(night.results, night.registry)
        if not killed_at(night, number):
            break
        night.scan()
        assert what_is_left(night) == undisturbed, number
        assert night.last_scan()["level_shards_left"] == 0
    assert number > len(undisturbed)

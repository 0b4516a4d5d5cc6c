"""A machine's clock that steps back hides no result: neither between two scans nor within one."""

from datetime import datetime, timedelta

import pytest

from scanner import results
from scanner.cluster import commits, scan
from scanner.errors import Refused
from scanner.looks.levels.follow_up import ModelPass
from scanner.registry import clock
from tests.support.foregone import chain_key, chain_model, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import USERS, held
from tests.support.night import Night
from tests.support.two_keys import message_of, words_of_one_token

pytestmark = pytest.mark.usefixtures("without_ray")


def clock_behind(by: timedelta) -> type[datetime]:
    class Behind(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - by

    return Behind


def test_a_clock_before_the_newest_scan_scans_nothing(night, registry, marked, plain, monkeypatch):
    """The rows on record would stand before those of the scan: alice would stay named for a text that is gone."""
    night.write("a", [marked(message_of(registry, "green", "alice"), 80, 1)])
    night.scan()
    night.write("a", [plain(80, 1)])
    for module in (clock, commits, scan):
        monkeypatch.setattr(module, "datetime", clock_behind(timedelta(days=1)))
    with pytest.raises(Refused, match="this machine's clock"):
        night.scan()
    monkeypatch.undo()
    night.scan()
    assert results.flagged(night.results).collect().is_empty()


@pytest.mark.costly
def test_flags_of_a_pass_stand_although_the_clock_steps_back_before_it(
    tmp_path,
    chain_key,  # noqa: F811
    chain_model,  # noqa: F811
    monkeypatch,
):
    night, write = Night(tmp_path, chain_key[0]), writer_of_foregone(chain_key[1], words_of_one_token())
    night.write("a", [write(held(chain_key)[USERS[0]], 30, 0), write(None, 25, 1)])
    night.configure(more=f'[levels]\nmodel = "{chain_model}"\n')
    real_pass = ModelPass.run

    def step_back_before(*given):
        monkeypatch.setattr(commits, "datetime", clock_behind(timedelta(minutes=10)))
        return real_pass(*given)

    monkeypatch.setattr(ModelPass, "run", step_back_before)
    night.scan()
    assert results.flagged(night.results).collect()["user_id"].to_list() == [USERS[0]]

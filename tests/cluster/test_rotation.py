"""Several generations of keys at once: each key is scanned and counted, whatever its times say."""

import pytest

from scanner.registry import load_registry, retire_key
from tests.support.two_keys import message_of


@pytest.mark.usefixtures("without_ray")
def test_keys_of_every_generation_are_scanned_and_counted(night, own_registry, marked, plain):
    alice = message_of(own_registry, "green", "alice")
    night.write("a", [marked(alice, 60, 1), plain(60, 2)])
    before = night.scan(), night.verdicts()

    keys = own_registry / "keys.toml"
    ended = "active_from = 2020-01-01T00:00:00Z\nactive_until = 2021-01-01T00:00:00Z\n"
    keys.write_text(keys.read_text().replace("created_at = ", f"{ended}created_at = ", 1))
    retire_key(own_registry, "gum")
    assert [key.retired_at is None for key in load_registry(own_registry).keys] == [True, False]

    assert night.scan().work.left == (), "times decide no verdict, so nothing is scanned again"
    night.write("b", [marked(alice, 60, 1), plain(60, 2)])
    night.scan()
    verdicts = night.verdicts().select("row", "key_id", "user_id", "log10_p_global", "correction", "flagged")
    assert verdicts[:2].equals(verdicts[2:])
    assert verdicts["correction"].to_list() == [2, None] * 2
    assert verdicts["user_id"].to_list() == ["alice", None] * 2
    assert verdicts[:2].equals(before[1].select(verdicts.columns))

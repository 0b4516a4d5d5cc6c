"""The share of positions that is gone, by the scans that read a key's latest event."""

import polars as pl
import pytest

from scanner.results import shown_shares as shares
from scanner.results.shown_shares import ShownShare, shown_in_words, shown_shares, used_up
from schemas.tables import SCANS


def scan(*keys: tuple[str, int | None, int | None, int | None]) -> list[dict[str, object]]:
    return [dict(zip(("key_id", "event", "positions", "positions_shown"), key, strict=True)) for key in keys]


def test_scans_that_read_the_latest_event_count_together(monkeypatch):
    rows = [
        scan(("a", 0, None, None), ("b", 1, 900, 100), ("old", None, None, None)),
        scan(("a", 1, 500, 500), ("b", 1, 0, 0), ("old", None, None, None)),
        scan(("a", 2, 95, 5), ("b", 1, 100, 0)),
        scan(("a", 2, 190, 10)),
    ]
    frame = pl.DataFrame({"keys": rows}, schema={"keys": pl.Schema(SCANS)["keys"]})
    monkeypatch.setattr(shares, "exist", lambda _: True)
    monkeypatch.setattr(shares, "ask", lambda _, question: question())
    monkeypatch.setattr(shares, "scans", lambda _: frame.lazy())
    assert shown_shares("results") == {"a": ShownShare(2, 15, 300), "b": ShownShare(1, 100, 1100)}


def test_no_results(tmp_path):
    assert shown_shares(str(tmp_path)) == {}


@pytest.mark.parametrize(("shown", "advised"), [(0, False), (499, False), (500, True), (10_000, True)])
def test_at_five_percent_a_new_key_is_advised(shown, advised):
    said = shown_in_words("a", shown, 10_000)
    assert said.startswith(f"under a, {shown / 100:.1f}".rstrip("0").rstrip(".")[:12])
    assert said.endswith("; make a new key, and retire this one") is advised
    assert bool([*used_up(scan(("a", 1, 10_000 - shown, shown), ("b", 0, None, None)))]) is advised
    assert shown_in_words("a", 0, 0).startswith("under a, 0.0% of the positions")

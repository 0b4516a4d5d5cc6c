"""An operator's first days, from a CSV in the wrong folder to a working night; no scan that read nothing is green."""

from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import call
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")


@pytest.mark.costly
def test_the_days_until_a_night_runs(night, registry, marked, plain):
    alice = message_of(registry, "green", "alice")
    posts = [marked(alice, 60, 1), plain(60, 2), plain(60, 3), None]
    day = night.folder / "2026-10-01"
    day.mkdir()

    # the input holds CSV, and Parquet under a wrong ending
    (night.input / "posts.csv").write_text("doc_id,text\n1,hello\n")
    (night.input / "posts.PARQUET").write_bytes(b"PAR1")
    code, out, err = call("scan", night.config)
    assert code == 4, err
    assert "Nothing was read: no Parquet file is in " in " ".join(out.split())
    assert "- 2 files skipped, not ending in .parquet (" in out
    assert all(f"{ending} 1" in out for ending in (".csv", ".PARQUET"))

    # the CSV is renamed to .parquet
    (night.input / "posts.parquet").write_text("doc_id,text\n1,hello\n")
    code, out, _ = call("scan", night.config)
    assert code == 4
    assert "Nothing was read: the whole input is in quarantine (not_parquet 1 file)" in out
    _, out, _ = call("flagged", night.config)
    assert out == "No document is flagged, of 0 that were read. In quarantine: not_parquet 1 file.\n"

    # a Parquet export with other column names
    (night.input / "posts.parquet").unlink()
    for path in night.input.iterdir():
        path.unlink()
    when = ["2026-10-01T12:00:00+02:00", "2026-10-01", "long ago", None]
    export = pa.table({"id": [7, 8, 9, 10], "body": posts, "user": [1, 2, None, 4], "posted": when})
    pq.write_table(export, day / "posts.parquet")
    before = night.quarantine()
    night.configure(paths=["{date}"])
    code, _, err = call("scan", night.config, "--date", "2026-10-01")
    assert code == 2
    assert "column 'text' (text) is missing; there are: id, body, user, posted" in err
    assert night.quarantine().equals(before)

    # scan.toml names the columns; times are text, ids are numbers
    night.configure(paths=["{date}"], columns='account = "user"\ntime = "posted"')
    named = night.config.read_text().replace('text = "text"', 'text = "body"').replace('id = "doc_id"', 'id = "id"')
    night.config.write_text(named)
    code, out, err = call("scan", night.config, "--date", "2026-10-01")
    assert code == 0, err
    assert "- 1 document with an id, account or time that cannot be read and is null" in out
    assert "quarantined  1 document, 0 files (null_text 1 document)" in out
    found = night.verdicts()
    assert found["doc_id"].to_list() == ["7", "8", "9"]
    assert found["account_id"].to_list() == ["1", "2", None]
    first, second = datetime(2026, 10, 1, 10, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
    assert found["created_at"].to_list() == [first, second, None]
    assert found["flagged"].to_list() == [True, False, False]
    assert night.quarantine().filter(pl.col("reason") == "null_text")["account_id"].to_list() == ["4"]
    assert night.last_scan()["values_not_read"] == 1

    # the same night again; a day without posts; the same day with allow_empty
    code, out, _ = call("scan", night.config, "--date", "2026-10-01")
    assert (code, "Nothing was read" in out) == (0, False)
    (night.folder / "2026-10-02").mkdir()
    code, out, _ = call("scan", night.config, "--date", "2026-10-02")
    assert code == 4
    assert "Set allow_empty = true if a night may be empty." in " ".join(out.split())
    night.config.write_text("allow_empty = true\n" + night.config.read_text())
    assert call("scan", night.config, "--date", "2026-10-02")[0] == 0

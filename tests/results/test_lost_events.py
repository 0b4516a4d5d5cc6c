"""Events of what was shown that rows of results name, as `refuse_lost_events` reads them."""

import pyarrow as pa
import pytest

from scanner.errors import Refused
from scanner.results.registry_record import refuse_lost_events
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import SHARDS
from tests.support.rows import filled


@pytest.mark.parametrize("events", ["3", "[]", "{", '{"k": 1}', '{"k": [1]}', '{"k": ["x", "y"]}'])
def test_a_row_that_no_scan_wrote_is_told(tmp_path, events):
    folder = str(tmp_path / "results")
    open_tables(folder)
    file = write_file(folder, "shards", [pa.RecordBatch.from_pylist([filled(SHARDS, events=events)], SHARDS)])
    commit(folder, "shards", [TableEntry("t", (file,))])
    with pytest.raises(Refused, match="a row has events = "):
        refuse_lost_events(folder, str(tmp_path / "registry"), ())

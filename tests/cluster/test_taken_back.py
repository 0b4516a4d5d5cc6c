"""Documents that turn out to be unreadable after they were scored: they leave every table but quarantine."""

import polars as pl
import pyarrow as pa
import pytest

from scanner.cluster.piece_rows import Rows
from scanner.input.documents import Reader, Unreadable
from scanner.storage.data_files import SCHEMAS
from scanner.storage.locations import table_uri
from tests.support.two_keys import message_of

LATER = pa.schema([("row", pa.int64()), ("content", pa.string())])
VOID = Unreadable(3, 6, "its page is broken")


def made_up(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Rows 0 … n−1 of a table, with nothing but their numbers where it has them."""
    columns = [pa.array(range(rows) if field.name == "row" else [None] * rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


@pytest.mark.parametrize("added", [{}, {"a table that is yet to come": LATER}])
def test_a_row_that_is_taken_back_leaves_every_table(added):
    rows, schemas = Rows(set_aside=[2, 4, 7]), {**SCHEMAS, **added}
    for name, schema in schemas.items():
        rows.batches[name] += [made_up(schema, 4), made_up(schema, 9).slice(4)]
    rows.take_back(VOID)
    assert rows.set_aside == [2, 7]
    of_documents = {name for name, schema in schemas.items() if "row" in schema.names}
    assert {"verdicts", "flags", "quarantine", "spans", "flag_texts", "account_posts", *added} <= of_documents
    for name, batches in rows.batches.items():
        if name in of_documents:
            assert [row for batch in batches for row in batch["row"].to_pylist()] == [0, 1, 2, 6, 7, 8], name
        else:
            assert sum(map(len, batches)) == 9, name


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_rows_that_a_reader_takes_back_are_in_quarantine_only(night, registry, marked, plain, monkeypatch):
    """Marked posts whose page breaks at its end, under a scan that fills every table."""
    more = "spans = { windows = true }\nevidence = { keep_text = true }\naccounts = { nights = 7 }"
    night.configure(more=more, columns='account = "who"')
    alice = message_of(registry, "green", "alice")
    texts = [plain(300, seed) + marked(alice, 100, seed) + plain(300, 9 + seed) for seed in range(9)]
    night.write("f", texts, who=[f"account {row}" for row in range(9)])
    read = Reader.read

    def take_back(self, *rows):
        yield from read(self, *rows)
        yield VOID

    monkeypatch.setattr(Reader, "read", take_back)
    night.scan()
    found = {name: set() for name in ("verdicts", "flags", "spans", "flag_texts", "account_posts", "quarantine")}
    for name in found:
        found[name] = set(pl.read_delta(table_uri(str(night.results), name))["row"])
    sound = {0, 1, 2, 6, 7, 8}
    assert found == dict.fromkeys(found, sound) | {"quarantine": {3, 4, 5}}

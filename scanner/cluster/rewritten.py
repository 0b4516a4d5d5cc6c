"""Leave out rows that a table's commits moved into other files, if they were scanned in an earlier file.

A row of a file that replaced others is an old row if its id (or without an id, its account) and its text agree with
those of a document of the earlier files that was scanned under the same tests. Of several equal documents, the k-th
copy is matched with the k-th. An old row keeps its verdict.

Scanned documents are known from their rows in the tables, so the old files may be gone. The files in which a row was
scanned are recorded with the first range of its new file (`moved_from`). The row may then move again, even after the
table has forgotten the first move.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import ray
from ray.exceptions import RayError

from scanner.cluster.work import SecondRule, other_rules
from scanner.detection.open_plan import open_text_ids
from scanner.detection.rows import TextIds
from scanner.errors import FileFault
from scanner.input.documents import Unreadable, read
from scanner.input.shards import Shard
from scanner.input.tables import pack_rows
from scanner.results.current_rows import ranges_ever
from scanner.results.transactions import read_whole
from scanner.scan_plan import Plan

_DOCUMENT = ["doc_id", "holder", "text_id"]
_HOLDER = pl.when(pl.col("doc_id").is_null()).then("account_id").alias("holder")  # equal texts of two accounts differ
_RUN = ["shard_id", "scan_id"]
_DOCUMENTS = pl.Schema({"row": pl.Int64, "doc_id": pl.String, "account_id": pl.String, "text_id": pl.Binary})


def _scanned(plan: Plan, paths: Collection[str], tests: Collection[str]) -> pl.DataFrame:
    in_paths = pl.col("path").is_in(sorted(paths)) & pl.col("tests_sha256").is_in(list(tests))
    return (
        ranges_ever(plan.results)
        .filter(in_paths)
        .select("path", "documents", *_RUN, "moved_from", "tests_sha256")
        .collect()
    )


def _counted(plan: Plan, scanned: pl.DataFrame) -> pl.DataFrame:
    """Count the documents of each id and text that were scanned in some ranges: doc_id, holder, text_id, copies."""
    ids, runs = open_text_ids(plan), scanned.lazy().select(_RUN)
    verdicts = read_whole(plan.results, "verdicts", scanned["path"]).join(runs, on=_RUN, how="semi")
    lost = read_whole(plan.results, "quarantine").join(runs, on=_RUN, how="semi").drop_nulls("row")
    given = lost.select("doc_id", _HOLDER, "text_sha256").collect()
    texts = pl.Series("text_id", _text_ids(ids, given["text_sha256"].to_list()), pl.Binary)
    scored = verdicts.select("doc_id", _HOLDER, "text_id").collect(engine="streaming")
    both = pl.concat([scored, given.select("doc_id", "holder", texts)])
    return both.group_by(_DOCUMENT).agg(copies=pl.len())


def _text_ids(ids: TextIds, digests: Sequence[bytes | None]) -> list[bytes | None]:
    """Return ids of texts by their SHA-256. None: there is no text."""
    text_ids = iter(ids.of(pa.array([digest for digest in digests if digest is not None], pa.binary())).to_pylist())
    return [None if digest is None else next(text_ids) for digest in digests]


def _old_rows(shards: Sequence[Shard], shard_rows: Sequence[pl.DataFrame], counted: pl.DataFrame) -> dict[str, Any]:
    """Return which rows are old, by the ids of their shards: bool[stop], from the file's first row on."""
    named = [rows.with_columns(shard=pl.lit(i, pl.Int64)) for i, rows in enumerate(shard_rows)]
    rows = pl.concat([pl.DataFrame(schema={**_DOCUMENTS, "shard": pl.Int64}), *named]).with_columns(_HOLDER)
    rows = rows.with_columns(nth=pl.int_range(pl.len()).over(_DOCUMENT))
    rows = rows.join(counted, on=_DOCUMENT, how="left", nulls_equal=True, maintain_order="left")
    old = rows.filter(pl.col("nth") < pl.col("copies").fill_null(0))
    marked: dict[str, Any] = {}
    for (i,), part in old.partition_by("shard", as_dict=True).items():
        shard = shards[cast(int, i)]
        marked[shard.shard_id] = np.zeros(shard.rows.stop, np.bool_)
        marked[shard.shard_id][part["row"].to_numpy()] = True
    return marked


def read_on_ray(plan: Plan, shards: Sequence[Shard]) -> list[pl.DataFrame]:
    """Return `read_documents` of each shard, by tasks of Ray. A task that fails gives no documents."""
    task, shared = ray.remote(num_cpus=1, max_retries=1)(read_documents), ray.put(plan)
    shard_rows = []
    for answer in [task.remote(shared, _without_parents(shard)) for shard in shards]:
        try:
            shard_rows.append(ray.get(answer))
        except RayError:  # a file that ends its reader; the scan will find the document at fault
            shard_rows.append(_DOCUMENTS.to_frame())
    return shard_rows


def read_documents(plan: Plan, shard: Shard) -> pl.DataFrame:
    """Return the documents of a shard that are not deleted, as `_DOCUMENTS`. Empty: its file cannot be read."""
    ids, frames = open_text_ids(plan), [_DOCUMENTS.to_frame()]
    try:
        for batch in read(shard.file, plan.columns, shard.rows.start, shard.rows.stop):
            if isinstance(batch, Unreadable):
                continue
            texts = [None if text is None else hashlib.sha256(text).digest() for text in batch["text"].to_pylist()]
            columns = {name: batch[name].to_pylist() for name in ("row", "doc_id", "account_id")}
            frames.append(pl.DataFrame({**columns, "text_id": _text_ids(ids, texts)}, schema=_DOCUMENTS))
    except FileFault:  # the scan will report it
        return _DOCUMENTS.to_frame()
    return pl.concat(frames)


def _without_parents(shard: Shard) -> Shard:
    """Return a shard without its file's parents for workers: they may be as many as the files of a table."""
    entry = None if shard.file.entry is None else replace(shard.file.entry, parents=frozenset())
    return replace(shard, file=replace(shard.file, entry=entry))


def leave_out_rewritten(
    plan: Plan,
    shards: Sequence[Shard],
    live: frozenset[str],
    read_all: Callable[[Plan, Sequence[Shard]], Sequence[pl.DataFrame]] = read_on_ray,
) -> list[Shard]:
    """Return the shards without the rows that were scanned in a file which the shard's file replaced.

    A file whose deleted rows changed is not scanned again, unless rows came back. Then all of its rows are scanned, and
    hide their earlier verdicts.

    Args:
        plan: the scan's plan.
        shards: shards that are to be scanned.
        live: paths of all files of the input as it is now.
        read_all: reads the documents of shards.

    Raises:
        Refused: rows were scanned in another file by another rule, and no p-value is corrected for a second look.
    """
    moved = [shard for shard in shards if shard.file.entry is not None and shard.file.entry.parents]
    unmoved = live - {shard.file.path for shard in moved}
    origins, scanned = _origins(plan, moved, unmoved, [plan.tests_sha256])
    rules = other_rules(plan) if moved else {}
    _, otherwise = _origins(plan, moved, unmoved, [*rules])
    shard_rows = read_all(plan, moved) if len(scanned) or len(otherwise) else []
    for (tests_sha256,), ranges in otherwise.partition_by("tests_sha256", as_dict=True).items():
        under_other_rule = _old_rows(moved, shard_rows, _counted(plan, ranges))
        for shard in moved:
            if shard.shard_id in under_other_rule:
                rule = rules[str(tests_sha256)]
                raise SecondRule(plan, f"rows that a commit wrote into {shard.file.path} were scanned with {rule}")
    old = _old_rows(moved, shard_rows, _counted(plan, scanned)) if len(scanned) else {}
    scanned_before, bearing = set(scanned["path"]), set(scanned.filter(pl.col("documents") > 0)["path"])

    def without(shard: Shard) -> Shard:
        rows, bare = old.get(shard.shard_id), _without_parents(shard)
        if shard.rows.start == 0:
            came_from = tuple(sorted(origins.get(shard.file.path, set()) & bearing - {shard.file.path}))
            bare = replace(bare, file=replace(bare.file, moved_from=came_from))
        if rows is None:
            return bare
        gone = rows[shard.rows.start :] | shard.file.rows_not_read(shard.rows.start, shard.rows.stop)
        if shard.file.path in scanned_before and not gone.all():
            return bare
        return replace(bare, file=replace(bare.file, rewritten=pack_rows(rows)))

    return [without(shard) for shard in shards]


def _origins(
    plan: Plan, moved: Sequence[Shard], unmoved: frozenset[str], tests: Collection[str]
) -> tuple[dict[str, set[str]], pl.DataFrame]:
    """Return the files in which rows of each file may have been scanned, including itself, and the files' ranges.

    unmoved: files that still exist.
    """
    files = {shard.file.path: shard.file.entry for shard in moved}
    origins = {path: {path} | entry.parents - unmoved for path, entry in files.items() if entry}
    scanned = _scanned(plan, frozenset().union(*origins.values()), tests)
    earlier = scanned.drop_nulls("moved_from").explode("moved_from").select("path", "moved_from").unique()
    for paths in origins.values():
        paths |= set(earlier.filter(pl.col("path").is_in(sorted(paths)))["moved_from"]) - unmoved
    return origins, _scanned(plan, frozenset().union(*origins.values()), tests) if len(earlier) else scanned

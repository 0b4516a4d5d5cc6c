"""Rows of TEXT_COUNTS: what a worker counts of the texts that it scans, for a night's figures.

Until rows are written each document has a row of its own, so that documents that turn out to be unreadable can be taken
out again.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.detection.attribution import BatchOrigin
from scanner.detection.rows import TextIds
from scanner.detection.stored_texts import utf8_of_stored
from scanner.night_comparison.account_sketches import sketch_of
from scanner.night_comparison.text_traits import BLANK, GARBLED, HIDDEN, SCRIPTS, traits_of
from schemas.tables import TEXT_COUNTS


class TextCounter:
    """Counts what shows of texts. Each worker makes its own.

    text_ids: make digests of accounts under the audit secret, so that no sketch tells whether a guessed account posted.
    """

    table = "text_counts"

    def __init__(self, text_ids: TextIds) -> None:
        self._text_ids = text_ids
        # compiled now, for arrays as documents have them: no document may be blamed for what that takes
        traits_of(utf8_of_stored(pa.array([b"a text"], pa.large_binary())))

    def rows(self, documents: pa.RecordBatch, verdicts: pa.RecordBatch, origin: BatchOrigin) -> pa.RecordBatch:
        """Return what is counted of each document, a row a document.

        Args:
            documents: of the batch.
            verdicts: exact rows of VERDICTS on some of them, in their order.
            origin: of the batch.
        """
        traits, scripts = traits_of(utf8_of_stored(documents["text"]))
        keys = pa.nulls(len(documents), pa.string())
        if verdicts["flagged"].true_count:
            flags = verdicts.filter(pc.and_not_kleene(verdicts["flagged"], pc.fill_null(verdicts["canary"], False)))
            keys = pc.take(flags["key_id"], pc.index_in(documents["row"], flags["row"]))
        accounts = documents["account_id"].dictionary_encode()
        return pa.RecordBatch.from_pydict(
            {
                "row": documents["row"],
                "shard_id": pa.repeat(origin.shard_id, len(documents)).dictionary_encode(),
                "scan_id": pa.repeat(origin.scan_id, len(documents)).dictionary_encode(),
                "traits": traits,
                "script": scripts,
                "missing": documents["text"].is_null(),
                "account": pc.take(self._text_ids.of_accounts(accounts.dictionary), accounts.indices),
                "key_id": keys,
            }
        )

    def in_order(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return rows of TEXT_COUNTS: the sums of rows of documents, by shard."""
        by_run: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        for batch in batches:  # a batch is of one shard
            if len(batch):
                by_run.setdefault((batch["scan_id"][0].as_py(), batch["shard_id"][0].as_py()), []).append(batch)
        rows = [
            {"scan_id": scan_id, "shard_id": shard_id, **_counts(pa.Table.from_batches(of_shard).unify_dictionaries())}
            for (scan_id, shard_id), of_shard in by_run.items()
        ]
        return [pa.RecordBatch.from_pylist(rows, TEXT_COUNTS)] if rows else []


def _counts(rows: pa.Table) -> dict[str, object]:
    """Add up rows of documents of one shard."""
    missing = rows["missing"].to_numpy()
    traits, scripts = rows["traits"].to_numpy()[~missing], rows["script"].to_numpy()[~missing]
    shown = np.bincount(scripts[traits & BLANK == 0], minlength=len(SCRIPTS)).tolist()
    flags = rows["key_id"].drop_null().value_counts().to_pylist()
    return {
        "documents": len(rows),
        "missing": int(missing.sum()),
        **{name: int(np.count_nonzero(traits & bit)) for name, bit in _TRAITS.items()},
        "without_account": rows["account"].null_count,
        "accounts": sketch_of(rows["account"].drop_null().unique().to_numpy()).tobytes(),
        "scripts": [{"script": script, "texts": texts} for script, texts in zip(SCRIPTS, shown, strict=True) if texts],
        "flags": sorted(
            ({"key_id": flag["values"], "documents": flag["counts"]} for flag in flags), key=lambda flag: flag["key_id"]
        ),
    }


_TRAITS = {"blank": BLANK, "hidden": HIDDEN, "garbled": GARBLED}

"""The texts that were written, kept for good: one Parquet file a unit, so that a rerun writes nothing twice."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import ScanFailed
from scanner.evaluation.units import Unit
from scanner.storage.whole import write_whole
from schemas.evaluation_tables import TEXTS


class Texts:
    """Units of one model in a folder.

    Args:
        folder: made if it does not exist.
        model_sha256: digest of the model that writes them.

    Raises:
        ScanFailed: the folder cannot be made.
    """

    def __init__(self, folder: Path, model_sha256: str) -> None:
        self._folder, self.model_sha256 = folder, model_sha256
        make_folder(folder)

    def file_of(self, unit: Unit) -> Path:
        """The file of a unit."""
        return self._folder / f"{unit.digest(self.model_sha256)[:40]}.parquet"

    def missing(self, units: Sequence[Unit]) -> list[Unit]:
        """The units that were not written yet, each once, in their order."""
        return [unit for unit in dict.fromkeys(units) if not self.file_of(unit).exists()]

    def read(self, unit: Unit) -> list[str]:
        """The texts of a unit, row by row.

        Raises:
            ScanFailed: the file is not there or not whole.
        """
        path = self.file_of(unit)
        table = read_whole(path, TEXTS)
        if table["prompt"].to_pylist() != list(unit.prompts):
            raise ScanFailed(f"results: {path} holds other rows than it should; delete it and run again")
        texts: list[str] = table["text"].to_pylist()
        return texts

    def lengths(self, unit: Unit) -> list[int]:
        """Tokens that the model wrote for each row."""
        found: list[int] = pq.read_table(self.file_of(unit), columns=["tokens"])["tokens"].to_pylist()
        return found

    def write(self, unit: Unit, completions: Sequence[tuple[str, int]]) -> None:
        """Keep a unit: text and tokens of each row. The file is whole or not there, whatever interrupts us.

        Raises:
            ScanFailed: it cannot be written.
        """
        setting, path = unit.setting, self.file_of(unit)
        same = {
            "unit": path.stem,
            "model_sha256": self.model_sha256,
            **setting.columns(),
            "top_p": setting.top_p,
            "max_new_tokens": setting.max_new_tokens,
            "seed": unit.seed,
        }
        nothing = [None] * len(unit.prompts)
        rows = [
            same | {"row": row, "prompt": prompt, "commitment": key, "message": message, "text": text, "tokens": tokens}
            for row, (prompt, key, message, (text, tokens)) in enumerate(
                zip(unit.prompts, unit.commitments or nothing, unit.messages or nothing, completions, strict=True)
            )
        ]
        write_rows(path, pa.Table.from_pylist(rows, TEXTS))


def make_folder(folder: Path) -> None:
    """Make a folder where it is not there; raises ScanFailed when it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScanFailed(f"results: the folder {folder} cannot be made: {error}") from None


def read_whole(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a file that `write_rows` wrote.

    Raises:
        ScanFailed: it is not there or not whole.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ScanFailed(f"results: {path} cannot be read ({error}); delete it and run again") from None
    if not table.schema.equals(schema):
        raise ScanFailed(f"results: {path} has other columns than it should; delete it and run again")
    return table


def write_rows(path: Path, table: pa.Table) -> None:
    """Write a Parquet file that is whole or not there.

    Raises:
        ScanFailed: it cannot be written.
    """
    try:
        write_whole(path, lambda file: pq.write_table(table, file, compression="zstd"))
    except OSError as error:
        raise ScanFailed(f"results: {path} cannot be written: {error}") from None

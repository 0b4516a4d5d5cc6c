"""A registry that is open: texts are looked at under its keys, and marks are handed to whoever serves a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from scanner.detection.one_text import Check, OpenedCheck
from scanner.errors import Refused
from scanner.registry import find_key, load_registry, messages_held, open_key
from scanner.storage.locations import is_uri

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from scanner.watermark import Watermark


@dataclass(frozen=True)
class TextVerdict:
    """What a scan says of one text, as in schemas.tables.VERDICTS.

    status: scored, scored_in_part, too_short or filtered. users: for whom the text is marked, the strongest evidence
    first; empty where nobody is named, for the reason in naming. log10_p: of the key with the smallest p, corrected
    for all messages of all keys; None where there is none. key_id, message: of that p. scored: tokens that count.
    proof: how a flag was computed again; None: no flag.
    """

    status: str
    flagged: bool
    users: tuple[str, ...]
    naming: str
    log10_p: float | None
    key_id: str | None
    message: int | None
    tokens: int
    scored: int
    proof: str | None

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "TextVerdict":
        """The verdict of a row."""
        users = (entry["user_id"] for entry in row["named"] or ())
        shared: dict[str, Any] = {name: row[name] for name in cls.__annotations__ if name not in ("users", "log10_p")}
        return cls(users=tuple(user for user in users if user is not None), log10_p=row["log10_p_global"], **shared)


@dataclass(frozen=True)
class TextVerdicts(Sequence[TextVerdict]):
    """Verdicts in the order of their texts. rows: as in schemas.tables.VERDICTS, exact, `row` being the place."""

    rows: "pa.RecordBatch"

    @cached_property
    def frame(self) -> "pl.DataFrame":
        """A frame of polars, one row a text: the columns of schemas.tables.VERDICTS."""
        import polars as pl

        return pl.DataFrame(self.rows)

    @cached_property
    def _verdicts(self) -> tuple[TextVerdict, ...]:
        return tuple(map(TextVerdict.of_row, self.rows.to_pylist()))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> TextVerdict: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TextVerdict, ...]: ...
    def __getitem__(self, index: int | slice) -> TextVerdict | tuple[TextVerdict, ...]:
        return self._verdicts[index]

    def __iter__(self) -> Iterator[TextVerdict]:
        return iter(self._verdicts)


class OpenedRegistry:
    """The keys of a registry, opened once, for a program that looks at many texts or marks them. See `open`."""

    def __init__(self, registry: Path | str, keys: Sequence[str], false_positive_rate: float) -> None:
        self._folder = registry
        self._check = OpenedCheck(Check.of_registry(registry, tuple(keys), false_positive_rate))

    @overload
    def check(self, texts: str) -> TextVerdict: ...
    @overload
    def check(self, texts: list[str] | tuple[str, ...]) -> TextVerdicts: ...
    def check(self, texts: str | list[str] | tuple[str, ...]) -> TextVerdict | TextVerdicts:
        """Look at a text, or at several, as a scan of these keys does; nothing is written.

        A user who got their message after the text was written is named all the same, since a text alone does not tell
        when that was.

        Returns:
            The verdict of one text; of several, a sequence with a frame. Half of a surrogate pair is no character: of a
            text that has one, the rest is scored, `scored_in_part`.

        Raises:
            Refused: what is given is neither a text nor a list of texts.
        """
        several = [texts] if isinstance(texts, str) else _listed("texts", texts)
        found = self._check.score_batch([text.encode("utf-8", "surrogatepass") for text in several])
        verdicts = TextVerdicts(found.verdicts)
        return verdicts[0] if isinstance(texts, str) else verdicts

    def mark(self, key_id: str) -> "Watermark":
        """The mark of a key, for a logits processor; it shows itself in no repr and cannot be pickled.

        Raises:
            Refused: the registry has no such key; SecretError: its secret cannot be read.
        """
        return open_key(self._folder, find_key(load_registry(self._folder), key_id))

    def messages(self, key_id: str, users: Sequence[str]) -> dict[str, int]:
        """The message that each of some users holds under a key, where they hold one.

        Raises:
            Refused: the registry has no such key, or `users` is no list of ids.
        """
        return messages_held(self._folder, key_id, _listed("users", users))


def open(registry: Path | str, keys: Sequence[str] = (), false_positive_rate: float = 1e-6) -> OpenedRegistry:  # noqa: A001
    """Open the keys of a registry, its tokenizers and users.

    Args:
        registry: its folder or URI.
        keys: ids of the keys to look under; none: all that are under test. p-values are corrected for all of them.
        false_positive_rate: share of unmarked texts that may be flagged.

    Raises:
        Refused: there is no registry, or no such key, or an argument cannot be right; SecretError, TokenizerError: a
            key cannot be opened.
    """
    if not isinstance(false_positive_rate, float | int) or not 0.0 < false_positive_rate < 1.0:
        raise Refused(f"false_positive_rate: {false_positive_rate!r}: give a rate between 0 and 1, such as 1e-6")
    if not isinstance(registry, str | Path):
        raise Refused(f"registry: {type(registry).__name__}: give the folder or URI of a registry, as text or a Path")
    place = registry if is_uri(str(registry)) else Path(registry)
    return OpenedRegistry(place, _listed("keys", keys), false_positive_rate)


def _listed(name: str, values: Sequence[str]) -> Sequence[str]:
    """Values that are a list or tuple of texts. A text would be taken for the list of its letters.

    Raises:
        Refused: they are something else.
    """
    if not isinstance(values, list | tuple):
        raise Refused(f"{name}: {type(values).__name__}: give a list of texts (of a column of polars: its to_list())")
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise Refused(f"{name}: entry {place} is of type {type(value).__name__}; each must be a text (str)")
    return values

"""Read answers of a server into arrays: classes, users, and the tokens under each reading of their texts.

A scan reads texts with the tokenizer of a key. A server that gives its own token ids shows exactly what it marked,
however the text is split. If answers have such ids, these are the main reading, and the text is another reading.
Otherwise the text is the main reading.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.text import Tokenizer, load_tokenizer, sha256_file
from scanner.watermark.positions import Tokens, runs_of

CLASS = "answers"
"""Class of answers without a class."""

MOST_TOKENS = 2**16
"""Most tokens of an answer that are tested. Later ones are left out."""

MOST_CHARACTERS = 4 * MOST_TOKENS
"""Most characters of an answer, or of its prompt, that are tokenised. Tokenizers take minutes for a few million."""

MOST_CLASSES = 1_000
"""Most classes of answers, because every configuration is tested on each."""

Ids = NDArray[np.uint32]


class Answers(NamedTuple):
    """The A answers that have a text, in their order.

    classes: class of each answer.
    texts: texts as received, the first MOST_CHARACTERS of each.
    prompts: the last MOST_CHARACTERS before the answer. None where unknown.
    prompt_ids: token ids before the answer. None where unknown.
    ids: the server's own token ids. None where it gave none.
    users: user whom the answer was marked for. None where unknown.
    without_text: number of rows without a text, for each class.
    errors: most frequent reason for a missing text and its count, for each class with reasons.
    notes: notes on single answers, and the number of answers with each.
    """

    classes: tuple[str, ...]
    texts: tuple[str, ...]
    prompts: tuple[str | None, ...]
    prompt_ids: tuple[Ids | None, ...]
    ids: tuple[Ids | None, ...]
    users: tuple[str | None, ...]
    without_text: dict[str, int]
    errors: dict[str, tuple[str, int]]
    notes: dict[str, int]


def answers_of(table: pa.Table) -> Answers:
    """Return the answers of a table. Only the column `text` is required.

    Raises:
        Refused: a column is missing, occurs twice or has another type, there are too many classes, or no row has a
            text.
    """
    if "text" not in table.column_names:
        raise Refused("the answers have no column `text`; give one answer per row, with its text in that column")
    twice = sorted(name for name, count in Counter(table.column_names).items() if count > 1)
    if twice:
        raise Refused(f"the answers have the column `{twice[0]}` several times; keep one of them")
    values = {name: _column(table, name) for name in ("text", "class", "prompt", "user_id", "note", "error")}
    ids = {name: _id_lists(table, name) for name in ("ids", "prompt_ids")}
    classes = [name or CLASS for name in values["class"]]
    rows = [row for row, text in enumerate(values["text"]) if text]
    if not rows:
        raise Refused(f"none of {table.num_rows:,} answers has a text; nothing can be tested")
    if (found := len(set(classes))) > MOST_CLASSES:
        raise Refused(
            f"the answers have {found:,} classes; at most {MOST_CLASSES:,} are tested. The column `class` says how "
            "each answer was requested"
        )
    with_text = set(rows)
    without_text = Counter(classes[row] for row in range(table.num_rows) if row not in with_text)
    errors = {
        name: Counter(e for e, of_class in zip(values["error"], classes, strict=True) if e and of_class == name)
        for name in without_text
    }
    commonest = {name: counts.most_common(1)[0] for name, counts in errors.items() if counts}
    notes = Counter(note for note in values["note"] if note)
    if cut := sum(len(values["text"][row] or "") > MOST_CHARACTERS for row in rows):
        notes[f"only the first {MOST_CHARACTERS:,} characters were tested"] = cut

    def of_rows(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(column[row] for row in rows)

    texts = tuple((values["text"][row] or "")[:MOST_CHARACTERS] for row in rows)
    prompts = tuple(None if text is None else text[-MOST_CHARACTERS:] for text in of_rows(values["prompt"]))
    users = of_rows(values["user_id"])
    return Answers(
        of_rows(classes),
        texts,
        prompts,
        of_rows(ids["prompt_ids"]),
        of_rows(ids["ids"]),
        users,
        dict(without_text),
        commonest,
        dict(notes),
    )


def _column(table: pa.Table, name: str) -> list[str | None]:
    if name not in table.column_names:
        return [None] * table.num_rows
    column = table.column(name)
    if pa.types.is_dictionary(column.type):  # such as a category of pandas
        column = column.cast(column.type.value_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null, pa.types.is_string_view)
    if not any(fits(column.type) for fits in kinds):
        raise Refused(f"the answers' column `{name}` is of type {column.type}; text is needed")
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raise Refused(f"the answers' column `{name}` holds bytes that are not valid UTF-8; write it as text") from None


def _id_lists(table: pa.Table, name: str) -> list[Ids | None]:
    if name not in table.column_names:
        return [None] * table.num_rows
    out = list[Ids | None]()
    for value in table.column(name).to_pylist():
        if value is not None and not (
            isinstance(value, list) and all(isinstance(token, int) and 0 <= token < 2**32 for token in value)
        ):
            raise Refused(f"the answers' column `{name}` has a value that is not a list of token ids, 0 to 2^32 − 1")
        out.append(np.array(value, np.uint32) if value else None)
    return out


class Reading(NamedTuple):
    """One way to read the answers.

    name: unique.
    words: the server's behaviour that only this reading finds, as words that follow "the server". Empty for the main
        reading.
    tokens: of the A answers.
    """

    name: str
    words: str
    tokens: Tokens


def readings_of(answers: Answers, tokenizer: Tokenizer, others: Iterable[tuple[str, Tokenizer]]) -> list[Reading]:
    """Return the readings of answers, main one first. Readings with equal tokens are listed once.

    Args:
        answers: the answers.
        tokenizer: of the key.
        others: further tokenizers by their names.
    """
    by_text = _cut(tokenizer.encode(answers.texts))
    found: list[Reading] = []
    if any(ids is not None for ids in answers.ids):
        split = np.split(by_text.ids, by_text.offsets[1:-1])
        ids = [text if own is None else own for own, text in zip(answers.ids, split, strict=True)]
        found.append(Reading("ids", "", _cut(batch_of(ids))))
        words = "returns token ids that do not match its texts: the texts carry the mark, and the ids do not"
        found.append(Reading("text", words, by_text))
    else:
        found.append(Reading("text", "", by_text))
        as_control = "writes control tokens into its answers; the mark is found only if they are read as control tokens"
        found.append(Reading("control tokens", as_control, _cut(_read_controls(tokenizer, answers.texts))))
        spaced = _cut(tokenizer.encode([" " + text for text in answers.texts]))
        found.append(Reading("space before", "begins its answers with a space that the text lacks", spaced))
    for name, other in others:
        words = f"uses a tokenizer other than the key's: {name}"
        found.append(Reading(f"tokenizer {name}", words, _cut(other.encode(answers.texts))))
    return [
        reading
        for place, reading in enumerate(found)
        if not any(_same(reading.tokens, earlier.tokens) for earlier in found[:place])
    ]


def share_split_alike(answers: Answers, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Return how many texts the tokenizer splits into the server's ids, and how many answers have ids.

    None if no answer has ids.
    """
    pairs = [(text, ids) for text, ids in zip(answers.texts, answers.ids, strict=True) if ids is not None]
    if not pairs:
        return None
    tokens = tokenizer.encode([text for text, _ in pairs])
    split = [tokens.ids[a:b] for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    return sum(np.array_equal(of_text, ids) for of_text, (_, ids) in zip(split, pairs, strict=True)), len(pairs)


def prompt_ends(answers: Answers, tokenizer: Tokenizer, length: int) -> list[Ids | None]:
    """Return the last `length` tokens before each answer. None where fewer are known."""
    texts = [prompt or "" for prompt in answers.prompts]
    tokens = _read_controls(tokenizer, texts)
    ends = list[Ids | None]()
    for place, ids in enumerate(answers.prompt_ids):
        before = tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]] if ids is None else ids
        ends.append(before[len(before) - length :] if len(before) >= length else None)
    return ends


def batch_of(documents: Sequence[Ids]) -> Tokens:
    """Join the token ids of documents, uint32 each, into one batch."""
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(ids) for ids in documents], out=offsets[1:])
    return Tokens(np.concatenate([np.empty(0, np.uint32), *documents]), offsets)


def load_tokenizers(paths: Sequence[Path]) -> list[tuple[str, Tokenizer]]:
    """Load further tokenizers. Each is named by its file and folder. Raises TokenizerError."""
    return [(f"{path.parent.name}/{path.name}", load_tokenizer(path, sha256_file(path), fast=False)) for path in paths]


def _cut(tokens: Tokens) -> Tokens:
    """Return the first MOST_TOKENS tokens of each document."""
    if int(np.diff(tokens.offsets).max(initial=0)) <= MOST_TOKENS:
        return tokens
    lengths = np.minimum(np.diff(tokens.offsets), MOST_TOKENS)
    return Tokens(*runs_of(tokens.ids, tokens.offsets[:-1], lengths))


def _read_controls(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """Tokenise texts and read the control tokens that are written in them as control tokens."""
    if not any(texts):
        return Tokens(np.empty(0, np.uint32), np.zeros(len(texts) + 1, np.int64))
    encodings = _reads_controls(tokenizer.reference.data).encode_batch_fast(list(texts), add_special_tokens=False)
    return batch_of([np.array(encoding.ids, np.uint32) for encoding in encodings])


@functools.lru_cache(maxsize=4)
def _reads_controls(data: bytes) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer.from_buffer(data)
    inner.encode_special_tokens = False
    inner.no_truncation()
    inner.no_padding()
    return inner


def _same(one: Tokens, other: Tokens) -> bool:
    return np.array_equal(one.offsets, other.offsets) and np.array_equal(one.ids, other.ids)

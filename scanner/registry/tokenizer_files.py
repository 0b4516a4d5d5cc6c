"""Pin the tokenizer.json of a key when the key is made, and count its tokens."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scanner.errors import Refused, TokenizerError
from scanner.printable import cut
from scanner.storage.locations import MOST_TOKENIZER, parse_json, read_named
from schemas.registry import TokenizerFile

if TYPE_CHECKING:
    from scanner.watermark import Format


MOST_PATTERN = 10_000
"""Most characters of a regular expression in a tokenizer.json."""

_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+(?:\]|\Z)|\{(?:\d+,)?(?:\d\d+)?\}|.", re.DOTALL)
_REPEATED = re.compile(r"[*+]|\{.+")


class PinnedTokenizer(NamedTuple):
    """A tokenizer's entry in keys.toml, and its sizes."""

    entry: TokenizerFile
    model_tokens: int
    """Number of tokens of its model."""
    tokens: int
    """Number of all tokens, including added ones."""


def pin_tokenizer(folder: Path, given: str) -> PinnedTokenizer:
    """Return path and SHA-256 of a tokenizer.json, and its sizes.

    The path is relative to the registry if it was given so, or lies inside it.

    Args:
        folder: the registry's folder.
        given: a path. A relative one starts at the working folder or at the registry's.

    Raises:
        TokenizerError: it cannot be read, is two files, or is no tokenizer.json. Or it splits words by chance, or has a
            pattern that repeats a repetition.
    """
    in_current, in_registry = Path(given), folder / given
    if in_current.is_file() and in_registry.is_file() and not in_current.samefile(in_registry):
        paths = f"{in_current.absolute()} and {in_registry}"
        raise TokenizerError(f"tokenizer {given} matches two files, {paths}; give an absolute path")
    path = in_current if in_current.is_file() else in_registry
    try:
        raw = read_named(path, MOST_TOKENIZER)
    except OSError as error:
        raise TokenizerError(
            f"tokenizer {given}: cannot be read ({error.strerror}); name a tokenizer.json, from the working folder, "
            "from the registry's folder or absolute"
        ) from None
    try:
        fields = parse_json(raw)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or "model" not in fields:
        raise TokenizerError(f"tokenizer {given}: is not a tokenizer.json (a JSON object with a field 'model')")
    from scanner.text.tokenizers import refuse_chance  # late: reading a registry needs no tokenizers

    try:
        refuse_chance(fields["model"] if isinstance(fields["model"], dict) else {})
    except ValueError as error:
        raise TokenizerError(f"tokenizer {given}: {error}") from None
    try:
        endless = next(filter(_repeats_what_repeats, _patterns(fields)), None)
    except RecursionError:
        raise TokenizerError(f"tokenizer {given}: its lists or objects are nested too deeply") from None
    if endless is not None:
        named = endless if len(endless) <= 100 else cut(endless, 100)
        raise TokenizerError(
            f"tokenizer {given}: its pattern {named!r} has a repetition inside a repetition (or more than "
            f"{MOST_PATTERN:,} characters, or a [ without its ]), so some texts may take extremely long; write it "
            "without nested repetitions"
        )
    if path is in_current:
        given = os.path.abspath(path)
        if Path(given).is_relative_to(os.path.abspath(folder)):
            given = os.path.relpath(given, os.path.abspath(folder))
    return PinnedTokenizer(TokenizerFile(file=given, sha256=hashlib.sha256(raw).hexdigest()), *_sizes(fields))


def _patterns(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("Regex"), str):
            yield value["Regex"]
        for name, inner in value.items():
            if name not in ("vocab", "merges"):
                yield from _patterns(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _patterns(inner)


def _repeats_what_repeats(pattern: str) -> bool:
    """Return whether a repeated group contains a repetition. For some texts, its time would double with each letter."""
    # Too long a pattern counts, and so do open classes. Up to nine repetitions do not, nor alternatives that match the
    # same.
    if len(pattern) > MOST_PATTERN:
        return True
    groups, closed = [False], False  # whether something is repeated in each open group, and in the one just closed
    for part in _PARTS.findall(pattern):
        if part[0] == "[" and part[-1] != "]":
            return True  # a class without an end; its rest may contain anything
        if _REPEATED.fullmatch(part):
            if closed:
                return True
            groups[-1] = True
        elif part == "(":
            groups.append(False)
        closed = part == ")" and len(groups) > 1 and groups.pop()
        groups[-1] |= closed
    return False


def _sizes(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return 1 + the largest id of the model, and of all tokens. 0: the file has an unknown form."""
    model = fields["model"]
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        model_tokens = _beyond(vocabulary.values())
    else:  # Unigram has a list, whose indices are the ids
        model_tokens = len(vocabulary) if isinstance(vocabulary, list) else 0
    added = fields.get("added_tokens")
    ids = [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return model_tokens, max(model_tokens, _beyond(ids))


def _beyond(ids: Iterable[object]) -> int:
    return 1 + max((number for number in ids if isinstance(number, int)), default=-1)


def refuse_narrow(made_for: "Format", pinned: PinnedTokenizer) -> None:
    """Refuse a vocabulary that is too small for the tokenizer: its draws would differ from those of marking.

    Raises:
        Refused: states both sizes.
    """
    width = made_for.vocabulary()
    if width is not None and width < pinned.model_tokens:
        raise Refused(
            f"vocab_size = {width:,}: tokenizer {pinned.entry.file} has {pinned.model_tokens:,} tokens; give the "
            "width of the model's logits (vocab_size in its config.json), which is at least that"
        )


def narrow(made_for: "Format", pinned: PinnedTokenizer) -> str | None:
    """Return a warning if a vocabulary is large enough for the tokenizer's model, but not for its added tokens."""
    width = made_for.vocabulary()
    if width is None or width >= pinned.tokens:
        return None
    return (
        f"vocab_size {width:,} is less than the {pinned.tokens:,} tokens of the tokenizer with those that were added: "
        "is it the width of the model's logits (vocab_size in its config.json)?"
    )

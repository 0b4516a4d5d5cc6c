"""Loading a key's tokenizer: the pinned file or none, and the fastest backend that gives the reference's tokens."""

import hashlib
import logging
from pathlib import Path

from scanner.errors import BackendMissing, BackendUnlike, TokenizerError
from scanner.storage.local_files import MOST_TOKENIZER, read_named
from scanner.storage.locations import filesystem_of, is_uri
from scanner.text.fast import FastTokenizer
from scanner.text.reference import HuggingFaceTokenizer, Tokenizer

_log = logging.getLogger(__name__)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(read_named(path, MOST_TOKENIZER)).hexdigest()


def load_tokenizer(path: Path | str, sha256: str, *, fast: bool = True) -> Tokenizer:
    """Load a tokenizer.json, a path or URI, after checking that it is the pinned one.

    The bytes that were hashed are loaded. The fast backend is taken where it is installed and agrees with the
    reference; else a warning says why not. With `fast` false it is not loaded, since that pays for thousands of texts
    only.

    Raises:
        TokenizerError: the file is missing, unreadable, another one, or no tokenizer.
    """
    try:
        data = _read(path)
    except OSError as error:
        raise TokenizerError(f"tokenizer {path}: cannot be read ({error.strerror or error}); put it there") from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise TokenizerError(
            f"tokenizer {path}: its SHA-256 is {found}, but {sha256} is pinned; put the pinned file back, "
            "since another one would read marked text as unmarked"
        )
    try:
        reference = HuggingFaceTokenizer(data)
    except ValueError as error:
        raise TokenizerError(f"tokenizer {path}: is no tokenizer.json that can be loaded: {error}") from None
    if not fast:
        return reference
    try:
        return FastTokenizer(data, reference)
    except BackendMissing as error:
        _log.info("%s", error)
    except BackendUnlike as error:
        _log.warning("tokenizer %s: %s; Hugging Face tokenizers is used instead, which is slower", path, error)
    return reference


def _read(path: Path | str) -> bytes:
    if not is_uri(path):
        return read_named(path, MOST_TOKENIZER)
    filesystem, inner = filesystem_of(str(path))
    with filesystem.open_input_file(inner) as file:
        return bytes(file.read())

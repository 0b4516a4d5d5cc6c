"""Keep a corpus as tokens, part by part.

It is tokenised once, kept in a folder that all workers can reach, then removed.

An audit reads the same tokens under very many keys. Only descriptions of the parts cross Ray's object store.
"""

import functools
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs

from scanner.errors import FileFault, Refused
from scanner.input.columns import Columns
from scanner.input.documents import Reader, Unreadable, read_text
from scanner.input.files import InputFile, list_files
from scanner.input.inspector import Inspector
from scanner.input.shards import cut
from scanner.storage.locations import filesystem_of, make_private, read_whole_file, write_new
from scanner.text import Tokenizer, load_tokenizer
from scanner.watermark import Tokens
from scanner.watermark.positions import consecutive_positions


@dataclass(frozen=True)
class CorpusSource:
    """Origin of a part: rows start … stop−1 of a file.

    number: its place among the parts.
    """

    file: InputFile
    columns: Columns
    start: int
    stop: int
    number: int


@dataclass(frozen=True)
class Encoding:
    """The tokenizer, and the folder or URI for the tokens."""

    tokenizer: str
    sha256: str
    scratch: str

    def write(self, stem: str, suffix: str, data: bytes) -> str:
        """Write a file with the SHA-256 of its content in its name. Return its path or URI."""
        file = f"{self.scratch}/{self.sha256[:12]}-{stem}-{hashlib.sha256(data).hexdigest()}.{suffix}"
        write_new(file, data)
        return file


def read_content(file: str) -> io.BytesIO:
    """Return the content of a file of `Encoding.write`.

    Raises:
        OSError: it cannot be read.
        Refused: it is not what was written. The folder is that of results, which others may write.
    """
    data = read_whole_file(file).to_pybytes()
    if f"-{hashlib.sha256(data).hexdigest()}." not in file:
        raise Refused(f"corpus: {file}: its content was changed after it was written; audit it again")
    return io.BytesIO(data)


class CorpusPart(NamedTuple):
    """A tokenised part of D documents.

    number: number of the part.
    file: file of its tokens.
    lengths: number of tokens of each document, int64[D].
    digests: a digest of each document's text, uint64[D].
    accounts: the account of each document. Empty: the corpus names none.
    """

    number: int
    file: str
    lengths: NDArray[np.int64]
    digests: NDArray[np.uint64]
    accounts: tuple[str, ...]


def sources(locations: tuple[str, ...], columns: Columns) -> list[CorpusSource]:
    """Cut the corpus into parts as a scan would.

    Raises:
        Refused: a path does not exist.
        FileFault: a file cannot be read. An audit leaves nothing out silently.
    """
    corpus_sources: list[CorpusSource] = []
    with Inspector() as inspector:
        for file, groups in inspector.inspect_all(list_files(locations), columns):
            if isinstance(groups, FileFault):
                raise FileFault(groups.reason, f"{file.path}: {groups.detail}")
            corpus_sources += [
                CorpusSource(file, columns, rows.start, rows.stop, len(corpus_sources) + i)
                for i, rows in enumerate(cut(groups))
            ]
    return corpus_sources


@functools.lru_cache(maxsize=2)
def _tokenizer(path: str, sha256: str) -> Tokenizer:
    return load_tokenizer(Path(path), sha256)


@functools.cache
def _reader() -> Reader:
    """Return the reader of this process. It reads one part after another, and continues where the last one ended."""
    return Reader()


def encode(source: CorpusSource, encoding: Encoding) -> CorpusPart:
    """Tokenise a part and write its tokens. Texts that a scan would put in quarantine are left out."""
    texts, accounts = [], []
    for text, account in _texts(source):
        texts.append(text)
        accounts.append(account)
    tokens = _tokenizer(encoding.tokenizer, encoding.sha256).encode(texts)
    buffer = io.BytesIO()
    np.savez(buffer, ids=tokens.ids, offsets=tokens.offsets)
    file = encoding.write(f"{source.number:05d}", "npz", buffer.getvalue())
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return CorpusPart(
        source.number,
        file,
        np.diff(tokens.offsets),
        np.frombuffer(b"".join(digests), np.uint64),
        tuple(accounts) if source.columns.account else (),
    )


def _texts(source: CorpusSource) -> Iterator[tuple[str, str]]:
    for batch in _reader().read(source.file, source.columns, source.start, source.stop):
        if isinstance(batch, Unreadable):
            continue
        for raw, account in zip(batch["text"].to_pylist(), batch["account_id"].to_pylist(), strict=True):
            text, _, _ = read_text(raw)
            if text is not None:
                yield text, account or ""


@functools.lru_cache(maxsize=1)
def load(file: str) -> Tokens:
    """Return the tokens in the file of a part. The last part stays in memory. Raises as `read_content`."""
    with np.load(read_content(file)) as arrays:
        return Tokens(arrays["ids"], arrays["offsets"])


def cut_documents(tokens: Tokens, documents: NDArray[np.int64], length: int | None) -> Tokens:
    """Return chosen documents of a part, each cut to at most so many tokens (None: whole)."""
    begins, ends = tokens.offsets[documents], tokens.offsets[documents + 1]
    lengths = ends - begins if length is None else np.minimum(ends - begins, length)
    within = consecutive_positions(begins, lengths)
    return Tokens(tokens.ids[within.index], within.offsets)


def make_scratch(scratch: str) -> None:
    """Make the folder of tokens, which are texts of people."""
    filesystem, path = filesystem_of(scratch)
    for folder in (scratch.rpartition("/")[0], scratch):
        make_private(folder)
    filesystem.create_dir(path, recursive=True)


def remove_scratch(scratch: str) -> None:
    """Remove the folder of tokens with everything in it."""
    filesystem, path = filesystem_of(scratch)
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)

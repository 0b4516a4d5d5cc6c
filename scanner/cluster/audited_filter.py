"""The filter of an audit of keys on Ray: a worker learns it once for a tokenizer and window, all workers read it.

A filter has 4 MiB. So it lies in the folder of the tokens, and its name alone crosses Ray's object store.
"""

import functools
import hashlib
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.calibration.corpus_filter import Lesson, common_in
from scanner.cluster.corpus import Encoding, cut_documents, load
from scanner.storage.canonical import digest
from scanner.storage.locations import filesystem_of
from scanner.watermark.ngram_filter import CommonNgrams, hash_key
from schemas.registry import AuditedFilter


class CorpusFilter(NamedTuple):
    """The n-grams that each half of the corpus leaves out, in a file. reach: tokens of an n-gram before its last."""

    file: str
    reach: int
    seed: bytes
    about: AuditedFilter

    def against(self, half: int) -> CommonNgrams:
        """The n-grams that texts of a half are scored without: those common in the other half."""
        return CommonNgrams(self.reach, hash_key(self.seed), _read(self.file)[1 - half])


def learn_filter(
    encoding: Encoding, reach: int, halves: Sequence[Sequence[Lesson]], seed: bytes, length: int, common_from: int
) -> CorpusFilter:
    """Learn the n-grams that are common in each half, on a worker, and write them to a file.

    Args:
        encoding: the tokenizer, and where the tokens are.
        reach: tokens of an n-gram before its last.
        halves: what teaches in each.
        seed: seed of the hash of n-grams; the corpus is no secret.
        length: most tokens of a document that are learnt.
        common_from: distinct texts that make an n-gram common.
    """
    key = hash_key(seed)
    common = np.stack(
        [
            common_in(
                ((cut_documents(load(encoding, one.part), one.places, length), one.bits) for one in half),
                reach,
                key,
                common_from,
            )
            for half in halves
        ]
    )
    file = f"{encoding.scratch}/{encoding.sha256[:12]}-common-{reach}.npy"
    buffer = io.BytesIO()
    np.save(buffer, common)
    filesystem, path = filesystem_of(file)
    with filesystem.open_output_stream(path) as stream:
        stream.write(buffer.getbuffer())
    of_ngrams = hashlib.sha256(common.tobytes()).hexdigest()
    sha256 = digest({"tokenizer": encoding.sha256, "reach": reach, "common": of_ngrams})
    learnt = min(sum(len(one.places) for one in half) for half in halves)
    return CorpusFilter(file, reach, seed, AuditedFilter(texts=common_from, learnt=learnt, sha256=sha256))


@functools.lru_cache(maxsize=1)
def _read(file: str) -> NDArray[np.uint8]:
    filesystem, path = filesystem_of(file)
    with filesystem.open_input_stream(path) as stream:
        found: NDArray[np.uint8] = np.load(io.BytesIO(stream.read()))
    return found

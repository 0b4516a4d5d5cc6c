"""Store texts as UTF-8, side by side, as kernels read them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Utf8(NamedTuple):
    """D texts as UTF-8.

    data: uint8[N].
    offsets: int64[D+1], places in data, in ascending order.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Utf8":
        """Encode texts. A lone surrogate stays as it is."""
        encoded = [text.encode(errors="surrogatepass") for text in texts]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([*map(len, encoded)], out=offsets[1:])
        offsets.setflags(write=False)  # like stored texts: kernels are compiled for read-only arrays
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

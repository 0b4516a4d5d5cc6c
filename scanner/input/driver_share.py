"""The files of the input that are one driver's, where several drivers share a night: a hash of its path says whose."""

import hashlib
import re
from typing import NamedTuple

from scanner.input.files import InputFile


class DriverShare(NamedTuple):
    """A driver's share of the input, one of several parts, written `number/of`; numbers begin at 1.

    A file's path alone decides its part. So parts are disjoint and together hold all files, also where drivers list the
    input at different times. Parts of many files hold about equal bytes.
    """

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> "DriverShare":
        """A part as people write it, such as `1/3`.

        Raises:
            ValueError: the text names no part.
        """
        if not re.fullmatch("[0-9]{1,6}/[0-9]{1,6}", text):
            raise ValueError(f"{text!r} names no part; write its number and how many parts there are, as in 1/3")
        number, of = map(int, text.split("/"))
        if not 1 <= number <= of:
            raise ValueError(f"{text!r} names no part; the number is 1 to {of}, as in 1/{max(of, 1)}")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, file: InputFile) -> bool:
        """Whether a file belongs to this part."""
        hashed = int.from_bytes(hashlib.sha256(file.path.encode()).digest()[:8])
        return hashed % self.of == self.number - 1

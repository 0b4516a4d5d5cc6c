"""Hold secrets in memory: a value that no repr shows and that is never pickled."""

from typing import Generic, NoReturn, TypeVar

Secret = TypeVar("Secret")


class HiddenValue(Generic[Secret]):
    """A secret value, or a value derived from one. No repr shows it, and it is never pickled."""

    def __init__(self, value: Secret) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "HiddenValue(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never pickled; open the key again where it is needed")

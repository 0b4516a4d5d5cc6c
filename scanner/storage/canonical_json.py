"""JSON that is hashed: written in the one canonical way of RFC 8785, and read so that nothing in it is overlooked."""

import json
from decimal import Decimal
from typing import Any

_EXPONENT_BELOW = 1e-6
"""Numbers below it are written with an exponent, as ECMAScript writes them."""


def write_canonical(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return JSON as RFC 8785 writes it, in UTF-8.

    Args:
        value: dictionaries with text as names, lists or tuples, text, whole numbers to 2^53, real numbers from 0 to 1,
            booleans and None.

    Raises:
        ValueError: anything else; or text that is no Unicode, as a lone surrogate is.
    """
    return _text(value).encode("utf-8")


def _text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_text(name)}:{_text(value[name])}" for name in names) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if value is None or isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and abs(value) <= 2**53:
        return str(value)
    if isinstance(value, float) and 0 <= value <= 1:
        return _real(value)
    raise ValueError(f"{value!r} cannot be written as canonical JSON")


def _real(number: float) -> str:
    """Write a number as ECMAScript does: the fewest digits that tell it, without an exponent down to 1e-6."""
    if number in (0, 1):
        return str(int(number))
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    if number >= _EXPONENT_BELOW:
        return f"{Decimal(repr(number)).normalize():f}"
    text = "".join(map(str, digits))
    mantissa = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
    return f"{mantissa}e{int(exponent) + len(text) - 1}"


def read_strictly(raw: bytes) -> Any:  # noqa: ANN401
    """Return the value of JSON in which no name stands twice in an object, and no number is endless.

    Two readers of JSON with a name twice may each see another of its values.

    Raises:
        ValueError: it is no UTF-8, no JSON, or not such one.
    """
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!a} occurs twice in an object")
    return names


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON number")

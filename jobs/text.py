"""Text from outside, as it may stand on a terminal."""


def printable(text: str, longest: int | None = None) -> str:
    """Text that cannot steer a terminal: what is not printable as escapes; the middle of a long one is left out as …"""
    if longest is not None and len(text) > longest:
        return _cut(printable(text[:longest]) + printable(text[-longest:]), longest)
    shown = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return shown if longest is None or len(shown) <= longest else _cut(shown, longest)


def _cut(text: str, longest: int) -> str:
    half = longest // 2
    return f"{text[: longest - half - 1]}…{text[-half:]}"

"""Forms that key bytes would have in a text that shows them."""


def forms(secret: bytes) -> list[str]:
    """Forms of a run of key bytes: hex, escapes, decimal words and bytes."""
    words = [int.from_bytes(secret[i : i + 4], "little") for i in range(0, len(secret) - 3, 4)]
    longs = [int.from_bytes(secret[i : i + 8], "little") for i in range(0, len(secret) - 7, 8)]
    pieces = [secret[i : i + 4] for i in range(0, len(secret) - 3, 4)]
    texts = [piece.hex() for piece in pieces] + [repr(piece)[2:-1] for piece in pieces]
    return texts + [", ".join(map(str, piece)) for piece in pieces] + [str(number) for number in words + longs]

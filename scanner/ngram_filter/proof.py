"""Which places of a text a filter leaves out, by plain Python: what proofs of flags ask."""

from collections.abc import Sequence


def find_common_places(ids: Sequence[int], reach: int, key: Sequence[int], common: Sequence[bytes]) -> frozenset[int]:
    """Return places of a text whose n-gram is common, and left out of scoring (scanner.watermark.positions).

    Args:
        ids: the tokens of the text.
        reach: how many tokens before a token its n-gram has.
        key: the key of the hash, numbers of 64 bits.
        common: for each row of cells a bit a cell, the lowest of a byte first.
    """
    found = set()
    for place in range(reach, len(ids)):
        h = key[0] + sum(k * x for k, x in zip(key[1:], ids[place - reach : place + 1], strict=False))
        h %= 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            h = (h ^ (h >> shift)) * factor % 2**64
        cells = [(h >> 32 * row) % (8 * len(bits)) for row, bits in enumerate(common)]
        if all(bits[cell // 8] >> cell % 8 & 1 for bits, cell in zip(common, cells, strict=True)):
            found.add(place)
    return frozenset(found)

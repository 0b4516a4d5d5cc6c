"""Parquet files with something wrong in them, drawn by a seed: fields of the footer, its bits, bits of the pages."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.footers import File
from tests.support.thrift import BINARY, BYTE, DOUBLE, FALSE, I16, I32, I64, TRUE, Field, List

ROWS = 12
KINDS = (
    "a field of the footer",
    "three fields of the footer",
    "a bit of the footer",
    "bits of a page",
    "bytes at the end",
)
_NUMBERS = (0, 1, -1, 2, 127, -128, 2**15, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))


def sound_files(folder: Path) -> list[Path]:
    """Files to mutate: with and without dictionary, statistics, checksums, nested columns, several row groups."""
    texts = [f"text {i} of some words " * 8 for i in range(ROWS)]
    plain = {"text": texts, "doc_id": [str(i) for i in range(ROWS)], "account": [f"a{i % 3}" for i in range(ROWS)]}
    beside = {"lists": [[i] * (i % 3) for i in range(ROWS)], "structs": [{"a": i, "b": None} for i in range(ROWS)]}
    options: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({}, {"row_group_size": 6}),
        ({}, {"row_group_size": 5, "write_page_checksum": True, "compression": "zstd"}),
        (beside, {"use_dictionary": False, "write_page_index": True, "compression": "none"}),
        ({}, {"data_page_version": "2.0", "data_page_size": 64, "compression": "gzip"}),
        ({}, {"store_schema": False, "write_statistics": False}),
    )
    paths = []
    for number, (columns, how) in enumerate(options):
        paths.append(folder / f"sound-{number}.parquet")
        pq.write_table(pa.table({**plain, **columns}), paths[-1], **how)
    return paths


def mutate(source: Path, target: Path, seed: int) -> str:
    """Write a mutant of a file, the same for a seed. Returns which of KINDS it is."""
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    file, whole = File(source), bytearray(source.read_bytes())
    if kind.endswith("of the footer") and "field" in kind:
        for _ in range(3 if kind.startswith("three") else 1):
            _change(*draw.choice(list(_places(file.footer))), draw)
        file.write(target)
        return kind
    begin, end = len(file.data), len(whole) - 8
    if kind == "a bit of the footer":
        whole[draw.randrange(begin, end)] ^= 1 << draw.randrange(8)
    elif kind == "bits of a page":
        for _ in range(draw.randrange(1, 9)):
            whole[draw.randrange(4, begin)] ^= 1 << draw.randrange(8)
    else:
        at = draw.randrange(begin, len(whole))
        whole[at : at + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
    target.write_bytes(whole)
    return kind


def _places(struct: dict[int, Field]) -> Iterator[tuple[Any, Any]]:
    """Where something can be changed, however deep: a struct and a field's number, or a list and an index."""
    for number, one in struct.items():
        yield struct, number
        yield from _inside(one.value)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from _places(value)
    elif isinstance(value, List):
        for i, item in enumerate(value.items):
            yield value, i
            yield from _inside(item)


def _change(container: Any, key: Any, draw: random.Random) -> None:
    if isinstance(container, List):
        if draw.random() < 0.5:
            container.items.insert(draw.randrange(len(container.items) + 1), container.items[key])
        elif not isinstance(container.items[key], dict | List):
            container.items[key] = _other(container.kind, container.items[key], draw)
        else:
            del container.items[key]
        return
    one = container[key]
    if isinstance(one.value, dict | List) or draw.random() < 0.1:
        del container[key]
    else:
        one.value = _other(one.kind, one.value, draw)


def _other(kind: int, value: Any, draw: random.Random) -> Any:
    if kind in (TRUE, FALSE):
        return not value
    if kind in (I16, I32, I64):
        return draw.choice((*_NUMBERS, value + 1, value - 1, value ^ 1 << draw.randrange(31)))
    if kind == BYTE:
        return draw.randrange(256)
    changed = bytearray(value)
    if kind == BINARY and draw.random() < 0.5:
        at = draw.randrange(len(changed) + 1)
        changed[at : at + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
    elif changed:
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    assert kind != DOUBLE or len(changed) == 8
    return bytes(changed)

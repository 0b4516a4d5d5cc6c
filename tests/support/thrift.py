"""Structs in Thrift's compact protocol, as in Parquet footers and page headers, read and written without a schema.

By the specification of the protocol (Apache Thrift, doc/specs/thrift-compact-protocol.md). A struct is a dict of its
fields by number; numbers are int, strings bytes, doubles their eight bytes.
"""

from dataclasses import dataclass, field
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


@dataclass
class Field:
    """A field of a struct: its type, and its value, which is a Struct, a List, an int, bytes or bool."""

    kind: int
    value: Any


Struct = dict[int, Field]


@dataclass
class List:
    """Elements of one type."""

    kind: int
    items: list[Any] = field(default_factory=list)


def read_struct(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at byte `at`, and the byte behind it."""
    found: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            number, at = _read(data, at, I16)
        value, at = (kind == TRUE, at) if kind in (TRUE, FALSE) else _read(data, at, kind)
        found[number] = Field(kind, value)
    return found, at + 1


def _read(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):  # booleans of a list
        return data[at] == TRUE, at + 1
    if kind == BYTE:
        return data[at], at + 1
    if kind in (I16, I32, I64):
        value, at = _read_varint(data, at)
        return (value >> 1) ^ -(value & 1), at
    if kind == DOUBLE:
        return data[at : at + 8], at + 8
    if kind == BINARY:
        length, at = _read_varint(data, at)
        return data[at : at + length], at + length
    if kind in (LIST, SET):
        length, items = data[at] >> 4, List(data[at] & 15)
        at += 1
        if length == 15:
            length, at = _read_varint(data, at)
        for _ in range(length):
            value, at = _read(data, at, items.kind)
            items.items.append(value)
        return items, at
    assert kind == STRUCT, kind  # Parquet has no maps
    return read_struct(data, at)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def write_struct(struct: Struct) -> bytes:
    out, before = bytearray(), 0
    for number, one in struct.items():
        kind = (TRUE if one.value else FALSE) if one.kind in (TRUE, FALSE) else one.kind
        step = number - before
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _write(I16, number)
        out += b"" if kind in (TRUE, FALSE) else _write(kind, one.value)
        before = number
    return bytes(out) + b"\0"


def _write(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        return bytes([TRUE if value else FALSE])
    if kind == BYTE:
        return bytes([value])
    if kind in (I16, I32, I64):
        return _write_varint((value << 1 ^ value >> 63) & (2**64 - 1))
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _write_varint(len(value)) + bytes(value)
    if kind in (LIST, SET):
        length = len(value.items)
        head = bytes([length << 4 | value.kind]) if length < 15 else bytes([0xF0 | value.kind]) + _write_varint(length)
        return head + b"".join(_write(value.kind, one) for one in value.items)
    assert kind == STRUCT, kind
    return write_struct(value)


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])

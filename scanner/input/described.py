"""The configured columns of a file, for people: their types, and whether they can be read."""

from typing import NamedTuple

from scanner.input.columns import Columns, readable
from scanner.input.files import InputFile
from scanner.input.footers import footer_of, open_footer


class Described(NamedTuple):
    """A column: what it holds (text, id, account or time), its name, its Arrow type, and whether its values are read.

    Values of a column that is not read are null in all tables.
    """

    role: str
    name: str
    type: str
    read: bool


def describe(file: InputFile, columns: Columns) -> list[Described]:
    """The configured columns of a file that an Inspector found sound.

    Raises:
        FileFault: it cannot be read any more.
    """
    with file.open() as opened:
        schema = open_footer(footer_of(opened)).schema_arrow
    found = readable(schema, columns).names
    return [
        Described(role, name, str(schema.field(schema.get_field_index(name)).type), found[role] is not None)
        if len(schema.get_all_field_indices(name)) == 1
        else Described(role, name, "several columns of one name", read=False)
        for role, name in columns.names.items()
        if name is not None
    ]

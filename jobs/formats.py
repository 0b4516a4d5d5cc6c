"""`brickscan formats`: which watermarks are read, over what their p-values hold, and what each can do."""

from typing import TYPE_CHECKING

import click

from jobs.text import columns, tell

if TYPE_CHECKING:
    from scanner.watermark.format import Format

_HEAD = ("format", "made by", "p-values hold over", "names users", "parameters")


@click.command()
def formats() -> None:
    """Show the watermark formats that a registry may hold keys of.

    `key`: p-values are proven over a key that nobody can search. `key-64-bits`, `key-32-bits`: over a key of so many
    bits; a flagged text must then beat 999 decoy keys too, and p-values end at 1e-19 and 2e-10. Parameters are those of
    `keys add --set` and of [keys.parameters] in keys.toml.

    \b
    Example:
      brickscan formats
    """
    from scanner.watermark.formats import FORMATS

    rows = [_HEAD]
    for name, entry in FORMATS.items():
        needed = {field for field, info in entry.model_fields.items() if info.is_required()} - set(entry.suggested)
        form = entry.model_validate({**dict.fromkeys(needed, _ANY_SIZE), **entry.suggested})
        many = not _one_message_only(form) and not form.basis().assumed
        shown = {field: "(needed)" if field in needed else value for field, value in form.model_dump().items()}
        parameters = ", ".join(f"{field} = {value}" for field, value in shown.items() if value is not None)
        rows.append((name, entry.title, str(form.basis()), "yes" if many else "no", parameters))
    tell(*columns(rows))


_ANY_SIZE = 1000
"""Size of a vocabulary that stands in where a parameter must name one."""


def _one_message_only(form: "Format") -> bool:
    try:
        form.check_messages(2)
    except ValueError:
        return True
    return False

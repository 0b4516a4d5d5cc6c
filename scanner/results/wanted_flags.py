"""The flags that somebody asks for, as a filter on rows of verdicts and on the users whom a row names."""

from collections.abc import Callable
from datetime import datetime
from functools import reduce
from operator import and_
from typing import NamedTuple

import polars as pl

from scanner.results.decided import State
from scanner.results.newest import EVERY
from scanner.results.queries import scanned_and_one_of

OF_ENTRY = ("key_id", "message", "user_id", "naming", "log10_p_global")
"""Fields of NAMED for each user who is named."""

_LISTS = ("named", "named_again")


class WantedFlags(NamedTuple):
    """Which flags are asked for: since and before these times, and with one of each of these values; empty: any.

    user_part, account_part: a part of the name, in upper or lower case; state: of decisions; None: any.
    """

    since: datetime | None = None
    before: datetime | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    state: State | None = None
    user_part: str = ""
    account_part: str = ""

    def expression(self) -> pl.Expr:
        """The filter, on columns of schemas.tables.VERDICTS."""
        asked = scanned_and_one_of(self.since, self.before, {"account_id": self.accounts, "doc_id": self.documents})
        if self.account_part:
            asked &= _has(pl.col("account_id"), self.account_part)
        if self.about_users:
            among = (
                pl.col(name).list.eval(self._is_of(pl.element().struct.field)).list.any()
                for name in ("named", "named_again")
            )
            asked &= pl.any_horizontal(self._is_of(pl.col), *(found.fill_null(value=False) for found in among))
        return asked

    @property
    def about_users(self) -> bool:
        """Whether users or keys are asked for, so that only some of the users named by a flag may be."""
        return bool(self.users or self.keys or self.user_part)

    def _is_of(self, field: Callable[[str], pl.Expr]) -> pl.Expr:
        """Whether a row or an entry of NAMED is about one of the users, under one of the keys."""
        asked = (("user_id", self.users), ("key_id", self.keys))
        each = [field(name).is_in(list(values)) for name, values in asked if values]
        each += [_has(field("user_id"), self.user_part)] if self.user_part else []
        return reduce(and_, (one.fill_null(value=False) for one in each), EVERY)

    def asked_users(self) -> list[pl.Expr]:
        """Columns `asked` and `beside`, of a row that is asked for.

        asked: entries of NAMED: what the row says of each user who is asked for, under the keys asked for; each once
        beside: whether what the row itself is about, which is who comes first of all, is not among them.
        """
        field = pl.element().struct.field
        of_asked = pl.element().filter(self._is_of(field))
        once = (field("user_id").is_not_null() & field("user_id").is_first_distinct()) | (pl.int_range(pl.len()) == 0)
        surest_first = pl.element().sort_by(field("log10_p_global"), maintain_order=True)
        named = pl.concat_list(pl.col(name).fill_null([]) for name in _LISTS).list.eval(surest_first)
        entries = pl.concat_list(pl.concat_list(pl.struct(OF_ENTRY)), named)
        users = entries.list.eval(of_asked).list.eval(pl.element().filter(once))
        return [users.alias("asked"), self._is_of(pl.col).not_().alias("beside")]


def _has(name: pl.Expr, part: str) -> pl.Expr:
    """Whether a name has a part, in upper or lower case."""
    return name.str.to_lowercase().str.contains(part.lower(), literal=True)

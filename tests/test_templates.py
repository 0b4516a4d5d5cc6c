"""Templates take fields that their values have, in every branch: no type checker reads them, few nights show all."""

import collections.abc
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2 import nodes

from scanner.evidence.advice import Advice, AdviceRule
from scanner.evidence.explanation import Explanation
from scanner.evidence.page import PageLine
from scanner.looks.marked_account import AccountLine
from scanner.night_report import Line, Night
from scanner.service.review_session import FlagPage, FlagRequest, FlagView
from schemas.service import DetectorAnswer, DetectorConfig

ROOT = Path(__file__).parents[1]
TEXT_EVIDENCE = typing.get_type_hints(Explanation)["text_evidence"]

VALUES: dict[str, dict[str, Any]] = {
    "about_flag.html.j2": {"advice": Advice, "lines": list[PageLine], "text_evidence": TEXT_EVIDENCE},
    "account_lines.html.j2": {"accounts": list[AccountLine]},
    "detector.html.j2": {"answer": DetectorAnswer | None, "config": DetectorConfig},
    "lines.html.j2": {"lines": list[Line]},
    "night.html.j2": {"decided": typing.get_type_hints(Night)["decided"], "night": Night},
    "review_flag.html.j2": {
        "advice": Advice,
        "flag_request": FlagRequest,
        "rules": list[AdviceRule],
        "view": FlagView,
    },
    "review_list.html.j2": {"flag_request": FlagRequest, "listed": FlagPage},
    "review_sure.html.j2": {"advice": Advice},
}
"""Types of values that a template is given. A value without a class of ours, such as a dict, is not looked into."""


def without_none(kind: Any) -> Any:
    """A type less None; Any for other unions."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(kind) if one is not type(None)]
        return others[0] if len(others) == 1 else Any
    return kind


def is_ours(kind: Any) -> bool:
    return inspect.isclass(kind) and kind.__module__.partition(".")[0] in ("scanner", "schemas")


def attribute(kind: Any, name: str) -> Any:
    """Type of an attribute, or, of a method, of its result. Raises AttributeError: a class of ours has none."""
    if typing.get_origin(kind) in (collections.abc.Mapping, dict) and name == "items":
        return list[tuple[typing.get_args(kind)]]  # type: ignore[misc]
    if not is_ours(kind):
        return Any
    hints = typing.get_type_hints(kind)
    if name in hints:
        return without_none(hints[name])
    member = inspect.getattr_static(kind, name)
    function = member.fget if isinstance(member, property) else member
    return without_none(typing.get_type_hints(function).get("return", Any)) if callable(function) else Any


class Checked:
    """A template that is gone through; missing: attributes that are not there, each with its line."""

    def __init__(self, template: nodes.Template, values: Mapping[str, Any]) -> None:
        self.missing: list[str] = []
        self.taken = 0
        self._all(template.body, dict(values))

    def _all(self, some: Sequence[nodes.Node], scope: dict[str, Any]) -> None:
        for node in some:
            if isinstance(node, nodes.For):
                within = scope | dict(self._bound(node.target, self._element(node.iter, scope)))
                self._all([*node.body, *node.else_], within)
            else:
                self.kind_of(node, scope)
                below = node.iter_child_nodes() if not isinstance(node, nodes.Expr) else ()
                self._all([*below], scope)

    def _element(self, iterated: nodes.Expr, scope: dict[str, Any]) -> Any:
        kind = self.kind_of(iterated, scope)
        arguments = typing.get_args(kind)
        return arguments[0] if typing.get_origin(kind) in (list, tuple, collections.abc.Sequence) else Any

    def _bound(self, target: nodes.Expr, kind: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(target, nodes.Tuple):
            parts = typing.get_args(kind) if typing.get_origin(kind) is tuple else [Any] * len(target.items)
            for one, part in zip(target.items, parts, strict=True):
                yield from self._bound(one, part)
        elif isinstance(target, nodes.Name):
            yield target.name, kind

    def kind_of(self, node: nodes.Node, scope: dict[str, Any]) -> Any:
        """Type of an expression, whose parts are looked into."""
        if isinstance(node, nodes.Name):
            return without_none(scope.get(node.name, Any))
        inner = [self.kind_of(one, scope) for one in node.iter_child_nodes() if isinstance(node, nodes.Expr)]
        if isinstance(node, nodes.Getattr):
            self.taken += is_ours(inner[0])
            try:
                return attribute(inner[0], node.attr)
            except AttributeError:
                self.missing.append(f"line {node.lineno}: {inner[0].__name__} has no {node.attr}")
        elif isinstance(node, nodes.Call | nodes.Getitem):
            whole = isinstance(node, nodes.Call) or isinstance(node.arg, nodes.Slice)
            return inner[0] if whole else Any
        return Any


def checked(name: str, source: str) -> Checked:
    environment = jinja2.Environment()
    for one in ("amount", "printable", "shortly", "visible"):
        environment.filters[one] = str
    return Checked(environment.parse(source), VALUES[name])


PATHS = {path.name: path for path in sorted((ROOT / "scanner").rglob("*.j2"))}


@pytest.mark.parametrize("name", VALUES)
def test_a_template_takes_what_its_values_have(name):
    found = checked(name, PATHS[name].read_text(encoding="utf-8"))
    assert found.missing == []
    assert found.taken > 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("review_flag.html.j2", "rule.finding", "rule.what"),  # as the page had it after the field got another name
        ("review_list.html.j2", "entry.glance.quoted > 0", "entry.glance.quotes > 0"),
        ("review_list.html.j2", "listed.counts.total.canaries", "listed.counts.total.canary"),
        ("review_list.html.j2", "flag_request.unfiltered(", "flag_request.plain("),
        ("night.html.j2", "found.in_words()", "found.words()"),
        ("about_flag.html.j2", "part.quoted", "part.quotes"),
    ],
)
def test_a_field_that_is_gone_is_found(name, old, new):
    source = PATHS[name].read_text(encoding="utf-8")
    assert old in source
    assert checked(name, source.replace(old, new)).missing

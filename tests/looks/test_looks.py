"""What is true of every look: its share of the rate is computed in the core, and nothing in a look states a share."""

import ast
from pathlib import Path

import pytest

from scanner.detection.rules import Rules
from scanner.errors import Refused
from scanner.looks import looks, rescoring, text_parts
from scanner.looks.looks import LOOKS, check_looks
from scanner.looks.rescoring import row_look
from scanner.scan_plan import make_plan
from schemas.config import AccountsConfig, SpansConfig
from tests.support.syntax_trees import tree_of

FOLDER = Path(__file__).parents[2] / "scanner" / "looks"


def test_names_are_distinct():
    assert len({look.name for look in LOOKS}) == len(LOOKS)


def test_no_look_computes_shares():
    """K of a look comes of `plan.weights`, so that all looks at a text have at most the whole rate together."""
    makers = {"ErrorShares", "tested_among", "exact_fraction"}
    calls = {
        (str(path.relative_to(FOLDER)), ast.unparse(node.func))
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
    }
    assert ("levels/on_record.py", "shares.for_levels") in calls
    assert {call for call in calls if makers & {*call[1].split(".")}} == set()


def test_a_section_of_a_look_that_is_gone_is_refused(night, monkeypatch):
    """A scan without the look would leave out what its configuration asks for."""
    config = make_plan(night.config).config
    check_looks(config)
    with_accounts = config.model_copy(update={"accounts": AccountsConfig(nights=1)})
    check_looks(with_accounts)
    monkeypatch.setattr(looks, "LOOKS", ())
    check_looks(config)
    with pytest.raises(Refused, match=r"\[accounts\]"):
        check_looks(with_accounts)


def test_parts_of_texts_are_refused_where_no_look_tests_them(night, monkeypatch):
    """In a scan that asks for them, and in rows that they gave; a scan without them has its verdicts."""
    config = make_plan(night.config).config
    with_parts = config.model_copy(update={"spans": SpansConfig(windows=True)})
    Rules.of(with_parts, 1)
    assert row_look("span", "a flag") is None
    for seam in (text_parts, rescoring):
        monkeypatch.setattr(seam, "PARTS_LOOKS", ())
    Rules.of(config, 1)
    with pytest.raises(Refused, match="parts of texts"):
        Rules.of(with_parts, 1)
    with pytest.raises(Refused, match="look 'span'"):
        row_look("span", "a flag")

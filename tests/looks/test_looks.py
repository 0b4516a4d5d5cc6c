"""What is true of every look: its share of the rate is computed in the core, and nothing in a look states a share."""

import ast
from pathlib import Path

import pytest

from scanner.errors import Refused
from scanner.looks import looks
from scanner.looks.looks import LOOKS, check_looks
from scanner.scan_plan import make_plan
from schemas.config import AccountsConfig
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
    assert ("levels/on_record.py", "shares.of_model_pass") in calls
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

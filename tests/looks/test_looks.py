"""What is true of every look: its share of the rate is computed in the core, and nothing in a look states a share."""

import ast
from pathlib import Path

from scanner.looks.looks import LOOKS
from tests.support.syntax_trees import tree_of

FOLDER = Path(__file__).parents[2] / "scanner" / "looks"


def test_names_are_distinct():
    assert len({look.name for look in LOOKS}) == len(LOOKS)


def test_no_look_computes_shares():
    """K of a look comes of `plan.weights`, so that all looks at a text have at most the whole rate together."""
    makers = {"ErrorShares", "tested_among", "exact_fraction"}
    named = {
        (str(path.relative_to(FOLDER)), node.id if isinstance(node, ast.Name) else node.attr)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert {found for found in named if found[1] in makers} == set()

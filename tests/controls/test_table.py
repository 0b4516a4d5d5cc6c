"""The table of controls: no two write rows of one kind, and together they share the family error by four."""

from scanner.controls.controls import CONTROLS, FAMILIES


def test_kinds_of_controls_are_distinct():
    kinds = [kind for control in CONTROLS for kind in control.kinds]
    assert len(kinds) == len({*kinds}) > len(CONTROLS)
    assert all(control.law_kinds <= control.kinds.keys() for control in CONTROLS)


def test_families_are_four():
    """Decoys, parts of the traffic, messages of keys, canaries: another number changes every verdict of an audit."""
    assert FAMILIES == 4

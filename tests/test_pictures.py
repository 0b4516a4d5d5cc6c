"""The diagrams of the documentation are those that `make pictures` draws."""

from pathlib import Path

import pytest

from tests.support.diagrams import DIAGRAMS, PALETTES
from tests.support.p_value_plots import PLOTS

PICTURES = Path(__file__).parents[1] / "docs/pictures"


@pytest.mark.parametrize("scheme", PALETTES)
@pytest.mark.parametrize("name", DIAGRAMS | PLOTS)
def test_diagram_is_as_drawn(name, scheme):
    assert (PICTURES / f"{name}-{scheme}.svg").read_text(encoding="utf-8") == (DIAGRAMS | PLOTS)[name](PALETTES[scheme])

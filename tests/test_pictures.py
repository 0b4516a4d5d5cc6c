"""The diagrams of the documentation are those that `make pictures` draws."""

from pathlib import Path

import pytest

from tests.support import cost_plot, p_value_plots
from tests.support.diagrams import DIAGRAMS, PALETTES

PICTURES = Path(__file__).parents[1] / "docs/pictures"
DRAWN = DIAGRAMS | p_value_plots.PLOTS | cost_plot.PLOTS


@pytest.mark.parametrize("scheme", PALETTES)
@pytest.mark.parametrize("name", DRAWN)
def test_diagram_is_as_drawn(name, scheme):
    assert (PICTURES / f"{name}-{scheme}.svg").read_text(encoding="utf-8") == DRAWN[name](PALETTES[scheme])

"""List the controls in a table. A line turns a control on. Without its line, its folder can be deleted."""

from typing import Any

from scanner.controls.canaries.control import CanaryControl
from scanner.controls.control import Control
from scanner.controls.decoys.control import DecoyControl
from scanner.controls.reserved.control import ReservedControl

CONTROLS: tuple[Control[Any], ...] = (
    DecoyControl(),
    ReservedControl(),
    CanaryControl(),
)
"""All controls. Those whose advice comes first are before others."""

FAMILIES = sum(control.families for control in CONTROLS)
"""Number of families of tests. They share the family error of a scan evenly, whatever the scan counts."""

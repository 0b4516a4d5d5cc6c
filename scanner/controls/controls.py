"""The table of controls. A line turns a control on; without its line, its folder can be removed."""

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
"""All controls, those whose advice goes first before others."""

FAMILIES = sum(control.families for control in CONTROLS)
"""Families of tests, which share the family error of a scan evenly, whatever the scan counts."""

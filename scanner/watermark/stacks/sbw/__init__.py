"""SBW's green list, which a GPU draws token by token."""

from scanner.watermark.stacks.sbw.configuration import CONFIGURATION
from scanner.watermark.stacks.sbw.format import SbwFormat
from scanner.watermark.stacks.stack import Stack

STACK = Stack((SbwFormat,), {}, CONFIGURATION)

"""Exports of flags: one neutral record a flag, and the forms that other systems take, each sent once."""

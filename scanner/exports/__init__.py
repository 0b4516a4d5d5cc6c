"""Verdicts that travel: one neutral record a flag, and what other systems take of it, sent once."""

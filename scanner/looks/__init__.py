"""Looks: ways to test a text besides the whole text as written, a folder each."""

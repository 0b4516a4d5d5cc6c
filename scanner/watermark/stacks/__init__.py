"""Marks of other serving stacks, a folder each, and next to them the code that several of them share."""

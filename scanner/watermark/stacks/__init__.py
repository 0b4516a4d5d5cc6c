"""Marks of other serving stacks, a folder each; beside them what several of them share."""

"""Levels: a model reads texts once more, and tokens count by how much they surprised it."""

"""Benchmarks: `python -m tests.bench`. Every figure is a ratio against a baseline that is measured beside it."""

"""Test whether a stated false-positive rate is true.

These statistics and experiments can prove our own p-values wrong.
"""

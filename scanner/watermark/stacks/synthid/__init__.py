"""Marks of SynthID-Text: of transformers 5.23 and its package 0.2.1, and of its repository in June 2025."""

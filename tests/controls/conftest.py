"""Fixtures of the tests of this folder."""

from tests.support.demo_texts import human, human_texts, tokenizer

__all__ = ["human", "human_texts", "tokenizer"]

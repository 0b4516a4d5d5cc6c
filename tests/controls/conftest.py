"""Fixtures of the tests of this folder."""

from tests.support.demo_texts import human, human_texts, one_tokenizer, tokenizer

__all__ = ["human", "human_texts", "one_tokenizer", "tokenizer"]

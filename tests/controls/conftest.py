"""Fixtures of the tests of this folder."""

from tests.support.demo_texts import human_texts, one_tokenizer, tokenizer

__all__ = ["human_texts", "one_tokenizer", "tokenizer"]

"""Text to tokens, with the exact tokenizer of a key: a tokenizer.json pinned by the SHA-256 of its bytes.

Text is never trusted: a literal `<s>` in a post is tokenised as the three characters that it is. The scan needs only
the protocol `Tokenizer`; which backend runs changes its speed, never its tokens.
"""

from scanner.text.tokenizers import FastTokenizer, HuggingFaceTokenizer, Tokenizer, load_tokenizer, sha256_file

__all__ = ["FastTokenizer", "HuggingFaceTokenizer", "Tokenizer", "load_tokenizer", "sha256_file"]

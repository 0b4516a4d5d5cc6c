"""Turn text into tokens, with the exact tokenizer of a key: a tokenizer.json pinned by the SHA-256 of its bytes.

Text is never trusted: a literal `<s>` in a post is tokenised as its three characters. The scan needs only the protocol
`Tokenizer`. The choice of backend changes the speed, never the tokens.
"""

from scanner.text.tokenizers import FastTokenizer, HuggingFaceTokenizer, Tokenizer, load_tokenizer, sha256_file

__all__ = ["FastTokenizer", "HuggingFaceTokenizer", "Tokenizer", "load_tokenizer", "sha256_file"]

"""Marks of SGLang 0.5.22 and 0.5.23, read from its source: one key, two keys, a key a request."""

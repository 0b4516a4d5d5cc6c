"""Detection: a batch of documents becomes verdicts, under the keys that a scan plan names."""

"""Detection: turn a batch of documents into verdicts, under the keys that a scan plan names."""

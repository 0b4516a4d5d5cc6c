"""Marks of Hugging Face transformers 5.23, read from its source: `WatermarkingConfig` with lefthash or selfhash."""

"""Marks of vLLM 0.30 to 0.33, read from its source: `gumbel` and `dual_key_gumbel`."""

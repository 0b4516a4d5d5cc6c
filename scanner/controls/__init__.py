"""Controls: ways to notice that p-values are wrong, a folder each, and the audit of every scan that judges them."""

"""Claims that anybody can check without the key: they show the seeds of one text (SPEC_3 §5)."""

"""Make claims that anybody can check without the key. A claim shows the seeds of one text (SPEC_3 §5)."""

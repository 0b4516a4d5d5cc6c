"""How other stacks choose a marked token: a file a stack."""

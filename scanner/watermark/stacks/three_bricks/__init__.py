"""Marks of the paper's research code, `openai` and `maryland`, by the paper and its published examples."""

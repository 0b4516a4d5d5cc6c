"""Accounts: the posts of an account are kept for a window of nights, and tested together as one text."""

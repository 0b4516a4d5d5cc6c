"""Reserved messages are never given to a user. Unmarked text has them as the best message as often as chance says."""

"""Evidence: one flagged document found again, explained to people and replayed."""

"""Canaries: texts that were marked for users who are nobody, which a scan must find and name."""

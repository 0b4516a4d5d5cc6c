"""Canaries: texts marked for users who do not exist. A scan must find and name them."""

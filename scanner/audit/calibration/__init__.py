"""Calibration: a long audit of keys on text that nobody marked, after which a key may be admitted."""

"""Calibration: a long audit of keys on unmarked text. After it a key may be admitted."""

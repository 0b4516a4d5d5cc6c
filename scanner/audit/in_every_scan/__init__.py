"""The audit that comes with every scan: decoys, reserved messages, and what the verdicts say about themselves."""

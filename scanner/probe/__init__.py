"""Run `brickscan probe`: find out whether a server marks, which of its answers it marks, and if not, why not."""

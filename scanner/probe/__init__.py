"""`brickscan probe`: whether a server marks, which of its answers it marks, and if not, why not."""

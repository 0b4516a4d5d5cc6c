"""Storage: locations on any filesystem that pyarrow knows, and Delta tables as they are read."""

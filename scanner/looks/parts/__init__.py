"""The look at parts of texts: windows, and segments by a text's form, each with a p-value of its own."""

"""Statistics: from counts to limits and words, over families of tests fixed beforehand. Counts in, rows out."""

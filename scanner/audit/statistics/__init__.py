"""Statistics: turn counts into limits and words, over families of tests fixed beforehand. Counts in, rows out."""

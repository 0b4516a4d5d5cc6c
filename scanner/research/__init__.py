"""The paper's experiments: write texts, attack them, measure what is found, report. Nothing that scans imports it."""

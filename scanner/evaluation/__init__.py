"""The paper's experiments: what is written and how it is attacked, what is measured, tables and reports. No Ray."""

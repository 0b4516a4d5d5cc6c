"""What `import brickscan` gives: a registry that is open, a scan, and its tables. The package stands in brickscan/."""

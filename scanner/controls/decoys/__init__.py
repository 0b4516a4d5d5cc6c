"""Decoys: texts and accounts are scored once more under keys that mark no text, so their p-values follow the law."""

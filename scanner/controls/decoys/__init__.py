"""Decoys: texts and accounts scored once more under keys that mark nothing, so that p-values are draws of the law."""

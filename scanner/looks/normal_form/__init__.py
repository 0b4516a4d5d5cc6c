"""The normal form of a text: the text without disguises that hide a mark at no cost to its poster."""

"""The normal form of a text: without what hides a mark at no cost to who posts it."""

"""Input: files and folders become batches of documents. Nothing in them is trusted."""

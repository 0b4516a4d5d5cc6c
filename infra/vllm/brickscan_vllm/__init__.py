"""Marks what vLLM serves, each request for its user, in brickscan's own format. See docs/guides/serve-with-vllm.md."""

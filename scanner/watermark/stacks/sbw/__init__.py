"""Green lists of SBW, a plugin of vLLM."""

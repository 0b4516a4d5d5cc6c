"""The kernels themselves, in Triton. Only constants have annotations, which the compiler reads."""

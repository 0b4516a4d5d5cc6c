"""The kernels themselves, in Triton: no annotations but those of constants, which the compiler reads."""

"""The native watermark: ciphers, streams and kernels of brickscan's own marks (../SPEC.md, ../SPEC_3.md)."""

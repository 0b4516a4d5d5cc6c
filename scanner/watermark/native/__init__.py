"""The native watermark: ciphers, streams and kernels of brickscan's own marks, as ../SPEC.md specifies them."""

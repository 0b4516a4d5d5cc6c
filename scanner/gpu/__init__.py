"""The scores of scanner.watermark on a device, by Triton kernels. Imports torch and triton: import it late.

kernels, runs and vectors need torch, triton and numpy alone: they run where nothing else of brickscan is installed.
marks joins them to scanner.watermark.
"""

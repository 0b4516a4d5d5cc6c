"""The scores of scanner.watermark on a device, by Triton kernels. Imports torch and triton: import it late.

kernels, batch, greenlist, gumbel, runs, vectors and devices need torch, triton and numpy alone: they run where nothing
else of brickscan is installed. marks and selftest join them to scanner.watermark.
"""

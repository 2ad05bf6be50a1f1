"""How long kernels are expected to take, above the bound: models with few parameters, fitted to measurements.

The roofline is not touched: `bound` says what no kernel can beat, the families here what kernels of a library reach.
"""

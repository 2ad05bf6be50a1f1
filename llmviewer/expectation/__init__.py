"""Expected kernel times above the roofline bound, from models with few parameters fitted to measurements.

The roofline is not touched: `bound` says what no kernel can beat, the families here what kernels of a library reach.
"""

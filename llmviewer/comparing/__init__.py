"""Comparisons of devices: `compare()`, crossings of bounds, and `choose()`."""

"""Measures this machine: its ceilings, and kernels at the shapes of models, as rows that calibrate and validate read.

problems       which launches to measure, taken from the operators of models
order          the most telling of them first
timing         how often to repeat one, and by which clock
backend        what a backend is
torch_backend  torch, on the CPU or a GPU
triton_backend the kernels of this package
ceilings       bandwidths, matrix rates and latencies of the machine
machine        what it is called, and its file for the roofline
journal        rows on the disk, one by one
session        all of it within a time
"""

"""Measurements of this machine: ceilings, and kernels at shapes of models, as tables for calibrate and validate.

problems       launches to measure, from operators of models
order          their order, the most informative first
timing         repetitions and clocks
backend        the protocol of backends
torch_backend  torch, on the CPU or a GPU
triton_backend kernels of this package
ceilings       bandwidths, matrix rates and latencies of the machine
machine        its name, state and hardware file
journal        results on disk, one by one
session        all of these within a time limit
"""

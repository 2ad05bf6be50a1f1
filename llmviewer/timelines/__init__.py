"""Profiler traces of a model, cut into passes and compared with bounds and expected times."""

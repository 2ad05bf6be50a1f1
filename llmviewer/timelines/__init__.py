"""Timelines: what a profiler recorded of a model at work, pass by pass, beside the bound and what is expected."""

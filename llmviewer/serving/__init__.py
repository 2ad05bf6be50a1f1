"""Requests that arrive over time: what a device makes of them in the steady state, step by step, and which to buy."""
